r"""Rows of summarisation data sets, independent of the file format.

A `SummaryRow` is created by `longspan.data.summaries.readers.read_rows` (or directly) and read by the tasks::

    row.id            "sumpubmed_20741"
    row.source        the whole document as one text
    row.sentences     the document as a tuple of sentences, in order
    row.references    one or more reference summaries, one sentence per line ("\n" between sentences)
    row.reference     the first of them (the training target)
    row.question      the question that the summary answers, or None for a plain summary

A document is stored in `pieces`, as in the file: sentences, dialogue turns ("Speaker: text") or one long text. With
`split=True` a piece may contain several sentences, which are segmented on first use of `row.sentences`, so that reading
for sequence-to-sequence training does not pay for it. A sentence never crosses the border of a piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from longspan.characters import check_characters
from longspan.data.documents import made_up_documents
from longspan.errors import InputError


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """A document with its reference summaries.

    Attributes:
        id: the data set's id of the row, unique within it.
        pieces: the document in order: sentences, turns or paragraphs.
        references: reference summaries; within each, sentences are separated by newlines. Empty for a document alone.
        question: the question that the summaries answer; None for a plain summary.
        separator: separator of the pieces in `source` (a newline for dialogues).
        split: whether pieces must still be segmented into sentences.
        language: ISO 639-1 code for the segmentation; None guesses it from the script.
        title: title of the document; may be empty.
        headings: indices of the pieces that are headings: part of the text, but not sentences.
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
        """Accepts any sequence of texts, or a single text, for `pieces` and `references`; raises `InputError` for
        unpaired surrogates."""
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
        """The document's sentences in order, without blank ones and headings."""
        headings = set(self.headings)
        pieces = [piece for index, piece in enumerate(self.pieces) if index not in headings]
        if not self.split:
            return tuple(piece for piece in pieces if piece.strip())
        from longspan.data.text.sentences import split_sentences

        return tuple(sentence.text for piece in pieces for sentence in split_sentences(piece, self.language))

    @property
    def reference(self) -> str:
        """The first reference summary; raises `InputError` if the row has none."""
        if not self.references:
            raise InputError(f"row {self.id!r} has no reference summary; training and scoring need at least one")
        return self.references[0]


def synthetic_rows(count: int, *, seed: int, sentences: int = 40) -> list[SummaryRow]:
    """Returns documents of random words whose summary is the sentences that begin with "notably", for smoke runs and
    tests.

    The same `count` and `seed` give the same rows on every machine.
    """
    rows = []
    for index, pieces in enumerate(made_up_documents(count, seed, sentences=sentences)):
        summary = "\n".join(piece for piece in pieces if piece.startswith("notably"))
        rows.append(SummaryRow(id=f"synthetic-{seed}-{index}", pieces=tuple(pieces), references=(summary,)))
    return rows
