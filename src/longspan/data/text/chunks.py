"""A long sequence as overlapping chunks, with the map back: which tokens each chunk holds, and which it answers for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from longspan.errors import InputError


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start … end − 1` of a document, of which `first … last − 1` are this chunk's own.

    Each token of the document lies in one or more chunks and is one chunk's own. What two neighbours share is halved
    between them, so that a token belongs to the chunk that shows more of its surroundings.
    """

    start: int
    end: int
    first: int
    last: int

    def __len__(self) -> int:
        return self.end - self.start


def chunk_map(length: int, size: int, stride: int | None = None) -> list[Chunk]:
    """Cut `length` tokens into chunks of `size` that begin every `stride` tokens; the last one may be shorter.

    No chunk lies within another, every token is in at least one chunk and exactly one chunk's own. A sequence without
    tokens has no chunks.

    Args:
        length: number of tokens of the document.
        size: tokens in a chunk.
        stride: tokens between the beginnings of neighbours; None means `size`, so that nothing overlaps.

    Raises:
        InputError: a negative length, a size below 1, or a stride that is not from 1 to `size`.
    """
    stride = size if stride is None else stride
    if length < 0:
        raise InputError(f"length={length} is negative; give the number of tokens")
    if size < 1:
        raise InputError(f"size={size} is less than 1; give the number of tokens in a chunk")
    if not 1 <= stride <= size:
        raise InputError(f"stride={stride} is not from 1 to size={size}; a larger one would leave tokens out")
    starts = range(0, max(length - size, 0) + stride, stride) if length else range(0)
    spans = [(start, min(start + size, length)) for start in starts]
    borders = [0, *((left[1] + right[0] + 1) // 2 for left, right in pairwise(spans)), length]
    return [Chunk(start, end, borders[index], borders[index + 1]) for index, (start, end) in enumerate(spans)]
