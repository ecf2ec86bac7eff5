"""What one example of a summarisation data set is, whatever file it came from; and the data sets that have a name, to
be read with their summaries, or as plain text.

A `SummaryRow` is made by `longspan.data.summaries.readers.read_rows` (or by hand) and read by the tasks::

    row.id            "sumpubmed_20741"
    row.source        the whole document as one text
    row.sentences     the document as a tuple of sentences, in order
    row.references    one or more reference summaries, one sentence per line ("\n" between sentences)
    row.reference     the first of them (the training target)
    row.question      what the summary should answer, or None for a plain summary

A document is kept in `pieces`, as the file gave it: sentences, dialogue turns ("Speaker: text") or one long text.
`split=True` says that a piece may hold several sentences; they are found on first use of `row.sentences`, so that
reading for sequence-to-sequence training never pays for it. A sentence never crosses the border of a piece.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property

from longspan.characters import check_characters
from longspan.data.sources import DataSet
from longspan.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What to take from records that offer several things; `read_rows` explains each."""

    questions: str = "plain"
    target: str | None = None
    source_field: str | None = None
    target_field: str | None = None

    def pick(self, default: str, *others: str) -> str:
        """The chosen target, which must be one of those that the layout has."""
        target = self.target or default
        if target not in (default, *others):
            raise InputError(f"target={target!r} is not in this layout; it has {', '.join((default, *others))}")
        return target


def _folder(folder: str, **choice: str) -> DataSet:
    splits = {split: (f"{folder}/{split}.jsonl.gz",) for split in ("train", "validation")}
    return DataSet(splits=splits, choice=Choice(**choice))


PAPERS = ("pmc_cc_by",)
PROPOSALS = (
    *("bitcoin_bips", "cardano_cips", "ethereum_eips", "ethereum_ercs", "filecoin_fips", "go_proposals"),
    *("kubernetes_keps", "near_neps", "openshift_enhancements", "python_peps", "rust_rfcs", "swift_evolution"),
    "tekton_teps",
)
"""The sources of `permissive`, but for `nixos_rfcs`, which is share-alike and so no part of any set named here."""


def _permissive(*sources: str) -> DataSet:
    splits = ("train", "validation")
    return DataSet(splits={split: tuple(f"permissive/{split}-{name}.jsonl.xz" for name in sources) for split in splits})


DATA_SETS: dict[str, DataSet] = {
    "permissive": _permissive(*PAPERS, *PROPOSALS),
    "permissive-papers": _permissive(*PAPERS),
    "permissive-proposals": _permissive(*PROPOSALS),
    "pubmed": _folder("pubmed"),
    "pubmed-large": DataSet(
        splits={
            "train": ("pubmed/train.jsonl.gz", "pubmed_more/train.jsonl.gz", "pubmed_more/train-large.jsonl.xz"),
            "validation": ("pubmed/validation.jsonl.gz",),
        }
    ),
    "scisummnet": _folder("scisummnet"),
    "scisummnet-human": _folder("scisummnet", target="human_summary"),
    "squality": _folder("squality"),
    "squality-questions": _folder("squality", questions="all"),
    "qmsum": _folder("qmsum"),
    "qmsum-queries": _folder("qmsum", questions="all"),
    "scitldr": _folder("scitldr_a"),
    "crd3": _folder("crd3"),
    "crd3-synopsis": _folder("crd3", target="synopsis"),
    "gov-report": DataSet(splits={"validation": ("leval_subset/gov_report_summ.jsonl.gz",)}),
    "patents": DataSet(splits={"validation": ("leval_subset/patent_summ.jsonl.gz",)}),
}


def made_up_documents(count: int | None, seed: int, *, sentences: int = 40) -> list[list[str]]:
    """So many documents of made-up words, or 8, as lists of their sentences, three of which begin with "notably".

    The same `count` and `seed` give the same documents on every machine.
    """
    draw = random.Random(seed)
    words = ["".join(draw.choice("bdfgklmnprst") + draw.choice("aeiou") for _ in range(2)) for _ in range(80)]
    documents = []
    for index in range(8 if count is None else count):
        pieces = [" ".join(draw.choices(words, k=draw.randint(6, 12))) + "." for _ in range(sentences + index % 7)]
        for place in sorted(draw.sample(range(len(pieces)), k=3)):
            pieces[place] = f"notably {pieces[place]}"
        documents.append(pieces)
    return documents


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """A document with its reference summaries.

    Attributes:
        id: the data set's own name for the row, unique within it.
        pieces: the document in order: sentences, turns or paragraphs.
        references: reference summaries; within each, sentences are separated by newlines. Empty for a document alone.
        question: the question that the summaries answer; None asks for a plain summary.
        separator: what stands between the pieces in `source` (a newline for dialogues).
        split: whether pieces must still be cut into sentences.
        language: ISO 639-1 code for cutting sentences; None guesses it from the script.
        title: of the document; empty where the data have none.
        headings: which of the pieces are headings, by index: part of the text, but no sentences.
    """

    id: str
    pieces: tuple[str, ...]
    references: tuple[str, ...] = ()
    question: str | None = None
    separator: str = " "
    split: bool = False
    language: str | None = None
    title: str = ""
    headings: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Accept any sequence of texts, and one bare text, for `pieces` and `references`; refuse half characters."""
        if isinstance(self.pieces, str):
            object.__setattr__(self, "pieces", (self.pieces,))
            object.__setattr__(self, "split", True)
        references = (self.references,) if isinstance(self.references, str) else tuple(self.references)
        object.__setattr__(self, "pieces", tuple(self.pieces))
        object.__setattr__(self, "references", references)
        named = {"id": (self.id,), "document": self.pieces, "summary": references, "question": (self.question or "",)}
        for what, texts in named.items():
            for text in texts:
                check_characters(text, f"the {what} of a row")

    @property
    def source(self) -> str:
        """The whole document as one text."""
        return self.separator.join(self.pieces)

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """The document's sentences in order; none of them is blank or a heading."""
        headings = set(self.headings)
        pieces = [piece for index, piece in enumerate(self.pieces) if index not in headings]
        if not self.split:
            return tuple(piece for piece in pieces if piece.strip())
        from longspan.data.text.sentences import split_sentences

        return tuple(sentence.text for piece in pieces for sentence in split_sentences(piece, self.language))

    @property
    def reference(self) -> str:
        """The first reference summary; raises `InputError` where the row has none."""
        if not self.references:
            raise InputError(f"row {self.id!r} has no reference summary; training and scoring need at least one")
        return self.references[0]


def synthetic_rows(count: int, *, seed: int, sentences: int = 40) -> list[SummaryRow]:
    """Documents of made-up words whose summary is the sentences that begin with "notably", for smoke runs and tests.

    The same `count` and `seed` give the same rows on every machine.
    """
    rows = []
    for index, pieces in enumerate(made_up_documents(count, seed, sentences=sentences)):
        summary = "\n".join(piece for piece in pieces if piece.startswith("notably"))
        rows.append(SummaryRow(id=f"synthetic-{seed}-{index}", pieces=tuple(pieces), references=(summary,)))
    return rows
