"""P_k and WindowDiff against cases worked by hand."""

from __future__ import annotations

import pytest

from longspan.errors import InputError
from longspan_papers.dialogue.topics import half_segment, pk, window_diff


def test_half_of_a_segment() -> None:
    assert half_segment(12, [4, 8]) == 2
    assert half_segment(10, []) == 5
    assert half_segment(10, [5]) == 3  # 2.5, rounded up
    assert half_segment(3, [1, 2]) == 1


@pytest.mark.parametrize(
    ("found", "by_pk", "by_window"),
    [
        ([4], 0, 0),
        # 8 places, a border before 4, k = 2: the six pairs are 0–2 … 5–7, and those from 2 and 3 have it between them.
        ([], 2, 2),
        ([5], 2, 2),  # near miss: the pairs from 2 and from 4 differ
        ([3, 5], 2, 2),  # pairs from 1 (3), 2 (3), 3 (5), 4 (5) have one; the true ones are 2 and 3
        ([4, 5], 1, 2),  # the pair from 3 has both, which P_k does not see; that from 4 has one too many
        ([1, 4], 1, 1),  # the pair from 0
    ],
)
def test_by_hand(found: list[int], by_pk: int, by_window: int) -> None:
    assert pk(8, [4], found, k=2) == pytest.approx(by_pk / 6)
    assert window_diff(8, [4], found, k=2) == pytest.approx(by_window / 6)


def test_short_texts() -> None:
    for places in (0, 1):
        assert pk(places, [], []) == window_diff(places, [], []) == 0
    assert pk(2, [1], []) == 1
    assert window_diff(2, [1], [1]) == 0


def test_what_is_no_border_and_no_distance() -> None:
    """A border outside the text would only change k, and probes at one place never differ: both looked like skill."""
    for measure in (pk, window_diff):
        for true, found in (([0, 3], [3]), ([3], [3, 8])):
            with pytest.raises(InputError, match="no border between 8 places"):
                measure(8, true, found)
        with pytest.raises(InputError, match="k=0 is no distance"):
            measure(8, [3], [5], k=0)
