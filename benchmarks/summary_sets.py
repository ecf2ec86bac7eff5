"""The documents that summaries are measured on: every validation set of the data folder, and how long a summary is."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tools" / "bundled"))

from summary_weights import document_of_row

from longspan.data.summaries.readers import read_rows
from longspan.data.text.sentences import split_words
from longspan_documents.text.blocks import Document
from longspan_documents.text.reading import DocumentSentence, sentences_of


@dataclass(frozen=True)
class SummarySet:
    """Documents of one kind that are reported together.

    Attributes:
        kind: key of `KINDS` in `tools/bundled/summary_weights.py` if such documents were trained on, else what it is.
        sources: names of data sets, or of sources of `permissive/`.
        trained: whether there is a training split, whose references tell the length of a summary.
        limit: the first so many documents.
    """

    kind: str
    sources: tuple[str, ...]
    trained: bool = True
    limit: int | None = None


SETS = {
    "PMC papers": SummarySet("papers", ("permissive/pmc_cc_by",)),
    "PubMed": SummarySet("papers", ("pubmed",), limit=100),
    "SciSummNet": SummarySet("papers", ("scisummnet",)),
    "SciSummNet, abstract inside": SummarySet("papers", ("scisummnet-human",)),
    "Python": SummarySet("python", ("permissive/python_peps",)),
    "Ethereum ERC": SummarySet("chains", ("permissive/ethereum_ercs",)),
    "Ethereum EIP": SummarySet("chains", ("permissive/ethereum_eips",)),
    "Cardano": SummarySet("chains", ("permissive/cardano_cips",)),
    "Bitcoin, Filecoin, NEAR": SummarySet(
        "chains", ("permissive/bitcoin_bips", "permissive/filecoin_fips", "permissive/near_neps")
    ),
    "Kubernetes": SummarySet("clouds", ("permissive/kubernetes_keps",)),
    "OpenShift, Tekton": SummarySet("clouds", ("permissive/openshift_enhancements", "permissive/tekton_teps")),
    "Swift": SummarySet("languages", ("permissive/swift_evolution",)),
    "Rust, Go, NixOS": SummarySet(
        "languages", ("permissive/rust_rfcs", "permissive/go_proposals", "permissive/nixos_rfcs")
    ),
    "QMSum": SummarySet("meetings", ("qmsum",)),
    "SQuALITY": SummarySet("stories", ("squality",)),
    "GovReport": SummarySet("reports", ("gov-report",), trained=False),
    "patents": SummarySet("patents", ("patents",), trained=False),
    "CRD3, blurbs": SummarySet("role-play", ("crd3",)),
    "CRD3, synopses": SummarySet("role-play", ("crd3-synopsis",)),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A document to summarise.

    Attributes:
        id: of its row.
        document, found: as the product reads it.
        texts: its sentences, which every method ranks.
        references: what people wrote.
        words: how long each summary is.
        question: what the summary is to answer, or None.
    """

    id: str
    document: Document
    found: tuple[DocumentSentence, ...]
    texts: tuple[str, ...]
    references: tuple[str, ...]
    words: int
    question: str | None = None


def cases(chosen: SummarySet, most: int | None = None) -> Iterator[Case]:
    """The documents of a set with at least one sentence; `most` of each source."""
    read: dict[str, tuple[Document, tuple[DocumentSentence, ...]]] = {}
    for source in chosen.sources:
        words = usual_words(source, "train" if chosen.trained else "validation")
        limits = [limit for limit in (most, chosen.limit) if limit is not None]
        for row in read_rows(_place(source, "validation"), "validation", limit=min(limits, default=None)):
            if row.source not in read:
                document = document_of_row(row)
                read[row.source] = document, tuple(sentences_of(document, row.language))
            document, found = read[row.source]
            if found:
                texts = tuple(sentence.text for sentence in found)
                yield Case(
                    id=row.id,
                    document=document,
                    found=found,
                    texts=texts,
                    references=row.references,
                    words=words,
                    question=row.question,
                )


def specific_queries(most: int | None = None) -> list[Case]:
    """QMSum's questions about parts of a meeting; those about the whole are a set of their own."""
    whole = {row.id for row in read_rows("qmsum", "validation")}
    chosen = SummarySet("meetings", ("qmsum-queries",))
    return [case for case in cases(chosen, most) if case.id not in whole]


@cache
def usual_words(source: str, split: str) -> int:
    """The median length of its references, in words."""
    whole = {row.id for row in read_rows("qmsum", split)} if source == "qmsum-queries" else ()
    rows = (row for row in read_rows(_place(source, split), split) if row.id not in whole)
    return int(statistics.median(len(split_words(text)) for row in rows for text in row.references))


def _place(source: str, split: str) -> str:
    """A name that `read_rows` knows, or a file of the data folder."""
    folder, _, name = source.rpartition("/")
    return f"{os.environ['LONGSPAN_DATA']}/{folder}/{split}-{name}.jsonl.xz" if folder else source
