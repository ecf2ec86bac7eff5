"""What a table says of scores that are no better than guessing."""

from __future__ import annotations

import pytest

from longspan.compare.report import _best
from longspan.compare.settings import Comparison, Result
from longspan.compare.summary import lines_of, table_of, wilson

NAMES = ("full", "linear", "longformer", "bigbird")


def results(comparison: Comparison, answers: int, **scores: float) -> list[Result]:
    """Trainings of mechanisms with these scores, of so many answers."""
    return [
        Result(cell=comparison.quality(name, 1, 10), status="done", numbers={"score": score, "answers": answers})
        for name, score in scores.items()
    ]


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [(50, 100, 0.4038, 0.5962), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (1, 20, 0.0089, 0.2361)],
)
def test_intervals_are_the_published_ones(right: int, count: int, low: float, high: float) -> None:
    """Brown, Cai and DasGupta 2001; worked out with z = 1.95996: of 0 of 10, z² / (10 + z²) = 0.2775."""
    assert wilson(right / count, count, 0.95) == pytest.approx((low, high), abs=1e-4)


def test_what_is_at_chance_is_said_to_be_and_not_ranked() -> None:
    comparison = Comparison(mechanisms=NAMES, steps=10)
    given = results(comparison, 2048, full=0.121, linear=0.128, longformer=0.4, bigbird=0.3)
    lines = lines_of(comparison, given, chance=0.125)
    assert [(line.label, line.at_chance) for line in lines] == [
        *(("longformer", False), ("bigbird", False), ("full", True), ("linear", True)),
    ]
    _, rows = table_of(lines, "accuracy")
    assert [row[1] for row in rows] == ["0.400", "0.300", "0.121 (chance)", "0.128 (chance)"]
    assert "at chance, not ranked: its interval, 0.1" in rows[3][-1]
    assert _best("accuracy", [row[1] for row in rows]) == "0.400"


def test_where_all_are_at_chance_none_is_the_best() -> None:
    comparison = Comparison(mechanisms=NAMES[:2], steps=10)
    _, rows = table_of(lines_of(comparison, results(comparison, 2048, full=0.121, linear=0.128), 0.125), "accuracy")
    assert [row[0] for row in rows] == ["full", "linear"]
    assert _best("accuracy", [row[1] for row in rows]) is None


def test_one_that_learned_is_the_best_among_those_that_did_not() -> None:
    assert _best("accuracy", ["0.400", "0.128 (chance)"]) == "0.400"
    assert _best("accuracy", ["0.400", "–"]) is None


def test_few_answers_prove_little_and_more_mechanisms_want_more() -> None:
    """22 of 128 right where chance is 1 / 8: z = 1.60; 27: z = 2.94, above the 1.96 of one, below the 3.05 of 22."""
    one, every = Comparison(mechanisms=NAMES[:1], steps=10), Comparison(steps=10)
    assert lines_of(one, results(one, 128, full=22 / 128), 0.125)[0].at_chance
    assert not lines_of(one, results(one, 128, full=27 / 128), 0.125)[0].at_chance
    many = dict.fromkeys(every.labels, 0.125) | {"full": 27 / 128}
    assert all(line.at_chance for line in lines_of(every, results(every, 128, **many), 0.125))


def test_a_task_whose_chance_is_not_known_ranks_all() -> None:
    comparison = Comparison(mechanisms=NAMES[:2], task="recall", steps=10)
    lines = lines_of(comparison, results(comparison, 2048, full=0.121, linear=0.128))
    assert [line.label for line in lines] == ["linear", "full"]
    assert not any(line.at_chance for line in lines)
