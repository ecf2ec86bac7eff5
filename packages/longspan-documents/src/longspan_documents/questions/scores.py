"""From start and end scores of tokens to the best span of each passage."""

from __future__ import annotations

import torch
from torch import Tensor

NEVER = float("-inf")
"""The score of a passage that no chunk offers: below every threshold."""


def best_spans(
    start: Tensor, end: Tensor, paragraphs: Tensor, count: int, max_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the pair of tokens i ≤ j with the highest s_i + e_j in every paragraph; exact, in memory T ×
    `max_tokens`.

    Args:
        start, end: `(B, T)` logits.
        paragraphs: `(B, T)` int64, the paragraph of each token; −1 for tokens that cannot be the end of an answer.
        count: C, the number of paragraphs.
        max_tokens: maximum of j − i + 1.

    Returns:
        `(B, C)` scores, first and last tokens; among equal scores the first i, then the first j. -inf, 0 and 0 for a
        paragraph without tokens.
    """
    rows, length = start.shape
    widest = max(1, min(max_tokens, length))
    behind = (0, widest - 1)
    ends = torch.nn.functional.pad(end, behind, value=NEVER).unfold(1, widest, 1)
    same = torch.nn.functional.pad(paragraphs, behind, value=-1).unfold(1, widest, 1) == paragraphs[..., None]
    reach, offset = ends.masked_fill(~same, NEVER).max(2)
    totals = (start + reach).masked_fill(paragraphs < 0, NEVER)
    # An additional slot for tokens outside of all paragraphs.
    place = torch.where(paragraphs < 0, count, paragraphs)
    best = totals.new_full((rows, count + 1), NEVER).scatter_reduce(1, place, totals, "amax")
    position = torch.arange(length, device=start.device).expand(rows, length)
    is_best = (totals == best.gather(1, place)) & (totals > NEVER)
    first = position.new_full((rows, count + 1), length).scatter_reduce(
        1, place, torch.where(is_best, position, length), "amin"
    )
    first = torch.where(first < length, first, 0)[:, :count]
    highest = best[:, :count]
    return highest, first, first + offset.gather(1, first).masked_fill(highest == NEVER, 0)
