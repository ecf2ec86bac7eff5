"""Named document data sets, with their summaries or as plain text, and generated ones."""

from __future__ import annotations

import random
from dataclasses import dataclass

from longspan.data.sources import DataSet
from longspan.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Options for records with several documents or summaries; see `read_rows`."""

    questions: str = "plain"
    target: str | None = None
    source_field: str | None = None
    target_field: str | None = None

    def pick(self, default: str, *others: str) -> str:
        """Returns the chosen target, or `default`; raises `InputError` if the layout does not have it."""
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
"""The sources of `permissive` except `nixos_rfcs`, which is share-alike and so not part of any named set."""


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
    """Returns `count` (default 8) documents of random words as lists of sentences, three of which begin with "notably".

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
