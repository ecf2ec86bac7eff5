"""No n-gram twice, but for those with tokens that do not count, such as the full stop."""

from __future__ import annotations

from collections.abc import Sequence

from torch import LongTensor, Tensor
from transformers import LogitsProcessor

from longspan.errors import InputError


class DistinctNgrams(LogitsProcessor):
    """Forbids every token that would end an n-gram which the text has already, unless one of its tokens is ignored.

    Without ignored tokens it does what transformers' `no_repeat_ngram_size` does. Source: the duplicate block of
    UniLM's decoder, which DialogLM uses with "." ignored.

    Args:
        size: n.
        ignored: ids.
    """

    def __init__(self, size: int, ignored: Sequence[int] = ()) -> None:
        if size < 1:
            raise InputError(f"size={size} is no length of an n-gram; give 1 or more")
        self.size = size
        self.ignored = frozenset(ignored)

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Scores `(B, V)` of the next tokens after `input_ids` `(B, T)`, −∞ where they are forbidden."""
        scores = scores.clone()
        for row, tokens in enumerate(input_ids.tolist()):
            scores[row, self.forbidden(tokens)] = float("-inf")
        return scores

    def forbidden(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that may not come next, in order."""
        before = len(tokens) - self.size + 1
        if before < 0:
            return []
        last = tokens[before:]
        if self.ignored.intersection(last):
            return []
        reach = self.size - 1
        ends = {tokens[place + reach] for place in range(before) if tokens[place : place + reach] == last}
        return sorted(ends - self.ignored)
