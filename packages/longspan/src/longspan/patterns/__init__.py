"""Which token pairs may attend: index predicates, combined with `|` and `&`.

A pattern is data. It answers one question, `visible(query_index, key_index) -> bool`, for broadcastable integer
tensors of absolute positions. From that predicate follow the dense mask (`dense`), the tiles a fast path may skip
(`some` and `every`, which bound the predicate over rectangles of positions), FlexAttention's `mask_mod`, and the
number of scores (`count_visible`). What makes a pattern fast it says itself: which offsets it reaches (`reach`),
whether it falls apart into residue classes (`residues`), whether it has a near and a far part (`near_far`).
`str(pattern)` is a text that `parse` reads back:

    >>> str(parse("window(128) | first(1)"))
    'window(128, 128) | first(1)'

One window definition everywhere: `left` and `right` count tokens on each side; the token itself is always seen and not
counted. A total width w of the literature is `left = right = w // 2`.
"""

from longspan.patterns.base import Both, Either, NearFar, Pattern, PerHead, Reach, Residues, Span
from longspan.patterns.kinds import (
    Blocks,
    Causal,
    First,
    Fixed,
    Full,
    PooledWindow,
    Strided,
    Window,
)
from longspan.patterns.prefix import Prefix
from longspan.patterns.random_blocks import DrawnBlocks, PlannedBlocks, RandomBlocks
from longspan.patterns.text import parse

__all__ = [
    "Blocks",
    "Both",
    "Causal",
    "DrawnBlocks",
    "Either",
    "First",
    "Fixed",
    "Full",
    "NearFar",
    "Pattern",
    "PerHead",
    "PlannedBlocks",
    "PooledWindow",
    "Prefix",
    "RandomBlocks",
    "Reach",
    "Residues",
    "Span",
    "Strided",
    "Window",
    "parse",
]
