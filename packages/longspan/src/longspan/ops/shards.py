"""Sequence parallelism: which process has which tokens of each row, and the collective operations between processes.

Every process of the group makes the same calls in the same order, also in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from longspan.errors import InputError
from longspan.ops.runtime import full_precision

PAIRS = 1 << 24
"""Maximum number of query–key pairs whose weights are stored at a time."""


@dataclass(frozen=True)
class Processes:
    """Processes that work on the same rows and exchange tensors.

    Attributes:
        group: the process group; `None` means all processes.
        sent: bytes that this process has sent in forward passes, by purpose.
    """

    group: Any
    sent: dict[str, int] = field(default_factory=dict, compare=False, kw_only=True)

    @cached_property
    def rank(self) -> int:
        """The rank of this process in the group."""
        return dist.get_rank(self.group)

    @property
    def count(self) -> int:
        """The number of processes, P."""
        return dist.get_world_size(self.group)

    def gathered(self, tensor: Tensor, what: str) -> Tensor:
        """All-gathers `(…)` of equal shapes → `(P, …)`, with gradients."""
        self._count(what, tensor.numel() * tensor.element_size() * (self.count - 1))
        return _Gather.apply(tensor, self.group)  # pyright: ignore[reportReturnType]

    def summed(self, tensor: Tensor, what: str) -> Tensor:
        """All-reduces by sum, `(…)` of equal shapes, with gradients."""
        self._count_ring(what, tensor)
        return _Sum.apply(tensor, self.group)  # pyright: ignore[reportReturnType]

    def greatest(self, tensor: Tensor, what: str) -> Tensor:
        """All-reduces by maximum, element by element, without gradients."""
        self._count_ring(what, tensor)
        return _reduced(tensor.detach(), self.group, dist.ReduceOp.MAX)

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether `flag` is True in any process."""
        return bool(gathered_from(torch.tensor([flag], device=device), self.group).any())

    @contextmanager
    def same_draws(self, device: torch.device) -> Iterator[None]:
        """Uses the same random numbers in all processes within the context, for computations that are replicated."""
        seed = torch.randint(1 << 31, ()).to(device)
        with _drawing_from(int(gathered_from(seed, self.group)[0]), device):
            yield

    @contextmanager
    def own_draws(self, device: torch.device) -> Iterator[None]:
        """Uses different random numbers in each process within the context; afterwards, the common sequence
        continues."""
        with _drawing_from(int(torch.randint(1 << 31, ())) + self.rank, device):
            yield

    def _count(self, what: str, size: int) -> None:
        self.sent[what] = self.sent.get(what, 0) + size

    def _count_ring(self, what: str, tensor: Tensor) -> None:
        self._count(what, ring(tensor.numel() * tensor.element_size(), self.count))


@dataclass(frozen=True)
class Shards(Processes):
    """How the T tokens of each row are divided between the processes of a group, in rank order.

    Attributes:
        lengths: number of tokens of each process, including padding; it may be 0.
    """

    lengths: tuple[int, ...]
    _shared: dict[Any, Any] = field(default_factory=dict, compare=False, kw_only=True)

    @classmethod
    def of(cls, hidden: Tensor, group: Any = None) -> Shards:
        """Returns the shards of which this process has `(B, T, …)`, by gathering the lengths of all processes.

        Raises:
            InputError: the shards have different numbers of rows.
        """
        here = torch.tensor([[hidden.shape[0], hidden.shape[1]]], device=hidden.device)
        sizes = gathered_from(here, group).flatten(0, 1).tolist()
        rows, lengths = zip(*sizes, strict=True)
        if len(set(rows)) > 1:
            raise InputError(f"the shards have {list(rows)} rows; give every process its part of the same rows")
        return cls(group, tuple(lengths))

    @property
    def count(self) -> int:
        """The number of processes, P."""
        return len(self.lengths)

    @property
    def total(self) -> int:
        """Tokens of all shards, T."""
        return sum(self.lengths)

    def range_of(self, rank: int) -> tuple[int, int]:
        """Returns the range of a shard's positions in the whole row, end exclusive."""
        first = sum(self.lengths[:rank])
        return first, first + self.lengths[rank]

    @property
    def first(self) -> int:
        """The first position of this shard."""
        return self.range_of(self.rank)[0]

    def halo_of(self, rank: int, left: int, right: int, period: int = 1) -> tuple[int, int]:
        """Returns the range of positions that a shard needs: its own and up to `left` and `right` more at each side.

        The first position is a multiple of `period`, so that periodic structures are aligned as in the whole row.
        """
        first, end = self.range_of(rank)
        low = max(0, first - left)
        return low - low % period, min(self.total, end + right)

    # Exchange of tensors ----------------------------------------------------------------------------------------------

    def with_halo(self, tensor: Tensor, left: int, right: int, period: int = 1) -> Tensor:
        """`(B, T_r, …)` → `(B, N, …)`, the positions of `halo_of`; gradients of the halo return to its owners."""
        return self.with_places(tensor, [self.halo_of(rank, left, right, period) for rank in range(self.count)])

    def with_places(self, tensor: Tensor, wanted: list[tuple[int, int]]) -> Tensor:
        """As `with_halo`, with an explicit range of positions for each process, end exclusive."""
        return _Halo.apply(tensor, self, wanted)  # pyright: ignore[reportReturnType]

    def passed(self, tensor: Tensor, step: int, length: int, what: str | None = None) -> Callable[[], Tensor]:
        """Starts to send `(B, n, …)` to the process `step` ranks later, cyclically; the returned function waits for
        what the one `step` ranks earlier sends, `(B, length, …)`. Without gradients; bytes are counted for the purpose
        `what`, if any.
        """
        to, source = (self.rank + step) % self.count, (self.rank - step) % self.count
        if what is not None:
            self._count(what, tensor.numel() * tensor.element_size())
        parts = [tensor if rank == to else tensor[:, :0] for rank in range(self.count)]
        arrive = _sending(parts, [length if rank == source else 0 for rank in range(self.count)], self.group)
        return lambda: arrive()[source]

    def last(self, tensor: Tensor, count: int, what: str) -> Tensor:
        """Returns the last `count` positions of the whole rows, or fewer, in every process, without gradients: `(B,
        T_r, …)` → `(B, N, …)`."""
        low, (first, end) = max(0, self.total - count), self.range_of(self.rank)
        total = tensor.new_zeros(tensor.shape[0], self.total - low, *tensor.shape[2:])
        if end > low:
            start = max(first, low)
            total[:, start - low : end - low] = tensor.detach()[:, start - first :]
        self._count_ring(what, total)
        return _reduced(total, self.group) if total.numel() else total

    def with_leading(self, count: int) -> Shards:
        """Returns the shards of rows with `count` additional positions in front, which the first process holds."""
        longer = (self.lengths[0] + count, *self.lengths[1:])
        return self.once(("leading", count), lambda: replace(self, lengths=longer, _shared={}, sent=self.sent))

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Returns a value that all layers share, created by the first one that requests it."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]


def ring(size: int, processes: int) -> int:
    """Returns the bytes each process sends in a ring all-reduce of `size` bytes: P − 1 of P parts, twice
    (reduce-scatter and all-gather)."""
    return 2 * (processes - 1) * size // processes


def attend_all(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    processes: Processes,
    what: str,
    *,
    dropout_prob: float = 0.0,
) -> Tensor:
    """Computes attention of queries that every process has, `(B, H, Q, D)`, over the tokens of all shards → `(B, H, Q,
    D)`, equal in every process; other arguments as in `gathered_by_all`. Scores are `q·k / √D`.

    Many queries are processed in chunks, whose weights the backward pass recomputes.
    """

    def sums(query: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(query.dtype, torch.float32)
        with full_precision(query):
            scores = (query.to(wide) * query.shape[-1] ** -0.5) @ key.to(wide).mT
            return _softmax_sums(scores, value, mask, dropout_prob)

    pairs_per_query = query.shape[0] * query.shape[1] * key.shape[2]
    chunks = query.split(max(1, PAIRS // max(1, pairs_per_query)), 2)
    again = len(chunks) > 1 and torch.is_grad_enabled()
    parts: list[Any] = []
    with processes.own_draws(query.device) if dropout_prob else nullcontext():
        for chunk in chunks:
            parts.append(checkpoint(sums, chunk, use_reentrant=False) if again else sums(chunk))
    together, greatest = (torch.cat(tensors, 2) for tensors in zip(*parts, strict=True))
    return _over_all(together, greatest, processes, what).to(value.dtype)


def gathered_by_all(
    scores: Tensor, value: Tensor, mask: Tensor | None, processes: Processes, what: str, *, dropout_prob: float = 0.0
) -> Tensor:
    """Computes attention of a few queries over the tokens of all shards, `(B, H, Q, D)`, equal in every process.

    Each process sums over its own tokens with weights relative to its maximum score; one all-reduce combines the sums
    relative to the global maximum, which gives the softmax over all tokens.

    Args:
        scores: scores of the queries for this process's tokens, `(B, H, Q, T_r)`, float32 or wider.
        value: the values of these tokens, `(B, H, T_r, D)`.
        mask: `(B, T_r)` bool, True for real tokens; `None` means all. A row without real tokens gives 0.
        processes: the processes that hold the shards.
        what: the purpose under which bytes are counted.
        dropout_prob: probability of dropping an attention weight.
    """
    return _over_all(*_softmax_sums(scores, value, mask, dropout_prob), processes, what).to(value.dtype)


def _softmax_sums(scores: Tensor, value: Tensor, mask: Tensor | None, dropout_prob: float) -> tuple[Tensor, Tensor]:
    """Returns the sums of values and of weights relative to the maximum score, `(B, H, Q, D + 1)`, and the maximum,
    `(B, H, Q, 1)`."""
    least = torch.finfo(scores.dtype).min
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], least)
    greatest = functional.pad(scores.detach(), (0, int(not scores.shape[-1])), value=least).amax(-1, keepdim=True)
    weights = (scores - greatest).exp()
    if mask is not None:
        weights = weights.masked_fill(~mask[:, None, None, :], 0)
    context = functional.dropout(weights, dropout_prob) @ value.to(weights.dtype)
    return torch.cat([context, weights.sum(-1, keepdim=True)], -1), greatest


def _over_all(sums: Tensor, greatest: Tensor, processes: Processes, what: str) -> Tensor:
    """Combines the results of `_softmax_sums` of all shards into weighted means, `(B, H, Q, D)`."""
    sums = processes.summed(sums * (greatest - processes.greatest(greatest, what)).exp(), what)
    return sums[..., :-1] / sums[..., -1:].clamp(min=torch.finfo(sums.dtype).tiny)


@contextmanager
def _drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds random numbers within the context, and restores the generator afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def gathered_from(tensor: Tensor, group: Any) -> Tensor:
    """All-gathers `(…)` → `(P, …)`, without gradients."""
    wire = tensor.contiguous()
    parts = [torch.empty_like(wire) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, wire, group=group)
    return torch.stack(parts)


class _Gather(torch.autograd.Function):
    """All-gather in rank order; the gradient of a process's own part is the sum over all processes."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return gathered_from(tensor, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _reduced(grad, ctx.group)[dist.get_rank(ctx.group)], None


class _Sum(torch.autograd.Function):
    """All-reduce by sum; the gradient of each summand is the sum of the gradients in all processes."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _reduced(tensor, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _reduced(grad, ctx.group), None


def _reduced(tensor: Tensor, group: Any, operation: Any = dist.ReduceOp.SUM) -> Tensor:
    """All-reduces element by element, without gradients."""
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, operation, group)
    return total


class _Halo(torch.autograd.Function):
    """The own positions of a process and its halo, which other processes send."""

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
        own_grad = grad[:, first - low : end - low].clone()
        for (start, stop), part in zip(gave, _sent(parts, [b - a for a, b in gave], shards.group), strict=True):
            own_grad[:, start - first : stop - first] += part
        return own_grad, None, None


def _takes(shards: Shards, wanted: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the ranges of positions that this process receives from each of the others; empty for itself."""
    takes = [_overlap(wanted[shards.rank], shards.range_of(rank)) for rank in range(shards.count)]
    takes[shards.rank] = (shards.first, shards.first)
    return takes


def _overlap(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    low, high = max(first[0], second[0]), min(first[1], second[1])
    return (low, high) if low < high else (first[0], first[0])


def _sent(parts: Sequence[Tensor], lengths: list[int], group: Any) -> list[Tensor]:
    """Sends part r `(B, n_r, …)` to process r; returns what is received from each, `(B, lengths[r], …)`."""
    return _sending(parts, lengths, group)()


def _sending(parts: Sequence[Tensor], lengths: list[int], group: Any) -> Callable[[], list[Tensor]]:
    """Starts what `_sent` does; the returned function waits for the result."""
    rows, rest = parts[0].shape[0], parts[0].shape[2:]
    stride = rows * rest.numel()
    filled = [part.reshape(-1) for part in parts if part.numel()] or [parts[0].reshape(-1)]
    out = filled[0].contiguous() if len(filled) == 1 else torch.cat(filled)
    got = out.new_empty(stride * sum(lengths))
    sizes = [stride * length for length in lengths]
    work = dist.all_to_all_single(got, out, sizes, [part.numel() for part in parts], group, async_op=True)
    assert work is not None

    def arrived() -> list[Tensor]:
        work.wait()
        return [piece.view(rows, length, *rest) for piece, length in zip(got.split(sizes), lengths, strict=True)]

    return arrived
