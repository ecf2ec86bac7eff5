"""Attention patterns: index predicates that define which (query, key) pairs may attend, combined with `|` and `&`.

A pattern is data. It defines one predicate, `visible(query_index, key_index) -> bool`, over broadcastable integer
tensors of absolute positions. The dense mask (`dense`), the tiles that a fast path may skip (`some` and `every`, which
bound the predicate over rectangles of positions), FlexAttention's `mask_mod` and the number of scores (`count_visible`)
follow from that predicate. A pattern may also describe what makes it fast: the offsets it reaches (`reach`), whether it
splits into residue classes (`residues`), and whether it has a near and a far part (`near_far`). `parse` is the inverse
of `str(pattern)`:

    >>> str(parse("window(128) | first(1)"))
    'window(128, 128) | first(1)'

All windows have one definition: `left` and `right` count the tokens on each side; the token itself is always visible
and not counted. A total width w of the literature is `left = right = w // 2`.
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
