"""HotpotQA's scores of the answer, of the supporting facts, and of both together (Yang et al. 2018, section 4).

As in the official evaluation. For one question, with precision P, recall R and exact match of the answer's words and of
the set of (title, sentence) pairs::

    joint P = P_answer · P_facts,    joint R = R_answer · R_facts,    joint F1 = 2 · P · R / (P + R)
    joint exact match = EM_answer · EM_facts

Every score is the mean over all questions, in percent; a question without a prediction counts 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from statistics import fmean
from typing import NamedTuple

from longspan.tasks.metrics.spans import normalized
from longspan_papers.hotpotqa.rows import Fact

SPECIAL = ("yes", "no", "noanswer")
"""Answers that are right as a whole or not at all."""

SCORES = tuple(f"{kind}{name}" for kind in ("answer_", "evidence_", "joint_") for name in ("exact_match", "f1"))


class Match(NamedTuple):
    """Agreement of one prediction with the annotation, as shares between 0 and 1."""

    exact: float
    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0

    def joint(self, other: Match) -> Match:
        """Returns the match of two parts that must both be right."""
        return Match(*(ours * theirs for ours, theirs in zip(self, other, strict=True)))


NOTHING = Match(0.0, 0.0, 0.0)


def match_answer(predicted: str | None, expected: str) -> Match:
    """Compares the words of an answer, ignoring case, articles and punctuation; None is no prediction."""
    if predicted is None:
        return NOTHING
    words, wanted = normalized(predicted), normalized(expected)
    exact = float(words == wanted)
    if words != wanted and (words in SPECIAL or wanted in SPECIAL):
        return NOTHING
    shared = sum((Counter(words.split()) & Counter(wanted.split())).values())
    if not shared:
        return Match(exact, 0.0, 0.0)
    return Match(exact, shared / len(words.split()), shared / len(wanted.split()))


def match_facts(predicted: Collection[Fact] | None, expected: Collection[Fact]) -> Match:
    """Compares sets of sentences; None is no prediction."""
    if predicted is None:
        return NOTHING
    facts, wanted = set(predicted), set(expected)
    shared = len(facts & wanted)
    return Match(float(facts == wanted), shared / len(facts) if facts else 0.0, shared / len(wanted) if wanted else 0.0)


def multi_hop_scores(matches: Iterable[tuple[Match, Match]]) -> dict[str, float]:
    """Computes `SCORES` over questions, each with the matches of its answer and of its facts."""
    parts = [(answer, facts, answer.joint(facts)) for answer, facts in matches]
    columns = zip(*((number for part in row for number in (part.exact, part.f1)) for row in parts), strict=True)
    return dict(zip(SCORES, (100 * fmean(column) for column in columns), strict=True))
