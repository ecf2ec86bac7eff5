"""How well borders of segments are found: P_k (Beeferman et al. 1999) and WindowDiff (Pevzner and Hearst 2002).

Both slide two probes, k places apart, over a text of n places, and count where the found segmentation tells another
thing of what lies between them than the true one: P_k, whether there is a border at all; WindowDiff, how many there
are. 0 is perfect; k is half of a true segment's mean length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

from longspan.errors import InputError

MEASURES = ("pk", "window_diff")


def half_segment(places: int, borders: Sequence[int]) -> int:
    """k: half of the mean length of the segments that `borders` make of so many places, rounded, and at least 1."""
    return max(1, math.floor(places / (2 * (len(set(borders)) + 1)) + 0.5))


def pk(places: int, true: Sequence[int], found: Sequence[int], k: int | None = None) -> float:
    """P_k of borders, the places at which a segment begins other than 0, as a share of the probes."""
    return _share(places, true, found, k, lambda here, there: (here == 0) != (there == 0))


def window_diff(places: int, true: Sequence[int], found: Sequence[int], k: int | None = None) -> float:
    """WindowDiff of borders, likewise."""
    return _share(places, true, found, k, lambda here, there: here != there)


def _share(
    places: int, true: Sequence[int], found: Sequence[int], k: int | None, differ: Callable[[int, int], bool]
) -> float:
    """The share of the pairs of probes between which the numbers of borders differ."""
    for name, borders in (("true", true), ("found", found)):
        if outside := [border for border in borders if not 0 < border < places]:
            raise InputError(f"{name} holds {outside[0]}, which is no border between {places} places; leave it out")
    if k is not None and k < 1:
        raise InputError(f"k={k} is no distance between two probes; give 1 or more")
    k = min(half_segment(places, true) if k is None else k, places - 1)
    if k < 1:
        return 0.0
    counts = [list(accumulate(int(place in known) for place in range(places))) for known in (set(true), set(found))]
    wrong = sum(differ(*(count[place + k] - count[place] for count in counts)) for place in range(places - k))
    return wrong / (places - k)
