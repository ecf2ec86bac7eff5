"""Data sets that recipes and commands name: description, licence, download page, and expected files. `longspan data`,
the error for a missing data set and the guide are generated from this table.

Uncertain entries refer to the authors' page. Nothing is downloaded: licences must be read first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from longspan.errors import InputError
from longspan.imports import added, load

THEIR_PAGE = "see their page"


@dataclass(frozen=True, kw_only=True)
class Known:
    """A data set that users must download.

    Attributes:
        title: short description.
        size: in rows or bytes, according to its authors or paper.
        licence: licence of the data; "see their page" if it is not a common one.
        page: download page.
        layout: the expected files, below the folder of its name.
        names: other names for it, or for a part of it.
    """

    title: str
    page: str
    layout: str
    size: str = THEIR_PAGE
    licence: str = THEIR_PAGE
    names: tuple[str, ...] = ()

    def advice(self, name: str) -> str:
        """Returns what to download and where to put it, as the middle of a sentence."""
        about = f"size: {self.size}; licence: {self.licence}"
        return f"get {self.title} ({about}) from {self.page}, so that LONGSPAN_DATA/{name} has {self.layout}"


_JSONL = "train.jsonl.gz and validation.jsonl.gz"
_COHAN = "the papers with their abstracts of Cohan et al. 2018"
_GITHUB = "https://github.com"
_LITBANK = "https://github.com/dbamman/litbank"

_OWN: Mapping[str, Known] = {
    "arxiv-dataset": Known(
        title=f"arXiv, {_COHAN}",
        size="203,037 papers to train on, 6,436 for validation; 4.5 GB to fetch with PubMed's",
        page=f"{_GITHUB}/armancohan/long-summarization",
        layout="train.txt and val.txt (JSON Lines)",
    ),
    "pubmed-dataset": Known(
        title=f"PubMed, {_COHAN}",
        size="119,924 papers to train on, 6,633 for validation; 4.5 GB to fetch with arXiv's",
        page=f"{_GITHUB}/armancohan/long-summarization",
        layout="train.txt and val.txt (JSON Lines)",
    ),
    "wikipedia": Known(
        title="articles of English Wikipedia as text",
        size="18 GB of text in the thesis",
        licence="CC BY-SA",
        page="https://dumps.wikimedia.org",
        layout="train*.jsonl.gz and validation*.jsonl.gz (or .txt, .parquet), one article each",
    ),
    "books": Known(
        title="BookCorpus (Zhu et al. 2015), or books of your own",
        size="0.5 billion tokens in Longformer's paper",
        page="https://yknzhu.wixsite.com/mbweb",
        layout="train*.jsonl.gz and validation*.jsonl.gz (or .txt, .parquet), one book each",
    ),
    "realnews": Known(
        title="RealNews (Zellers et al. 2019)",
        size="1.8 billion tokens, a third of it, in Longformer's paper",
        page=f"{_GITHUB}/rowanz/grover",
        layout="train*.jsonl.gz and validation*.jsonl.gz (or .txt, .parquet), one article each",
    ),
    "stories": Known(
        title="CC-Stories (Trinh and Le 2018)",
        size="2.1 billion tokens, a third of it, in Longformer's paper",
        page="https://arxiv.org/abs/1806.02847",
        layout="train*.jsonl.gz and validation*.jsonl.gz (or .txt, .parquet), one story each",
    ),
    "text8": Known(
        title="text8, the first 100 million letters of Wikipedia",
        size="100 MB",
        licence="that of Wikipedia's text",
        page="https://mattmahoney.net/dc/textdata.html",
        layout="the file text8 or text8.zip, as it is published",
    ),
    "enwik8": Known(
        title="enwik8, the first 100 million bytes of Wikipedia",
        size="100 MB",
        licence="that of Wikipedia's text",
        page="https://mattmahoney.net/dc/textdata.html",
        layout="the file enwik8 or enwik8.zip, as it is published",
    ),
    "wikitext103": Known(
        title="WikiText-103 (Merity et al. 2017)",
        size="103 million words",
        licence="CC BY-SA",
        page="https://huggingface.co/datasets/Salesforce/wikitext",
        layout="train.txt, validation.txt and test.txt",
    ),
    "babi/en-10k": Known(
        title="the bAbI tasks, version 1.2 (Weston et al. 2015)",
        size="10,000 questions a task; 16 MB to fetch",
        licence="CC BY 3.0",
        page="https://research.facebook.com/downloads/babi",
        layout="qa1_…_train.txt to qa20_…_test.txt",
    ),
    "MNLI": Known(
        title="MultiNLI as GLUE has it",
        size="392,702 pairs to train on",
        page="https://gluebenchmark.com/tasks",
        layout="train.tsv and dev_matched.tsv",
    ),
    "aclImdb": Known(
        title="IMDB's film reviews (Maas et al. 2011)",
        size="25,000 reviews to train on, 25,000 to test",
        page="https://ai.stanford.edu/~amaas/data/sentiment",
        layout="train/pos/*.txt, train/neg/*.txt and the same of test/",
    ),
    "squality": Known(
        title="SQuALITY 1.3",
        size="50 stories to train on, 25 for validation",
        licence="CC BY 4.0; the stories are Project Gutenberg's",
        page=f"{_GITHUB}/nyu-mll/SQuALITY",
        layout=f"{_JSONL}, the lines of data/v1-3/txt",
        names=("squality-questions",),
    ),
    "qmsum": Known(
        title="QMSum",
        size="162 meetings to train on, 35 for validation",
        licence="MIT; the meetings have their own",
        page=f"{_GITHUB}/Yale-LILY/QMSum",
        layout=f"{_JSONL}, a line for each file of data/ALL",
        names=("qmsum-queries",),
    ),
    "permissive": Known(
        title="papers, proposals and standards with their authors' abstracts, of 15 sources",
        size="4,876 documents to train on, 348 for validation",
        licence="CC0, CC BY, MIT, Apache 2.0 and BSD, one small source CC BY-SA",
        page="https://pmc.ncbi.nlm.nih.gov (the largest source; the collection itself is nowhere to be had)",
        layout="train-SOURCE.jsonl.xz and validation-SOURCE.jsonl.xz",
        names=("permissive-papers", "permissive-proposals"),
    ),
    "pubmed": Known(
        title="SumPubMed's papers in the fields of Cohan et al. 2018",
        size="500 papers to train on, 100 for validation",
        licence="MIT, for non-commercial academic purposes; the papers are CC BY",
        page=f"{_GITHUB}/vgupta123/sumpubmed",
        layout=_JSONL,
    ),
    "pubmed_more": Known(
        title="more of SumPubMed's papers",
        size="7,100 papers",
        licence="MIT, for non-commercial academic purposes; the papers are CC BY",
        page=f"{_GITHUB}/vgupta123/sumpubmed",
        layout="train.jsonl.gz and train-large.jsonl.xz",
        names=("pubmed-large",),
    ),
    "scisummnet": Known(
        title="ScisummNet, papers of the ACL with abstracts and summaries",
        size="696 papers to train on, 93 for validation",
        licence="CC BY 4.0",
        page=f"{_GITHUB}/WING-NUS/scisumm-corpus",
        layout=_JSONL,
        names=("scisummnet-human",),
    ),
    "scitldr_a": Known(
        title="SciTLDR-A",
        size="1,992 abstracts to train on, 619 for validation",
        licence="Apache 2.0",
        page=f"{_GITHUB}/allenai/scitldr",
        layout=_JSONL,
        names=("scitldr",),
    ),
    "crd3": Known(
        title="CRD3, a show's dialogues with summaries",
        size="127 episodes to train on, 16 for validation",
        licence="CC BY-SA 4.0",
        page=f"{_GITHUB}/RevanthRameshkumar/CRD3",
        layout=f"{_JSONL}, an episode a line",
        names=("crd3-synopsis",),
    ),
    "leval_subset": Known(
        title="samples of L-Eval",
        size="101 documents",
        licence="GPL-3.0; the documents have their own",
        page=f"{_GITHUB}/OpenLMLab/LEval",
        layout="gov_report_summ.jsonl.gz and the other tasks' files",
        names=("gov-report", "patents"),
    ),
    "hyperpartisan": Known(
        title="Hyperpartisan news, SemEval 2019 task 4, by article",
        size="516 articles to train on, 64 for validation",
        licence="CC BY 4.0; the articles are the papers'",
        page="https://zenodo.org/records/1489920",
        layout=_JSONL,
    ),
    "pg_novels": Known(
        title="novels of Project Gutenberg, LitBank's originals",
        size="56 books to train on, 5 for validation",
        licence="public domain in the US; the collection CC BY 4.0",
        page=_LITBANK,
        layout=f"{_JSONL}, a book a line",
    ),
    "wikitext2_sample": Known(
        title="a sample of WikiText-2",
        size="51 articles to train on, 9 for validation",
        licence="CC BY-SA 3.0",
        page="https://huggingface.co/datasets/Salesforce/wikitext",
        layout="train.txt.gz and validation.txt.gz",
    ),
}


class Catalogue(Mapping[str, Known]):
    """The data sets of this package and of all installed packages.

    A package adds its own with an entry point of the group `longspan.data_sets`: a mapping from the path below
    LONGSPAN_DATA to a `Known`.
    """

    @cached_property
    def _entries(self) -> dict[str, Known]:
        entries = dict(_OWN)
        for entry in added("data_sets"):
            entries |= load(entry)
        return entries

    def __getitem__(self, name: str) -> Known:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


KNOWN = Catalogue()
"""Path below LONGSPAN_DATA → data set."""


def known_name(source: str) -> str | None:
    """Returns the name in `KNOWN` of a data set, of a part of one, or of a file in it; otherwise None."""
    for name, known in KNOWN.items():
        if source == name or source in known.names or source.startswith(f"{name}/"):
            return name
    return None


def place_of(name: str) -> Path | None:
    """Returns the path of a data set, here or in LONGSPAN_DATA; None if it does not exist."""
    root = os.environ.get("LONGSPAN_DATA")
    for folder in (Path(), *([Path(root)] if root else [])):
        for file in (name, f"{name}.zip"):
            if (folder / file).exists():
                return folder / file
    return None


def missing(source: str, problem: str = "is not here, nor") -> InputError | None:
    """Returns the error for a missing data set of `KNOWN`, with `problem` as its verb; None for any other name."""
    name = known_name(source)
    if name is None:
        return None
    root = os.environ.get("LONGSPAN_DATA")
    place = f"LONGSPAN_DATA={root!r}" if root else "the folder that LONGSPAN_DATA names (it is not set)"
    return InputError(f"data={source!r} {problem} in {place}; {KNOWN[name].advice(name)}; `longspan data` lists all")
