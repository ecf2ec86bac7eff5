"""Rows divided between processes: which of them holds which tokens, and the exchange of tensors between them.

Every process of the group makes the same calls in the same order, in backward too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from longspan.errors import InputError


@dataclass(frozen=True)
class Shards:
    """How the T tokens of each row are divided between the processes of a group, in their order.

    Attributes:
        group: the processes; `None` means all.
        lengths: how many tokens each of them holds, padding counted.
        sent: bytes that this process has sent to others in forward passes, by what was exchanged.
    """

    group: Any
    lengths: tuple[int, ...]
    sent: dict[str, int] = field(default_factory=dict, compare=False)
    _shared: dict[Any, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, hidden: Tensor, group: Any = None) -> Shards:
        """Those of which this process holds `(B, T, …)`: asks every process for its length.

        Raises:
            InputError: the shards have different numbers of rows, or some hold no token.
        """
        here = torch.tensor([[hidden.shape[0], hidden.shape[1]]], device=hidden.device)
        sizes = gathered_from(here, group).flatten(0, 1).tolist()
        rows, lengths = zip(*sizes, strict=True)
        if len(set(rows)) > 1:
            raise InputError(f"the shards have {list(rows)} rows; give every process its part of the same rows")
        if min(lengths) == 0:
            raise InputError(
                f"the shards have {list(lengths)} tokens; there are more processes than tokens, or a process got none: "
                "give each at least one, or use fewer"
            )
        return cls(group, tuple(lengths))

    @cached_property
    def rank(self) -> int:
        """The number of this process in the group."""
        return dist.get_rank(self.group)

    @property
    def count(self) -> int:
        """How many processes there are, P."""
        return len(self.lengths)

    @property
    def total(self) -> int:
        """Tokens of all shards, T."""
        return sum(self.lengths)

    def range_of(self, rank: int) -> tuple[int, int]:
        """The first place of a shard in the whole row, and the one behind its last."""
        first = sum(self.lengths[:rank])
        return first, first + self.lengths[rank]

    @property
    def first(self) -> int:
        """The first place of this shard."""
        return self.range_of(self.rank)[0]

    def halo_of(self, rank: int, left: int, right: int, period: int = 1) -> tuple[int, int]:
        """The places that a shard needs, its own among them: so many more at each side, as far as there are any.

        The first of them is a multiple of `period`, so that what is counted in periods is counted as in the whole row.
        """
        first, end = self.range_of(rank)
        low = max(0, first - left)
        return low - low % period, min(self.total, end + right)

    # What is exchanged ------------------------------------------------------------------------------------------------

    def with_halo(self, tensor: Tensor, left: int, right: int, period: int = 1) -> Tensor:
        """`(B, T_r, …)` → `(B, N, …)`, the places of `halo_of`; gradients of the halo go back to its owners."""
        wanted = [self.halo_of(rank, left, right, period) for rank in range(self.count)]
        return _Halo.apply(tensor, self, wanted)  # pyright: ignore[reportReturnType]

    def gathered(self, tensor: Tensor, what: str) -> Tensor:
        """`(…)` of one shape in every process → `(P, …)`, with gradients."""
        self._count(what, tensor.numel() * tensor.element_size() * (self.count - 1))
        return _Gather.apply(tensor, self.group)  # pyright: ignore[reportReturnType]

    def summed(self, tensor: Tensor, what: str) -> Tensor:
        """The sum over the processes of what each has, `(…)` of one shape, in every process, with gradients."""
        self._count_ring(what, tensor)
        return _Sum.apply(tensor, self.group)  # pyright: ignore[reportReturnType]

    def greatest(self, tensor: Tensor, what: str) -> Tensor:
        """The greatest of what each process has, element by element, in every process, without gradients."""
        self._count_ring(what, tensor)
        most = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(most, dist.ReduceOp.MAX, self.group)
        return most

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether it is so in any of the processes."""
        return bool(gathered_from(torch.tensor([flag], device=device), self.group).any())

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What all layers share, made when the first of them asks."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def _count(self, what: str, size: int) -> None:
        self.sent[what] = self.sent.get(what, 0) + size

    def _count_ring(self, what: str, tensor: Tensor) -> None:
        """An all-reduce around a ring: each process sends P − 1 of P parts twice, once summing and once handing on."""
        self._count(what, 2 * (self.count - 1) * tensor.numel() * tensor.element_size() // self.count)


def gathered_by_all(
    scores: Tensor, value: Tensor, mask: Tensor | None, shards: Shards, what: str, dropout_prob: float = 0.0
) -> Tensor:
    """What a few queries gather from the tokens of all shards, `(B, H, Q, D)`, the same in every process.

    Each process sums up its own tokens by weights relative to the greatest score of all, and one all-reduce brings the
    sums together, so that it is the softmax over all tokens.

    Args:
        scores: of the queries with this process's tokens, `(B, H, Q, T_r)` in at least float32.
        value: of these, `(B, H, T_r, D)`.
        mask: `(B, T_r)` bool, which of them are real; `None` means all. Without any in a row it gathers 0.
        shards: how rows are divided.
        what: by which name bytes are counted.
        dropout_prob: probability of dropping an attention weight.
    """
    lowest = torch.finfo(scores.dtype).min
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], lowest)
    greatest = shards.greatest(scores.detach().amax(-1, keepdim=True), what)
    weights = (scores - greatest).exp()
    if mask is not None:
        weights = weights.masked_fill(~mask[:, None, None, :], 0)
    context = functional.dropout(weights, dropout_prob) @ value.to(weights.dtype)
    both = shards.summed(torch.cat([context, weights.sum(-1, keepdim=True)], -1), what)
    return (both[..., :-1] / both[..., -1:].clamp(min=torch.finfo(both.dtype).tiny)).to(value.dtype)


def gathered_from(tensor: Tensor, group: Any) -> Tensor:
    """`(…)` → `(P, …)`, without gradients."""
    wire = tensor.contiguous()
    parts = [torch.empty_like(wire) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, wire, group=group)
    return torch.stack(parts)


class _Gather(torch.autograd.Function):
    """What every process has, in the order of the processes; the gradient of one's own part is the sum over all."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return gathered_from(tensor, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        total = grad.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total[dist.get_rank(ctx.group)], None


class _Sum(torch.autograd.Function):
    """The sum over the processes; the gradient of each summand is the sum of what the processes make of the result."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _all_summed(tensor, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _all_summed(grad, ctx.group), None


def _all_summed(tensor: Tensor, group: Any) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class _Halo(torch.autograd.Function):
    """One's own places and those of the halo, which other processes send."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, shards: Shards, wanted: list[tuple[int, int]]) -> Tensor:
        ctx.shards, ctx.wanted = shards, wanted
        first, end = shards.range_of(shards.rank)
        gives = [_overlap((first, end), other) for other in wanted]
        gives[shards.rank] = (first, first)
        parts = [tensor[:, low - first : high - first] for low, high in gives]
        takes = _takes(shards, wanted)
        shards._count("halo", sum(part.numel() for part in parts) * tensor.element_size())
        got = _sent(parts, [high - low for low, high in takes], shards.group)
        return torch.cat([*got[: shards.rank], tensor, *got[shards.rank + 1 :]], 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        shards, wanted = ctx.shards, ctx.wanted
        (first, end), (low, _) = shards.range_of(shards.rank), wanted[shards.rank]
        parts = [grad[:, start - low : stop - low] for start, stop in _takes(shards, wanted)]
        gave = [_overlap((first, end), other) for other in wanted]
        gave[shards.rank] = (first, first)
        own = grad[:, first - low : end - low].clone()
        for (start, stop), part in zip(gave, _sent(parts, [b - a for a, b in gave], shards.group), strict=True):
            own[:, start - first : stop - first] += part
        return own, None, None


def _takes(shards: Shards, wanted: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The places that this process gets from each of the others; none from itself."""
    takes = [_overlap(wanted[shards.rank], shards.range_of(rank)) for rank in range(shards.count)]
    takes[shards.rank] = (shards.first, shards.first)
    return takes


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low < high else (one[0], one[0])


def _sent(parts: Sequence[Tensor], lengths: list[int], group: Any) -> list[Tensor]:
    """Part r `(B, n_r, …)` goes to process r; what comes from each of them, `(B, lengths[r], …)`."""
    rows, rest = parts[0].shape[0], parts[0].shape[2:]
    each = rows * rest.numel()
    out = torch.cat([part.reshape(-1) for part in parts])
    got = out.new_empty(each * sum(lengths))
    dist.all_to_all_single(got, out, [each * length for length in lengths], [part.numel() for part in parts], group)
    return [
        piece.view(rows, length, *rest)
        for piece, length in zip(got.split([each * length for length in lengths]), lengths, strict=True)
    ]
