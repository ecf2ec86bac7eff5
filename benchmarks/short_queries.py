"""Summaries with a query of short documents: whether an answering sentence is picked, and queries that nothing answers.

    LONGSPAN_DATA=… OMP_NUM_THREADS=1 python benchmarks/short_queries.py [--most 40] [--quick] [--read 20]

Documents are short ones, or windows of 10 to 150 sentences of long ones around an answer. Each method picks as many
sentences as a summary of default length has. `results/short-queries.md` is written from it; `--read` prints summaries.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np

from answer_sets import SHORT, Case, Span, annotated, contracts, hotpotqa, natural, qmsum
from longspan.data.jsonl import read_jsonl
from longspan.tasks.metrics.bootstrap import bootstrap_difference
from longspan_documents.inference.ranking import WordIndex, query_stems
from longspan_documents.inference.results import Extent
from longspan_documents.inference.summarize import WEIGHTS, Extractive, PackageScorer, embedded_sentences
from longspan_documents.summaries import query as relevance
from longspan_documents.summaries.picker import Picker
from longspan_documents.summaries.selection import default_count, ranking
from longspan_documents.text.blocks import Document
from longspan_documents.text.reading import DocumentSentence, document_of, sentences_of
from measure import machine, shown, table, write_page
from minilm import minilm
from summary_methods import encoder_of

CHOSEN = ("HotpotQA", "contracts", "meetings")
"""Sets that the method was chosen on."""
LENGTHS = 10, 150
"""Sentences of a window."""
FEWEST, SHARE, LEAST = 8, 0.2, 3
"""Sentences of a document; and of those that answer, at most this share or number."""
MEETINGS, MARKED = 120, 1500
"""Queries of training meetings that are tried, and the most characters that people marked as answering one."""
VERBATIM = 15
"""Characters of an answer about a paper that is looked for in it."""
OURS, BEFORE, LEXICAL, ENCODER = "ours", "ours before", "BM25", "bundled encoder"
ABOUT = """\
**Hit**: the share of queries, in percent, for which the summary of default length (3 to 6 sentences, more in the few
longer documents) contains a sentence that answers; for HotpotQA a supporting one. Each method picks as many sentences.
`ours before`: relevance adds to the covered words of a summary as in long conversations and stories, whatever the
document. BM25 and the encoder's cosines rank single sentences. Differences: 95 %, paired bootstrap over queries, ours
less the row.

The method was chosen on {chosen}, with a look at all others but the papers."""
ABOUT_ABSENT = """\
**False notes**: the share of the queries above, in percent, for which a note says that nothing in the document seems to
concern them. **Found**: the share of queries of another document, one of the same set and one of another set, for which
it does. (Of contracts only those of another set, since each clause is looked for in every contract.)"""


@dataclass(frozen=True, kw_only=True)
class Item:
    """A short document, a query, and the indices of the sentences that answer.

    Attributes:
        of: its set.
        source: beginning of the document that it is from.
    """

    of: str
    source: str
    document: Document
    found: tuple[DocumentSentence, ...]
    query: str
    right: frozenset[int]

    @property
    def texts(self) -> list[str]:
        """Its sentences."""
        return [sentence.text for sentence in self.found]


def items(data: Path, most: int | None = None) -> Iterator[Item]:
    """The items of every set, or the first so many of each."""
    sets: dict[str, Callable[[], Iterator[Case]]] = {
        "HotpotQA": lambda: hotpotqa(data),
        "contracts": lambda: contracts(data),
        "meetings": lambda: _briefly_marked(qmsum(data, "train")),
        "natural": lambda: natural(data),
        "Wikipedia": lambda: annotated("natural-questions"),
        "short": lambda: natural(data, SHORT),
        "papers": lambda: papers(data),
    }
    for name, cases in sets.items():
        pairs = [(case, *asked) for case in cases() for asked in case.questions if asked[1]]
        whole = name in {"HotpotQA", "short"}
        tried = pairs[:MEETINGS] if name == "meetings" else pairs
        made = (
            _item(name, case, case.document.text, query, spans) if whole else _window(name, case, query, spans, number)
            for number, (case, query, spans) in enumerate(tried)
        )
        yield from islice((one for one in made if one is not None), most)


def _briefly_marked(cases: Iterator[Case]) -> Iterator[Case]:
    for case in cases:
        asked = tuple(each for each in case.questions if sum(end - start for start, end in each[1]) <= MARKED)
        yield Case(case.source, case.document, asked)


def papers(data: Path) -> Iterator[Case]:
    """Papers and questions of readers whose answer stands in the paper in these words."""
    for _, row in read_jsonl(data / "leval_subset" / "scientific_qa.jsonl.gz"):
        asked = []
        for question, answer in zip(row["instructions"], map(str.strip, row["outputs"]), strict=True):
            place = row["input"].find(answer)
            if len(answer) >= VERBATIM and place >= 0 and row["input"].count(answer) == 1:
                asked.append((question, ((place, place + len(answer)),)))
        yield Case("papers", document_of(row["input"]), tuple(asked))


def _window(name: str, case: Case, query: str, spans: Sequence[Span], number: int) -> Item | None:
    sentences, text = list(sentences_of(case.document)), case.document.text
    inside = [index for index, one in enumerate(sentences) if any(one.start < e and one.end > b for b, e in spans)]
    if not inside:
        return None
    draw = Random(f"{name}{number}")
    count = round(math.exp(draw.uniform(*map(math.log, LENGTHS))))
    first = draw.randint(max(0, inside[0] - count + 1), inside[0])
    begin = text.rfind("\n", 0, sentences[first].start) + 1
    end = sentences[min(first + count, len(sentences)) - 1].end
    return _item(
        name, case, text[begin:end], query, [(b - begin, e - begin) for b, e in spans if b < end and e > begin]
    )


def _item(name: str, case: Case, text: str, query: str, spans: Sequence[Span]) -> Item | None:
    document = document_of(text)
    found = tuple(sentences_of(document))
    right = [
        index for index, one in enumerate(found) if any(one.start < end and one.end > start for start, end in spans)
    ]
    if len(found) < FEWEST or not right or len(right) > max(LEAST, SHARE * len(found)):
        return None
    return Item(
        of=name, source=case.document.text[:100], document=document, found=found, query=query, right=frozenset(right)
    )


class Methods:
    """The methods: the indices that each picks."""

    def __init__(self) -> None:
        self.encoder = encoder_of(None)
        self.scorer = PackageScorer(Picker.load(WEIGHTS), self.encoder)  # pyright: ignore[reportArgumentType]
        self.teacher = minilm()

    def every(self) -> dict[str, Callable[[Item], Sequence[int]]]:
        """By name."""
        methods: dict[str, Callable[[Item], Sequence[int]]] = {
            OURS: self.ours,
            BEFORE: self.before,
            LEXICAL: lambda item: best(item, WordIndex(item.texts, "en").scores(query_stems(item.query, "en"))),
            ENCODER: lambda item: best(
                item, self.encoder.read_document(item.texts)[0] @ self.encoder.embed([item.query])[0]
            ),
        }
        if (teacher := self.teacher) is not None:
            methods["MiniLM"] = lambda item: best(
                item, teacher.embed_document(item.texts) @ teacher.embed([item.query])[0]
            )
        return methods

    def ours(self, item: Item) -> list[int]:
        """By the package."""
        places = {sentence.start: index for index, sentence in enumerate(item.found)}
        summary = Extractive(self.scorer, english_only=True).summarize(item.document, Extent(), item.query)
        return [places[sentence.start] for sentence in summary.sentences if sentence.start is not None]

    def before(self, item: Item) -> list[int]:
        """By the package, as if every document were a long conversation."""
        with patch.object(relevance, "shortness", lambda _: 0.0), patch.object(relevance, "WRITTEN", 0.0):
            return self.ours(item)

    def absent(self, item: Item, query: str) -> bool:
        """Whether a summary says that nothing concerns a query."""
        document = embedded_sentences(item.document, item.found, self.encoder)[0]  # pyright: ignore[reportArgumentType]
        return relevance.is_absent(document, query, self.encoder.embed([query])[0])


def best(item: Item, scores: np.ndarray) -> list[int]:
    """As many of the best as a summary of default length has."""
    return ranking(scores)[: default_count(len(item.found))]


def foreign_queries(every: Sequence[Item], number: int) -> Iterator[str]:
    """Queries of two other documents than that of an item: of its set, and of another one."""
    item, draw = every[number], Random(number)
    same = [one for one in every if one.of == item.of and one.source != item.source]
    if same and item.of != "contracts":
        yield draw.choice(same).query
    others = [one for one in every if one.of != item.of and {one.of, item.of} != {"contracts", "natural"}]
    if others:
        yield draw.choice(others).query


def main() -> int:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five queries of each set; writes no page")
    parser.add_argument("--most", type=int, default=40, help="queries of each set")
    parser.add_argument("--read", type=int, default=0, help="number of summaries to print")
    options = parser.parse_args()
    every = list(items(Path(os.environ["LONGSPAN_DATA"]), 5 if options.quick else options.most))
    methods = Methods()
    names = list(dict.fromkeys(item.of for item in every))
    of = np.array([names.index(item.of) for item in every])
    hits, picks = {}, {}
    for name, method in methods.every().items():
        picks[name] = [method(item) for item in every]
        hits[name] = np.array([bool(item.right & set(chosen)) for item, chosen in zip(every, picks[name], strict=True)])
        print(name, *(f"{each} {100 * hits[name][of == n].mean():.1f}" for n, each in enumerate(names)), flush=True)
    rows = []
    for name, own in hits.items():
        gap = bootstrap_difference((100.0 * hits[OURS]).tolist(), (100.0 * own).tolist())
        shares = [f"{100 * own[of == number].mean():.1f}" for number in range(len(names))]
        rows.append([name, *shares, f"{100 * own.mean():.1f}", "" if name == OURS else shown(gap, signed=True)])
    counts = ["number of queries", *(str((of == number).sum()) for number in range(len(names))), str(len(every)), ""]
    false = np.array([methods.absent(item, item.query) for item in every])
    asked = [(n, [methods.absent(every[n], q) for q in foreign_queries(every, n)]) for n in range(len(every))]
    notes = [["false notes"], ["found"]]
    for number in range(len(names)):
        notes[0].append(f"{100 * false[of == number].mean():.1f}")
        notes[1].append(f"{100 * np.mean([one for n, each in asked if of[n] == number for one in each]):.1f}")
    notes[0].append(f"{100 * false.mean():.1f}")
    notes[1].append(f"{100 * np.mean([one for _, each in asked for one in each]):.1f}")
    print(*notes, sep="\n")
    for index in Random(0).sample(range(len(every)), min(options.read, len(every))):
        item = every[index]
        print(f"\n[{item.of}] {item.query}{' (note: absent)' * bool(false[index])}")
        print(*(f"{'+' if n in item.right else '-'} {item.texts[n]}" for n in picks[OURS][index]), sep="\n")
    if not options.quick:
        about = ABOUT.format(chosen=", ".join(CHOSEN[:-1]) + f" and {CHOSEN[-1]}")
        hit_table = table(["picked by", *names, "all", "ours − it"], [*rows, counts])
        parts = [
            about,
            hit_table,
            "## Absent queries",
            ABOUT_ABSENT,
            table(["", *names, "all"], notes),
            f"{machine()}.",
        ]
        write_page("short-queries", "Summaries with a query of short documents", parts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
