"""The bundled summarizer against lead, TextRank and LexRank: ROUGE with bootstrap intervals, equal length for all.

Every method ranks the sentences of the same list. Its summary is filled in rank order to the same number of words,
the median length of the training references of the data set, and the last sentence is cut there; then the sentences
are put into the document's order. So no method gains by being longer, or by taking long sentences. TextRank and LexRank
are those of `sumy` with its English stemmer and stop words. The oracle ranks by the labels themselves, computed from
the references: what a perfect scorer would reach.

    LONGSPAN_DATA=… python benchmarks/summarize.py [--model DIR] [--quick] [--output results/summarize.md]
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longspan.data.summaries.readers import read_rows
from longspan.data.summaries.rows import SummaryRow
from longspan.data.text.words import split_words
from longspan.inference.summarize import load_summarizer
from longspan.tasks.metrics.bootstrap import bootstrap, bootstrap_difference
from longspan.tasks.metrics.rouge import Rouge
from longspan.tasks.summaries.salience import salience, words_of
from longspan.tasks.summaries.selection import fill, ranking
from measure import RESULTS, machine

DATA_SETS = ("pubmed", "scisummnet", "squality", "qmsum")
MEASURES = ("rouge1", "rouge2", "rougeLsum")
OURS, LEAD, ORACLE = "longspan", "lead", "oracle"
Ranker = Callable[[SummaryRow], Sequence[float]]
"""A row → one score per sentence."""


@dataclass
class Result:
    """One method on one data set; `seconds` are of the processor, so that a busy machine changes little."""

    values: dict[str, list[float]]
    seconds: list[float] = field(default_factory=list)


class Words:
    """A tokenizer in sumy's interface that needs no download."""

    def to_words(self, sentence: str) -> list[str]:
        return re.findall(r"[^\W\d_]+(?:'\w+)?", sentence.lower())


def peer(kind: str) -> Ranker:
    """A summarizer of sumy that gives its scores instead of its choice."""
    from sumy.models.dom import ObjectDocumentModel, Paragraph, Sentence
    from sumy.nlp.stemmers import Stemmer
    from sumy.summarizers.lex_rank import LexRankSummarizer
    from sumy.summarizers.text_rank import TextRankSummarizer
    from sumy.utils import get_stop_words

    base: Any = {"textrank": TextRankSummarizer, "lexrank": LexRankSummarizer}[kind]

    class Scores(base):
        found: dict[Any, float]

        def _get_best_sentences(self, sentences: Any, count: Any, rating: Any, *rest: Any) -> tuple[()]:
            self.found = rating
            return ()

    def rank(row: SummaryRow) -> list[float]:
        summarizer = Scores(Stemmer("english"))
        summarizer.stop_words = get_stop_words("english")
        sentences = [Sentence(text, Words()) for text in row.sentences]
        summarizer(ObjectDocumentModel([Paragraph(sentences)]), 1)
        return [summarizer.found[sentence] for sentence in sentences]

    return rank


def oracle(row: SummaryRow) -> Sequence[float]:
    return salience([words_of(text) for text in row.sentences], [words_of(text) for text in row.references]).tolist()


def run(rows: list[SummaryRow], words: int, rankers: dict[str, Ranker], block: bool) -> dict[str, Result]:
    """All methods on the rows of one data set."""
    rouge = Rouge(stemmer=True)
    references = [row.references for row in rows]
    results = {}
    for name, rank in rankers.items():
        texts, seconds = [], []
        for row in rows:
            start = time.process_time()
            scores = rank(row)
            seconds.append(time.process_time() - start)
            picked = fill(row.sentences, ranking(scores), words, block_repeats=block and name == OURS)
            texts.append("\n".join(picked))
        results[name] = Result(rouge.rows(texts, references), seconds)
        means = ", ".join(f"{measure} {statistics.mean(results[name].values[measure]):.2f}" for measure in MEASURES)
        print(f"  {name:10} {means}  ({statistics.mean(seconds):.2f} CPU s a document)", flush=True)
    return results


def budget(name: str) -> int:
    """Median number of words of the data set's training references."""
    lengths = [len(split_words(text)) for row in read_rows(name, "train") for text in row.references]
    return int(statistics.median(lengths))


def table(name: str, rows: list[SummaryRow], words: int, results: dict[str, Result]) -> list[str]:
    """One data set in Markdown: means with 95 % intervals, and our lead over each method with its interval."""
    lengths = [sum(map(len, map(split_words, row.sentences))) for row in rows]
    lines = [
        f"## {name}",
        "",
        f"{len(rows)} documents (validation), median {statistics.median(lengths):,.0f} words; summaries of {words} "
        f"words; {len(rows[0].references)} reference{'s' if len(rows[0].references) > 1 else ''}.",
        "",
        "| method | ROUGE-1 | ROUGE-2 | ROUGE-Lsum | ours better by: ROUGE-1 | ROUGE-2 | CPU seconds a document |",
        "|---|---|---|---|---|---|---|",
    ]
    for method, result in results.items():
        cells = [method]
        for measure in MEASURES:
            mean, low, high = bootstrap(result.values[measure])
            cells.append(f"{mean:.2f} ({low:.1f} to {high:.1f})")
        for measure in MEASURES[:2]:
            if method in (OURS, ORACLE):
                cells.append("")
                continue
            mean, low, high = bootstrap_difference(results[OURS].values[measure], result.values[measure])
            cells.append(f"{mean:+.2f} ({low:+.2f} to {high:+.2f})")
        cells.append(f"{statistics.mean(result.seconds):.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def verdict(everything: dict[str, dict[str, Result]]) -> str:
    """On which data sets every peer is beaten on ROUGE-1 and ROUGE-2, and on which beyond chance."""
    won, surely = [], []
    for name, results in everything.items():
        pairs = [
            bootstrap_difference(results[OURS].values[measure], result.values[measure])
            for method, result in results.items()
            if method not in (OURS, ORACLE)
            for measure in MEASURES[:2]
        ]
        if all(pair.mean > 0 for pair in pairs):
            won.append(name)
        if all(pair.low > 0 for pair in pairs):
            surely.append(name)
    named = ", ".join(won) or "no data set"
    sure = ", ".join(surely) or "none of them"
    return f"Higher than every peer on ROUGE-1 and ROUGE-2: {named}. With the whole 95 % interval: {sure}."


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The bundled summarizer against lead, TextRank and LexRank.")
    parser.add_argument("--model", help="folder of another sentence scorer")
    parser.add_argument("--data", nargs="+", default=list(DATA_SETS))
    parser.add_argument("--limit", type=int, help="only so many documents of each data set")
    parser.add_argument("--quick", action="store_true", help="five documents of each data set, nothing written")
    parser.add_argument("--block", action="store_true", help="pass over near repeats in our summaries")
    parser.add_argument("--without-peers", action="store_true", help="only lead and ours (TextRank is slow)")
    parser.add_argument("--output", type=Path, default=RESULTS / "summarize.md")
    options = parser.parse_args(arguments)
    summarizer: Any = load_summarizer(options.model)
    rankers: dict[str, Ranker] = {
        OURS: lambda row: summarizer.score(list(row.sentences))[0],
        LEAD: lambda row: [-index for index in range(len(row.sentences))],
    }
    if not options.without_peers:
        rankers |= {"textrank": peer("textrank"), "lexrank": peer("lexrank")}
    rankers[ORACLE] = oracle
    everything, pages = {}, []
    for name in options.data:
        rows = list(read_rows(name, "validation", limit=5 if options.quick else options.limit))
        words = budget(name)
        print(f"{name}: {len(rows)} documents, {words} words", flush=True)
        for row in rows:
            row.sentences  # noqa: B018 (found on first use; not a part of any method's time)
        everything[name] = run(rows, words, rankers, options.block)
        pages += table(name, rows, words, everything[name])
    print(verdict(everything))
    if not (options.quick or options.limit or options.without_peers):
        options.output.parent.mkdir(exist_ok=True)
        options.output.write_text("\n".join([*_head(), verdict(everything), "", *pages]), encoding="utf-8")
        print(f"wrote {options.output}")
    return 0


def _head() -> list[str]:
    how = " ".join((__doc__ or "").split("\n\n")[1].split())
    return [
        "# Summaries by the bundled model",
        "",
        how,
        "",
        f"{Rouge(stemmer=True).flavour}. Intervals: 95 %, bootstrap over documents (2 000 draws), in pairs for "
        f"differences. Machine: {machine()}.",
        "",
    ]


if __name__ == "__main__":
    sys.exit(main())
