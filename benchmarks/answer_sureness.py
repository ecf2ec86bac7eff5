"""How well `longspan answer` knows whether it found an answer, on questions with and without one.

LONGSPAN_DATA=… python benchmarks/answer_sureness.py [--weights FILE] [--most 20] [--features FOLDER]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

from answer_sets import (
    Asked,
    Case,
    asked_of_cases,
    by_one_encoder,
    looked_at,
    save,
    saved,
    sets,
    stories,
    without_answer,
)
from longspan.data.text.sentences import guess_language
from longspan_documents.inference.encoders import bundled_encoder
from longspan_documents.inference.passage_encoder import passage_encoder
from longspan_documents.inference.ranking import (
    LIKELY,
    READ,
    SHOWN,
    UNLIKELY,
    WEIGHTS,
    Evidence,
    Weights,
    load_weights,
)
from measure import machine, table, write_page

OF_THE_FIT = ("meetings", "proposals and papers", "stories")
"""Kinds whose training split the weights were fitted on; of the others, nothing was."""
ONE_IN, EXCHANGED = 4, 3
"""Of so many questions one is asked again after its answer was taken out, and with another name or number."""
SHARES = (1 / 3, 1 / 2, 2 / 3, 9 / 10)
"""Shares of questions with an answer."""
ABOUT = """\
Questions of the sets of `benchmarks/answer.py`, and of stories (validation), are asked of their own document; half of
them of the next document of their kind, unless other documents are asked them too (the clauses of contracts are); one
in three with a name or number that its document lacks in the place of one of its own; one in four after the passages
that answer, and those beside them, were taken out, and every one of contracts. The documents of a kind are drawn once.

**The same questions are counted for four shares of questions with an answer**: those with one count as much together
as the share says, and that share is what `answerable` is told. **Found:** one of the three passages that are shown
overlaps a place where the answer stands. The calibration error is that of the probability of this, over ten bins of
equal width. *Not there* is said where the document holds an answer with a probability below {unlikely}, and right where
it holds none; *likely* from {likely} on, and right where one was found. Behind a share is how often it was said of how
many questions. In brackets the interval (95 %, bootstrap over questions). *Kinds of the fit* are validation splits of
what the weights were fitted on; nothing was fitted on the others, and each kind counts the same. The features and the
bounds were chosen with an eye on contracts, HotpotQA and Wikipedia, never on the other kinds."""


@dataclass(frozen=True)
class Told:
    """One question.

    Attributes:
        there: whether the document has an answer.
        found: whether one of the passages shown is right.
        rankings: for each of `SHARES` the probability that there is an answer, and that it was found.
    """

    there: bool
    found: bool
    rankings: tuple[tuple[float, float], ...]


def cases_of(kind: str, data: Path, most: int) -> list[Case]:
    """At most so many English documents of a kind, drawn once."""
    read = (lambda: stories(data)) if kind == "stories" else sets(data)[kind][0]
    cases = [replace(case, source=kind) for case in read() if guess_language(case.document.text) == "en"]
    Random(1).shuffle(cases)
    return cases[:most]


def with_removed(asked: list[Asked], kind: str) -> list[Asked]:
    """The questions, and some of those with an answer after it was taken out."""
    answered = [one for one in asked if one.right.any()]
    return [*asked, *filter(None, map(without_answer, answered[:: 1 if kind == "contracts" else ONE_IN]))]


def told_of(asked: Sequence[Asked], weights: Weights, first: Weights | None) -> list[Told]:
    """What is said of each question; after a second look at the passages that are best by the weights `first`."""
    found = []
    for one in asked if first is None else (looked_at(each, first) for each in asked):
        rankings = [weights.ranking(one.evidence, share) for share in SHARES]
        right = one.right[list(rankings[0].order[:SHOWN])].any()
        pairs = tuple((ranking.there, ranking.probability) for ranking in rankings)
        found.append(Told(bool(one.right.any()), bool(right), pairs))
    return found


@dataclass(frozen=True)
class Counted:
    """Questions at one share, `(N,)` each."""

    count: np.ndarray
    there: np.ndarray
    found: np.ndarray
    told_there: np.ndarray
    told_found: np.ndarray


def counted(groups: Sequence[list[Told]], place: int) -> Counted:
    """The questions of kinds, each of which counts the same, at the share with this index."""
    parts = []
    for group in groups:
        there = np.array([one.there for one in group])
        share = SHARES[place]
        count = np.where(there, share / max(there.sum(), 1), (1 - share) / max((~there).sum(), 1))
        told = np.array([one.rankings[place] for one in group])
        parts.append((count, there, np.array([one.found for one in group]), told[:, 0], told[:, 1]))
    return Counted(*map(np.concatenate, zip(*parts, strict=True)))


def weighted_share(count: np.ndarray, right: np.ndarray, said: np.ndarray, samples: int = 1000) -> str:
    """The share of what is right among what was said, with its bootstrap interval and numbers."""
    if not said.any():
        return f"– (0 of {len(said)})"
    random = np.random.default_rng(0)
    count, good = count[said], right[said]
    rows = random.integers(len(count), size=(samples, len(count)))
    low, high = np.quantile((count * good)[rows].sum(1) / count[rows].sum(1), [0.025, 0.975])
    share = (count * good).sum() / count.sum()
    return f"{100 * share:.0f} ({100 * low:.0f}, {100 * high:.0f}); {len(count)} of {len(said)}"


def row_of(name: str, groups: Sequence[list[Told]], place: int) -> list[str]:
    """What is measured of kinds at one share."""
    here = counted(groups, place)
    silent = here.told_there < UNLIKELY
    likely = ~silent & (here.told_found >= LIKELY)
    total = here.count.sum()
    return [
        name,
        f"{SHARES[place]:.2f}",
        f"{100 * (here.count * here.found).sum() / total:.0f}",
        f"{100 * (here.count * here.told_found).sum() / total:.0f}",
        f"{weighted_error(here):.2f}",
        weighted_share(here.count, ~here.there, silent),
        weighted_share(here.count, here.found, likely),
        f"{100 * (here.count * here.found)[likely].sum() / max((here.count * here.found).sum(), 1e-9):.0f}",
    ]


def weighted_error(here: Counted, bins: int = 10) -> float:
    """The calibration error with questions that count differently, over bins of equal width."""
    chosen = np.minimum((here.told_found * bins).astype(int), bins - 1)
    gaps = np.bincount(chosen, here.count * (here.told_found - here.found), bins)
    return float(np.abs(gaps).sum() / here.count.sum())


KINDS = ("other kinds", "contracts", "HotpotQA", "Wikipedia", *OF_THE_FIT)


def table_of_kinds(asked: dict[str, list[Asked]]) -> str:
    """How many questions on how many documents there are."""
    rows = []
    for kind, found in asked.items():
        there = sum(bool(one.right.any()) for one in found)
        rows.append([kind, *map(str, (len({one.document for one in found}), there, len(found) - there))])
    return table(["questions", "documents", "with an answer", "without"], rows)


def tables_of(asked: dict[str, list[Asked]], weights: Weights, first: Weights | None) -> str:
    """The table of one set of weights."""
    groups = {kind: told_of(rows, weights, first) for kind, rows in asked.items()}
    others = [found for kind, found in groups.items() if kind not in OF_THE_FIT]
    own = [found for kind, found in groups.items() if kind in OF_THE_FIT]
    rows = []
    for name, parts in [
        *((kind, [found]) for kind, found in groups.items()),
        ("kinds of the fit", own),
        ("others", others),
    ]:
        rows += [row_of(name, parts, place) for place in range(len(SHARES)) if parts]
    header = ["questions", "share with an answer", "found, %", "mean probability, %"]
    header += ["calibration error", "not there: right, %", "likely: right, %", "of what is found, likely, %"]
    return table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--most", type=int, default=20, help="documents of a kind")
    parser.add_argument("--features", type=Path, help="folder with what the encoders computed; made if it is missing")
    parser.add_argument("--name", default="answers-sure")
    options = parser.parse_args()
    data = Path(os.environ["LONGSPAN_DATA"])
    fitted = load_weights(options.weights)
    asked: dict[str, list[Asked]] = {}
    for kind in KINDS:
        path = options.features and options.features / f"{kind.replace(' ', '-')}.npz"
        if path and path.exists():
            rows = saved(path)
        else:
            cases = cases_of(kind, data, options.most)
            rows = asked_of_cases(cases, bundled_encoder(), EXCHANGED, passage_encoder())
            if path:
                options.features.mkdir(parents=True, exist_ok=True)
                save(rows, path)
        asked[kind] = with_removed(rows, kind)
        print(kind, len(asked[kind]), flush=True)
    plain = {kind: [without_second_look(one) for one in rows] for kind, rows in asked.items()}
    by_minilm = {kind: list(map(by_one_encoder, rows)) for kind, rows in asked.items()}
    parts = [ABOUT.format(unlikely=UNLIKELY, likely=LIKELY), table_of_kinds(asked)]
    for title, rows, weights, first in (
        ("As it is, with the second look", asked, fitted[READ], fitted["meaning"]),
        ("By words", plain, fitted["words"], None),
        ("An index with the bundled encoder", plain, fitted["index"], None),
        (
            "`--encoder`: all-MiniLM-L6-v2 (in four bits)",
            by_minilm,
            fitted["encoder"],
            None,
        ),
    ):
        parts.append(f"## {title}\n\n{tables_of(rows, weights, first)}")
    print(write_page(options.name, "How sure an answer is", [*parts, f"{machine()}."]).read_text(encoding="utf-8"))


def without_second_look(one: Asked) -> Asked:
    """The question without the column of the second look."""
    return replace(one, evidence=Evidence(one.evidence.names[:-1], one.evidence.table[:, :-1]))


if __name__ == "__main__":
    main()
