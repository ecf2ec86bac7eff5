"""Attention of every token to a few keys of its own: its neighbours in a row or a ring, and what stands with it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def attend_few(
    query: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    present: Sequence[Tensor | None],
    *,
    missing: str = "masked",
    dropout_prob: float = 0.0,
) -> Tensor:
    """Softmax attention of every query over C keys of its own: `(B, H, T, D)` → `(B, H, T, D)`, in linear memory.

    Args:
        query: `(B, H, T, D)`.
        keys: C tensors `(B, H, T, D)`, or `(B, H, 1, D)` for one that all tokens share.
        values: of these keys.
        present: of each key `(B, T)` bool, where it is there; `None` means everywhere. One of each query's must be.
        missing: what stands in for a key that is not there: nothing ("masked"), or a key and a value of zeros, which
            take their share of the softmax ("zero").
        dropout_prob: probability of dropping an attention weight.
    """
    scaled = query.to(torch.promote_types(query.dtype, torch.float32)) * query.shape[-1] ** -0.5
    scores = torch.stack([(scaled * key).sum(-1) for key in keys], dim=-1)
    everywhere = torch.ones((), dtype=torch.bool, device=query.device).expand(query.shape[0], query.shape[2])
    there = torch.stack([everywhere if each is None else each for each in present], dim=-1)[:, None]
    scores = scores.masked_fill(~there, 0.0 if missing == "zero" else -torch.inf)
    weights = functional.dropout(scores.softmax(-1).masked_fill(~there, 0.0), dropout_prob).to(query.dtype)
    context = torch.zeros_like(query)
    for weight, value in zip(weights.unbind(-1), values, strict=True):
        context = context + weight[..., None] * value
    return context


class Neighbours:
    """The tokens before and after each, of rows with padding.

    Args:
        real: `(B, T)` bool.
        cyclic: whether the first real token of a row follows on its last.

    Attributes:
        present: `(B, T)` bool, where there is a real token before, and where there is one after.
    """

    def __init__(self, real: Tensor, *, cyclic: bool = False) -> None:
        self.ends: tuple[Tensor, Tensor] | None = None
        before, after = _shifted(real, 1), _shifted(real, -1)
        if cyclic:
            first, last = real & (real.cumsum(1) == 1), real & (real.flip(1).cumsum(1).flip(1) == 1)
            self.ends, before, after = (first, last), before | first, after | last
        self.present = before, after

    def of(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What stands before and after each token, `(B, H, T, D)` each, zeros at the ends of a row without a ring."""
        before, after = _shifted(hidden, 1, (0, 0)), _shifted(hidden, -1, (0, 0))
        if self.ends is None:
            return before, after
        first, last = (end[:, None, :, None] for end in self.ends)
        at_first, at_last = ((hidden * end).sum(2, keepdim=True) for end in (first, last))
        return torch.where(first, at_last, before), torch.where(last, at_first, after)


def _shifted(values: Tensor, by: int, behind: tuple[int, ...] = ()) -> Tensor:
    """Every value one place further (1), or one back (−1); zero where none comes. `behind` are two zeros for each
    dimension after that of the places, as `pad` wants them."""
    padded = functional.pad(values, (*behind, 1, 0) if by > 0 else (*behind, 0, 1))
    place = values.ndim - 1 - len(behind) // 2
    return padded.narrow(place, 0 if by > 0 else 1, values.shape[place])
