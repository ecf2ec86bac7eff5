"""How well `longspan answer` knows whether it found an answer, on questions with and without one.

LONGSPAN_DATA=… python benchmarks/answer_sureness.py [--weights FILE] [--name answers-sure]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from answer import area_interval
from answer_sets import Asked, asked_of_cases, looked_at, sets, stories, without_answer
from longspan.data.text.sentences import guess_language
from longspan.tasks.metrics.classification import calibration_error
from longspan_documents.inference.encoders import bundled_encoder
from longspan_documents.inference.passage_encoder import passage_encoder
from longspan_documents.inference.ranking import READ, SHOWN, WEIGHTS, Weights, load_weights
from measure import machine, shown, table, write_page

OF_THE_FIT = ("meetings", "proposals and papers", "stories")
"""Kinds whose training split the weights were fitted on; of the others, nothing was."""
ONE_IN, EXCHANGED = 4, 3
"""Of so many questions one is asked again after its answer was taken out, and with another name or number."""
ABOUT = """\
Every question of the sets of `benchmarks/answer.py`, and of stories (validation), is asked of its own document; half
of them of the next document of their kind; one in three with a name or number that its document lacks in the place of
one of its own; one in four after the passages that answer, and those beside them, were taken out. **Found:** one of
the three passages that are shown overlaps a place where the answer stands. The area is that under the curve of the
probability, for found against not, with its interval (95 %, bootstrap over questions); the calibration error is over
ten bins of equal width. *Kinds of the fit* are validation splits of what the weights were fitted on; nothing was
fitted on the others."""


@dataclass(frozen=True)
class Told:
    """One question.

    Attributes:
        there: whether the document has an answer.
        found: whether one of the passages shown is right.
        probability: as it is shown.
    """

    there: bool
    found: bool
    probability: float


def asked_of(kind: str, data: Path) -> list[Asked]:
    """Every question of a kind in the light of a document, with an answer and without."""
    read = (lambda: stories(data)) if kind == "stories" else sets(data)[kind][0]
    cases = [replace(case, source=kind) for case in read() if guess_language(case.document.text) == "en"]
    asked = asked_of_cases(cases, bundled_encoder(), exchanged=EXCHANGED, second=passage_encoder())
    answered = [one for one in asked if one.right.any()]
    return [*asked, *filter(None, map(without_answer, answered[::ONE_IN]))]


def told_of(asked: Sequence[Asked], first: Weights, weights: Weights) -> list[Told]:
    """What is said of each question, after a second look at the passages that are best by the weights `first`."""
    found = []
    for one in (looked_at(each, first) for each in asked):
        ranking = weights.ranking(one.evidence)
        right = one.right[list(ranking.order[:SHOWN])].any()
        found.append(Told(bool(one.right.any()), bool(right), ranking.probability))
    return found


def row_of(name: str, found: Sequence[Told], weights: Weights) -> list[str]:
    """Counts, area, calibration error, and how often what is said in words is right."""
    sure, right = np.array([one.probability for one in found]), np.array([one.found for one in found])
    silent = [one for one in found if one.probability < weights.threshold]
    likely = [one for one in found if one.probability >= weights.likely]
    there = sum(one.there for one in found)
    return [
        name,
        f"{there} + {len(found) - there}",
        f"{100 * right.mean():.0f}",
        shown(area_interval(found), digits=2),
        f"{calibration_error(sure, right, 10):.2f}",
        f"{sum(not one.there for one in silent)} of {len(silent)}",
        f"{sum(one.found for one in likely)} of {len(likely)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--name", default="answers-sure", help="of the page in benchmarks/results")
    options = parser.parse_args()
    data = Path(os.environ["LONGSPAN_DATA"])
    asked: dict[str, list[Asked]] = {}
    for kind in ("other kinds", "contracts", "HotpotQA", "Wikipedia", *OF_THE_FIT):
        asked[kind] = asked_of(kind, data)
        print(kind, len(asked[kind]), flush=True)
    fitted = load_weights(options.weights)
    weights = fitted[READ]
    groups = {kind: told_of(rows, fitted["meaning"], weights) for kind, rows in asked.items()}
    others = [one for kind, found in groups.items() if kind not in OF_THE_FIT for one in found]
    own = [one for kind in OF_THE_FIT for one in groups[kind]]
    rows = [row_of(kind, found, weights) for kind, found in groups.items()]
    rows += [row_of(name, found, weights) for name, found in (("kinds of the fit", own), ("others", others))]
    rows.append(row_of("all", own + others, weights))
    header = ["questions", "with + without an answer", "found, %", "area", "calibration error"]
    header += ['"probably not there": no answer in the document', '"likely": found']
    parts = [ABOUT, table(header, rows), f"{machine()}."]
    print(write_page(options.name, "How sure an answer is", parts).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
