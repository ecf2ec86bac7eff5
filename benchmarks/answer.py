"""Readers against the trivial ways to choose a paragraph, on the rows of Natural Questions in the data folder.

LONGSPAN_DATA=… python benchmarks/answer.py [--start runs/bundled-reader] [--folds 5] [--output results/…md]
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import re
import string
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path

import numpy as np

from longspan.data.questions.readers import QUESTIONS, parse_question, read_questions
from longspan.data.questions.rows import QuestionRow, Span
from longspan.data.sources import find_source
from longspan.data.summaries.readers import read_rows
from longspan.inference.answer import BUNDLED, load_reader
from longspan.tasks.metrics.bootstrap import bootstrap, bootstrap_difference
from longspan.tasks.questions.answering import answer_rows
from longspan.tasks.questions.document import kept_candidates
from longspan.tasks.questions.options import QuestionOptions
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train
from measure import RESULTS, machine
from rerank import features, leave_out

ABOUT = """\
There are 104 questions over 20 pages, with derived labels, 102 of them with an answer: too few for a score to be
proud of, enough to see whether something was learned. The recipes `nq-places` (from scratch) and `nq-small`
(from the bundled reader) are run five times, each time without the questions of four pages, which are then answered;
the first four pages are the data set's own validation split.
Intervals (95 %) are bootstraps over questions, and over pages, since the questions of a page are alike. "Fitted" is a
logistic regression over a dozen numbers per passage (`benchmarks/rerank.py`), fitted on the other pages too. Taught
and fitted methods choose among the first 16 passages of a page, trivial ones among all; 83 of the 102 answers are
among the first 16."""

ROOT = Path(__file__).parents[1]
TAUGHT, PLACES = (ROOT / "recipes" / name for name in ("nq-small.yaml", "nq-places.yaml"))
DATA = "natural-questions"
CLOZE = ("pg_novels", "squality", "scisummnet", "pubmed", "qmsum")
FOLD_PAGES = 4
PASSAGES = 16
"""As many as the recipe lets be answers."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Question:
    """One line of the data, whose page it is about, and the right answers."""

    line: str
    row: QuestionRow
    page: str

    @property
    def candidate(self) -> int | None:
        """The right passage."""
        return self.row.annotations[0].candidate

    @property
    def short(self) -> str:
        """The right short answer."""
        return " ".join(self.row.answer(span) for span in self.row.annotations[0].short)


@dataclass(frozen=True)
class Guess:
    """What a method answers: passages from the best down, and a short answer."""

    passages: tuple[int, ...]
    short: str = ""


def questions(split: str) -> list[Question]:
    """The answerable questions of a split."""
    found = []
    for path in find_source(DATA, split, QUESTIONS).files:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                row = parse_question(json.loads(line))
                found.append(Question(line, row, row.title or row.text[:80]))
    return [one for one in found if one.candidate is not None]


def folds() -> list[list[Question]]:
    """Groups of four pages: the data set's own validation pages, then the training pages in order."""
    training = questions("train")
    pages = list(dict.fromkeys(one.page for one in training))
    groups = [set(pages[start : start + FOLD_PAGES]) for start in range(0, len(pages), FOLD_PAGES)]
    return [questions("validation"), *([one for one in training if one.page in group] for group in groups)]


def first_paragraph(row: QuestionRow) -> Guess:
    """The paragraphs from the top down."""
    kept = kept_candidates(row, QuestionOptions(max_candidates=0))
    return Guess(tuple(index for index in kept if row.candidates[index].kind == "paragraph"))


def overlap(weigh: bool, only: str | None = None) -> Callable[[QuestionRow], Guess]:
    """Passages by how many words of the question they hold, each weighted by how rare it is among them, if so asked."""

    def choose(row: QuestionRow) -> Guess:
        kept = kept_candidates(row, QuestionOptions(max_candidates=0))
        kept = [index for index in kept if only in {None, row.candidates[index].kind}]
        words = [set(_WORD.findall(row.answer(row.candidates[index].span).lower())) for index in kept]
        holders = Counter(word for found in words for word in found)
        asked = set(_WORD.findall(row.question.lower()))
        weights = {word: math.log((len(kept) + 1) / (holders[word] + 0.5)) if weigh else 1.0 for word in asked}
        scores = [sum(weights[word] for word in asked & found) for found in words]
        order = sorted(range(len(kept)), key=lambda place: (-scores[place], place))
        return Guess(tuple(kept[place] for place in order))

    return choose


FIRST, MOST = "the first paragraph", "most words of the question"
BASELINES: dict[str, Callable[[QuestionRow], Guess]] = {
    FIRST: first_paragraph,
    MOST: overlap(weigh=False),
    "most words, weighted by rarity": overlap(weigh=True),
    "the same, paragraphs only": overlap(weigh=True, only="paragraph"),
}


def read(folder: Path, held_out: Sequence[Question], name: str, keep: Path | None = None) -> list[Guess]:
    """What a model answers; kept in its folder, or another, as answering takes minutes."""
    kept = (keep or folder) / f"answers-{name}.json"
    if not kept.is_file():
        reader = load_reader(folder)
        # As it was trained: only the first so many passages, of the reader that was not taught every one.
        task = load_recipe(folder / "recipe.yaml").build_task()
        answers = answer_rows(reader.model, reader.tokenizer, [one.row for one in held_out], task, 8)
        found = []
        for one, answer in zip(held_out, answers, strict=True):
            scores = [(score, index) for index, score in enumerate(answer.candidate_scores) if score is not None]
            order = [index for _, index in sorted(scores, key=lambda item: (-item[0], item[1]))]
            found.append({"passages": order[:10], "short": " ".join(one.row.answer(span) for span in answer.short)})
        kept.write_text(json.dumps(found))
    return [Guess(tuple(one["passages"]), one["short"]) for one in json.loads(kept.read_text())]


def judged(folder: Path, asked: Sequence[Question], keep: Path) -> list[list[float | None]]:
    """What the untaught reader thinks of the first passages of each page; kept in a folder."""
    kept = keep / f"scores-{PASSAGES}.json"
    if not kept.is_file():
        reader = load_reader(folder)
        task = replace(reader.task, max_candidates=PASSAGES)
        answers = answer_rows(reader.model, reader.tokenizer, [one.row for one in asked], task, 8)
        kept.write_text(json.dumps([answer.candidate_scores for answer in answers]))
    return json.loads(kept.read_text())


def fitted(groups: list[list[Question]], scores: list[list[float | None]] | None) -> list[Guess]:
    """The few weights of `rerank`, with or without the reader's score among the features."""
    each = iter(scores) if scores is not None else repeat(None)
    rows = [[features(one.row, PASSAGES, next(each)) for one in group] for group in groups]
    return [Guess(tuple(order)) for order in leave_out(rows)]


def run_fold(number: int, groups: list[list[Question]], start: Path | None, output: Path) -> Path:
    """Train without a group's pages, from a reader or from scratch; a run that is there is kept."""
    folder = output / f"fold-{number}"
    lines = [one.line for index, group in enumerate(groups) if index != number for one in group]
    output.mkdir(parents=True, exist_ok=True)
    data = {"train": output / f"train-{number}.jsonl", "validation": output / f"held-out-{number}.jsonl"}
    data["train"].write_text("".join(lines), encoding="utf-8")
    data["validation"].write_text("".join(one.line for one in groups[number]), encoding="utf-8")
    changes = [f"data.{part}=[{path}]" for part, path in data.items()]
    recipe = PLACES if start is None else TAUGHT
    changes += [] if start is None else [f"model.from={start}"]
    train(load_recipe(recipe, changes), folder, resume=folder.exists())
    return folder


def normal(text: str) -> list[str]:
    """Words as SQuAD's metric counts them: without capitals, punctuation and articles."""
    text = "".join(" " if mark in string.punctuation else mark for mark in text.lower())
    return [word for word in text.split() if word not in {"a", "an", "the"}]


def short_f1(guess: str, right: str) -> float:
    """F1 of the words."""
    ours, theirs = normal(guess), normal(right)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def values(guesses: Sequence[Guess], asked: Sequence[Question]) -> dict[str, list[float]]:
    """The measures of each question."""
    pairs = list(zip(guesses, asked, strict=True))
    return {
        "passage": [float(guess.passages[:1] == (one.candidate,)) for guess, one in pairs],
        "in the first three": [float(one.candidate in guess.passages[:3]) for guess, one in pairs],
        "short F1": [short_f1(guess.short, one.short) for guess, one in pairs],
    }


def by_page(scores: Sequence[float], asked: Sequence[Question]) -> tuple[float, float]:
    """Bootstrap interval of the mean where whole pages are drawn."""
    pages: dict[str, list[float]] = {}
    for score, one in zip(scores, asked, strict=True):
        pages.setdefault(one.page, []).append(score)
    groups, generator = list(pages.values()), np.random.default_rng(0)
    means = []
    for _ in range(2000):
        drawn = [score for index in generator.integers(len(groups), size=len(groups)) for score in groups[index]]
        means.append(sum(drawn) / len(drawn))
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def table(methods: dict[str, list[Guess]], asked: Sequence[Question]) -> list[str]:
    """A markdown table of every method, with its lead over the trivial ones."""
    lines = [
        "| method | right passage | 95 % over questions | over pages | in the first three | short F1 | "
        f"over {FIRST} | over {MOST} | in the first three, over {FIRST} | in the first three, over {MOST} |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    plain = [values(methods[name], asked) for name in (FIRST, MOST)]
    for name, guesses in methods.items():
        found = values(guesses, asked)
        passage, pages = bootstrap(found["passage"]), by_page(found["passage"], asked)
        short = f"{100 * np.mean(found['short F1']):.1f}" if any(guess.short for guess in guesses) else "–"
        leads = [
            lead(found[measure], other[measure], asked) if name not in BASELINES else ""
            for measure in ("passage", "in the first three")
            for other in plain
        ]
        lines.append(
            f"| {name} | {sum(found['passage']):.0f} of {len(asked)}, {100 * passage.mean:.1f} % | "
            f"{100 * passage.low:.1f}–{100 * passage.high:.1f} | {100 * pages[0]:.1f}–{100 * pages[1]:.1f} | "
            f"{100 * np.mean(found['in the first three']):.1f} % | {short} | {' | '.join(leads)} |"
        )
    return lines


def lead(ours: Sequence[float], theirs: Sequence[float], asked: Sequence[Question]) -> str:
    """The difference with its intervals over questions and over pages."""
    difference = bootstrap_difference(ours, theirs)
    pages = by_page([one - other for one, other in zip(ours, theirs, strict=True)], asked)
    return (
        f"{100 * difference.mean:+.1f} ({100 * difference.low:+.1f} to {100 * difference.high:+.1f}; "
        f"pages {100 * pages[0]:+.1f} to {100 * pages[1]:+.1f})"
    )


def cloze(folder: Path, count: int) -> list[str]:
    """Made-up questions over long parts of validation documents: the right passages, and silence told from sound."""
    reader = load_reader(folder)
    sys.path.append(str(ROOT / "recipes"))
    from cloze_questions import ClozeOptions, cloze_rows, paragraphs_of

    options = ClozeOptions(min_words=3000, max_words=6000, unanswerable=0.35)
    lines = [
        "| documents | questions | right passage | most words, weighted | short F1 | answer told from none (AUC) |",
        "|---|---|---|---|---|---|",
    ]
    choose = overlap(weigh=True)
    every: list[tuple[float, bool]] = []
    scored: list[tuple[float, float]] = []
    for source in CLOZE:
        draw = random.Random(0)
        documents = [paragraphs_of(row, draw) for row in read_rows(source, "validation")]
        documents = [paragraphs for paragraphs in documents if len(paragraphs) > 3]
        rows = list(cloze_rows(documents, count, seed=7, options=options))
        pairs = list(zip(rows, answer_rows(reader.model, reader.tokenizer, rows, reader.task, 8), strict=True))
        told = [(answer.probability, row.annotations[0].candidate is not None) for row, answer in pairs]
        pairs = [(row, answer) for row, answer in pairs if row.annotations[0].candidate is not None]
        right = [answer.candidate == row.annotations[0].candidate for row, answer in pairs]
        plain = [choose(row).passages[0] == row.annotations[0].candidate for row, _ in pairs]
        shorts = [
            (answer.short_score, short_f1(*map(words_of_spans(row), (answer.short, row.annotations[0].short))))
            for row, answer in pairs
            if row.annotations[0].short
        ]
        every += told
        scored += shorts
        lines.append(
            f"| {source} | {len(rows)}, {len(pairs)} with an answer | {100 * np.mean(right):.0f} % | "
            f"{100 * np.mean(plain):.0f} % | {100 * np.mean([f1 for _, f1 in shorts]):.0f} | {area(told):.2f} |"
        )
    shares = [
        f"{limit}: {100 * np.mean([p >= limit for p, has in every if has]):.0f} % / "
        f"{100 * np.mean([p < limit for p, has in every if not has]):.0f} %"
        for limit in (0.5, 0.7, 0.8, 0.9, 0.95)
    ]
    lines += ["", "Answered where there is one / silent where there is none, by threshold: " + "; ".join(shares) + "."]
    kept = {limit: [f1 for score, f1 in scored if score > limit] for limit in (0, 1, 2, 3, 4, 6, 8)}
    precise = [
        f"{limit}: {100 * len(f1s) / len(scored):.0f} % of them, F1 {100 * np.mean(f1s):.0f}"
        for limit, f1s in kept.items()
        if f1s
    ]
    return [*lines, "", "Short answers with a score above a limit: " + "; ".join(precise) + "."]


def words_of_spans(row: QuestionRow) -> Callable[[Sequence[Span]], str]:
    """The text of some spans of a row."""
    return lambda spans: " ".join(row.answer(span) for span in spans)


def area(told: Sequence[tuple[float, bool]]) -> float:
    """Probability that a question with an answer gets a higher probability than one without (ROC area)."""
    sound, silent = [p for p, has in told if has], [p for p, has in told if not has]
    return float(np.mean([(one > other) + 0.5 * (one == other) for one in sound for other in silent]))


def tydi(folder: Path) -> list[str]:
    """The samples of TyDi QA through the same code."""
    reader = load_reader(folder)
    outcome = reader.task.evaluate(reader.model, reader.tokenizer, list(read_questions("tydiqa")), batch_size=8)
    shown = ", ".join(f"{name} {value:.1f}" for name, value in outcome.scores.items() if name.endswith("_f1"))
    return [f"TyDi QA, {len(outcome.lines)} rows of eleven languages, no training on any of them: {shown}."]


def main() -> None:
    """Train and answer every fold, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reader", type=Path, default=BUNDLED, help="judged as it is, and by its scores")
    parser.add_argument(
        "--start", type=Path, default=ROOT / "runs" / "bundled-reader", help="what folds are taught from"
    )
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "nq-folds")
    parser.add_argument("--folds", type=int, default=5, help="run only the first so many")
    parser.add_argument("--cloze", type=int, default=30, help="made-up questions for each kind of document")
    parser.add_argument("--note", default="", help="a line below the machine's name")
    parser.add_argument("--output", type=Path, default=RESULTS / "natural-questions.md")
    options = parser.parse_args()
    groups = folds()
    untaught, taught, scratch, asked = [], [], [], []
    for number, group in enumerate(groups[: options.folds]):
        folder = run_fold(number, groups, options.start, options.runs)
        asked += group
        taught += read(folder, group, f"fold-{number}")
        scratch += read(run_fold(number, groups, None, options.runs / "places"), group, f"fold-{number}")
        untaught += read(options.reader, group, f"fold-{number}", options.runs) if number == 0 else []
        sys.stdout.write(f"fold {number}: {sum(values(taught, asked)['passage']):.0f} of {len(asked)} right\n")
    scores = judged(options.reader, asked, options.runs)
    methods = {"a reader from scratch, told of places and kinds": scratch, "the bundled reader, taught": taught}
    methods |= {"place, kind and words, fitted": fitted(groups, None)}
    methods |= {"the same and the bundled reader's score": fitted(groups, scores)}
    methods |= {name: [choose(one.row) for one in asked] for name, choose in BASELINES.items()}
    count = len(groups[0])
    first = {name: guesses[:count] for name, guesses in methods.items()} | {"the bundled reader, untaught": untaught}
    lines = [
        "# Natural Questions, the derived rows",
        "",
        machine(),
        *([options.note] if options.note else []),
        "",
        ABOUT,
        "",
    ]
    lines += [f"## All {len(asked)} questions, each answered without its page", "", *table(methods, asked), ""]
    lines += [f"## The {count} questions of the validation split", "", *table(first, asked[:count]), ""]
    lines += ["## TyDi QA", "", *tydi(options.runs / "fold-0"), ""]
    lines += ["## The bundled reader on made-up questions over thousands of words", ""]
    lines += [*cloze(options.reader, options.cloze), ""]
    options.output.write_text("\n".join(lines), encoding="utf-8")
    sys.stdout.write(f"{options.output}\n")


if __name__ == "__main__":
    main()
