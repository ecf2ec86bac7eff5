"""Summarises the results of all cells to a row for each mechanism, as a table in Markdown; and all cells as CSV."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from longspan.characters import counted
from longspan.compare.probes import PROBES
from longspan.compare.settings import Comparison, Result
from longspan.compare.skeleton import NEAR

COLUMNS = (
    *("task", "kind", "label", "mechanism", "tokens", "rows", "seed", "steps", "status"),
    *("score", "accuracy", "bits", "answers", "train_loss"),
    *("train_tokens_per_second", "inference_tokens_per_second", "train_bytes", "inference_bytes"),
    *("parameters", "target_parameters", "feed_forward", "form", "global_tokens", "options", "wall", "reason"),
    "machine",
)
"""Columns of the CSV."""
MEBI = 2**20
CONFIDENCE = 0.95
"""Confidence of the intervals of all scores together."""
CHANCE = " (chance)"
"""Follows a score that is no better than guessing."""


@dataclass
class Line:
    """The results of one mechanism with its options, a row of the table."""

    label: str
    scores: list[float] = field(default_factory=list)
    """The score of each seed."""
    as_trained: Result | None = None
    """Speed and memory with the batches of training."""
    curve: dict[int, Result] = field(default_factory=dict)
    """Length → speed and memory of one row."""
    by_distance: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Upper end of a range of distances → correct answers and answers of all seeds."""
    answers: int = 0
    """Number of answers of each seed's score."""
    at_chance: bool = False
    """Whether the score is not significantly above that of guessing."""
    untrained: list[int] = field(default_factory=list)
    """Seeds for which there was no time."""
    notes: list[str] = field(default_factory=list)
    """Notes for the reader."""

    @property
    def score(self) -> float | None:
        """The mean of the scores over the seeds; `None` if nothing was trained."""
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds, if there are several."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    def number(self, name: str) -> float | None:
        """Returns a measurement with the batches of training."""
        done = self.as_trained is not None and self.as_trained.status == "done"
        return self.as_trained.numbers.get(name) if done and self.as_trained is not None else None


def lines_of(comparison: Comparison, results: Sequence[Result], chance: float | None = None) -> list[Line]:
    """Returns a line for each mechanism: first by score; then those at chance, in the order in which they were named,
    since their differences are random; then those without a score.

    `chance` is the score of guessing without reading the input, if it is known.
    """
    lines = {label: Line(label) for label in comparison.labels}
    for result in results:
        _add(lines[result.cell.label], result, comparison)
    scored = sum(bool(line.scores) for line in lines.values())
    for line in lines.values():
        if line.score is not None and chance is not None:
            _compare_with_chance(line, line.score, chance, scored)
        _note(line, PROBES[comparison.task].forms[0])
    sign = 1 if PROBES[comparison.task].score != "accuracy" else -1

    def place(line: Line) -> tuple[bool, bool, float]:
        return line.score is None, line.at_chance, 0.0 if line.at_chance else sign * (line.score or 0.0)

    return sorted(lines.values(), key=place)


def _compare_with_chance(line: Line, score: float, chance: float, scored: int) -> None:
    """Mark a line whose interval includes chance.

    All seeds answer the same questions, so the number of questions does not increase with the seeds. With several
    mechanisms, each interval is wider, so that all of them together contain the true scores in 95 of 100 comparisons
    (Bonferroni).
    """
    low, high = wilson(score, line.answers, 1 - (1 - CONFIDENCE) / scored)
    line.at_chance = low <= chance
    if line.at_chance:
        line.notes.append(
            f"at chance, not ranked: its interval, {low:.3f} to {high:.3f} of {counted(line.answers, 'answer')}, "
            f"{'holds' if high >= chance else 'is below'} chance, {chance:.3f}"
        )


def wilson(share: float, count: int, confidence: float) -> tuple[float, float]:
    """Returns the interval of a share of `count` independent answers (Wilson 1927, the score interval of a binomial
    share)."""
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return middle - half, middle + half


def _add(line: Line, result: Result, comparison: Comparison) -> None:
    cell = result.cell
    if result.status in ("refused", "failed"):
        what = f"seed {cell.seed}" if cell.kind == "quality" else f"{cell.tokens:,} tokens"
        line.notes.append(result.reason if result.status == "refused" else f"{what} failed: {result.reason}")
    if cell.kind == "quality":
        if result.status == "left out":
            line.untrained.append(cell.seed)
        if result.status == "done":
            line.scores.append(result.numbers["score"])
            line.answers = int(result.numbers["answers"])
            for end, (right, asked) in result.by_distance.items():
                before = line.by_distance.get(int(end), (0, 0))
                line.by_distance[int(end)] = (before[0] + right, before[1] + asked)
        return
    if (cell.tokens, cell.rows) == (comparison.tokens, comparison.rows):
        line.as_trained = result
    if cell.rows == 1:
        line.curve[cell.tokens] = result


def _note(line: Line, form: str) -> None:
    """Add notes to a line that was run."""
    trained = line.as_trained
    line.notes = list(dict.fromkeys(line.notes))
    if trained is not None and trained.status == "left out" and not line.scores:
        line.untrained = line.untrained or [1]
    if line.untrained:
        seeds = f" with seed {', '.join(map(str, line.untrained))}" if line.scores else ""
        line.notes.append(f"not trained{seeds}, for want of time")
    if trained is None or trained.status != "done":
        return
    numbers = trained.numbers
    more = numbers["parameters"] / numbers["target_parameters"] - 1
    if abs(more) > NEAR:
        line.notes.append(f"{more:+.0%} weights, as its own are too many for the feed-forward layers to make up for")
    if trained.words["form"] != form:
        line.notes.append(f"run in its {trained.words['form']} form, as it has no other")
    out = [length for length, result in line.curve.items() if result.status == "left out"]
    if out:
        line.notes.append(f"{', '.join(f'{length:,}' for length in out)} tokens left out, for want of time")


HEADER = (
    *("mechanism", "score", "± over seeds", "tokens/s training", "tokens/s inference", "MiB training", "MiB inference"),
    *("weights", "feed-forward", "form", "notes"),
)
NUMBERS = {"train_tokens_per_second": 1, "inference_tokens_per_second": 1, "train_bytes": MEBI, "inference_bytes": MEBI}
NUMBERS |= {"parameters": 1, "feed_forward": 1}
"""Numbers of a cell in the table, with their units."""


def table_of(lines: Sequence[Line], score: str) -> tuple[list[str], list[list[str]]]:
    """Returns header and cells of the main table."""
    rows = []
    for line in lines:
        cells = [line.label, *("–" if number is None else f"{number:.3f}" for number in (line.score, line.spread))]
        cells[1] += CHANCE if line.at_chance else ""
        for name, unit in NUMBERS.items():
            value = line.number(name)
            cells.append("–" if value is None else f"{value / unit:,.0f}")
        form = "–" if line.as_trained is None else line.as_trained.words.get("form", "–")
        rows.append([*cells, form, "; ".join(line.notes)])
    return [score if name == "score" else name for name in HEADER], rows


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table for a terminal, with notes below it."""
    *names, _ = header
    shown = [names, *(row[:-1] for row in rows)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(names))]
    text = [
        "  ".join(
            cell.ljust(width) if not at else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in shown
    ]
    return "\n".join([*text, *(f"{row[0]}: {row[-1]}" for row in rows if row[-1])])


def as_csv(results: Sequence[Result]) -> str:
    """Format all cells as CSV, one per line."""
    written = io.StringIO()
    writer = csv.DictWriter(written, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for result in results:
        cell: dict[str, Any] = dict(result.cell.__dict__)
        options = " ".join(f"{name}={value}" for name, value in cell["options"].items())
        values = {**result.numbers, "form": result.words.get("form", "")}
        values |= {"global_tokens": result.words.get("global_tokens", ""), "wall": round(result.wall, 3)}
        values["machine"] = result.words.get("machine", "")
        writer.writerow({**cell, **values, "options": options, "status": result.status, "reason": result.reason})
    return written.getvalue()
