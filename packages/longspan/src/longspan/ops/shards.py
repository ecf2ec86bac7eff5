"""Rows divided between processes: which of them holds which tokens, and the exchange of tensors between them.

Every process of the group makes the same calls in the same order, in backward too.
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
"""Most pairs of a query and a key whose weights there are at a time."""


@dataclass(frozen=True)
class Processes:
    """Processes that work on the same rows, and exchange tensors.

    Attributes:
        group: the processes; `None` means all.
        sent: bytes that this process has sent to others in forward passes, by what was exchanged.
    """

    group: Any
    sent: dict[str, int] = field(default_factory=dict, compare=False, kw_only=True)

    @cached_property
    def rank(self) -> int:
        """The number of this process in the group."""
        return dist.get_rank(self.group)

    @property
    def count(self) -> int:
        """How many processes there are, P."""
        return dist.get_world_size(self.group)

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
        return _reduced(tensor.detach(), self.group, dist.ReduceOp.MAX)

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether it is so in any of the processes."""
        return bool(gathered_from(torch.tensor([flag], device=device), self.group).any())

    @contextmanager
    def same_draws(self, device: torch.device) -> Iterator[None]:
        """Let all processes draw the same random numbers for a while, as those that compute the same have to."""
        seed = torch.randint(1 << 31, ()).to(device)
        with _drawing_from(int(gathered_from(seed, self.group)[0]), device):
            yield

    @contextmanager
    def own_draws(self, device: torch.device) -> Iterator[None]:
        """Let each draw numbers of its own, and as many as it will, where all have drawn the same ones before and will
        do so again."""
        with _drawing_from(int(torch.randint(1 << 31, ())) + self.rank, device):
            yield

    def _count(self, what: str, size: int) -> None:
        self.sent[what] = self.sent.get(what, 0) + size

    def _count_ring(self, what: str, tensor: Tensor) -> None:
        self._count(what, ring(tensor.numel() * tensor.element_size(), self.count))


@dataclass(frozen=True)
class Shards(Processes):
    """How the T tokens of each row are divided between the processes of a group, in their order.

    Attributes:
        lengths: how many tokens each of them holds, padding counted.
    """

    lengths: tuple[int, ...]
    _shared: dict[Any, Any] = field(default_factory=dict, compare=False, kw_only=True)

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
        return self.with_places(tensor, [self.halo_of(rank, left, right, period) for rank in range(self.count)])

    def with_places(self, tensor: Tensor, wanted: list[tuple[int, int]]) -> Tensor:
        """As `with_halo`, the first place that each process needs and the one behind its last being given."""
        return _Halo.apply(tensor, self, wanted)  # pyright: ignore[reportReturnType]

    def last(self, tensor: Tensor, count: int, what: str) -> Tensor:
        """Of `(B, T_r, …)` the last so many places of whole rows, fewer where there are fewer, in every process and
        without gradients: `(B, N, …)`."""
        low, (first, end) = max(0, self.total - count), self.range_of(self.rank)
        own = tensor.new_zeros(tensor.shape[0], self.total - low, *tensor.shape[2:])
        if end > low:
            start = max(first, low)
            own[:, start - low : end - low] = tensor.detach()[:, start - first :]
        self._count_ring(what, own)
        return _reduced(own, self.group) if own.numel() else own

    def behind(self, count: int) -> Shards:
        """The rows with so many places more in front, which the first process holds with its own."""
        longer = (self.lengths[0] + count, *self.lengths[1:])
        return self.once(("behind", count), lambda: replace(self, lengths=longer, _shared={}, sent=self.sent))

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What all layers share, made when the first of them asks."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]


def ring(size: int, processes: int) -> int:
    """Bytes that each process sends in an all-reduce of so many around a ring: P − 1 of P parts twice, once summing and
    once handing on."""
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
    """What queries that every process has, `(B, H, Q, D)`, gather from the tokens of all shards, `(B, H, Q, D)`, the
    same in every process; other arguments as in `gathered_by_all`. Scores are `q·k / √D`.

    With many queries it takes some at a time, whose weights backward computes again.
    """

    def sums(query: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(query.dtype, torch.float32)
        with full_precision(query):
            scores = (query.to(wide) * query.shape[-1] ** -0.5) @ key.to(wide).mT
            return _softmax_sums(scores, value, mask, dropout_prob)

    each = query.shape[0] * query.shape[1] * key.shape[2]
    chunks = query.split(max(1, PAIRS // max(1, each)), 2)
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
    """What a few queries gather from the tokens of all shards, `(B, H, Q, D)`, the same in every process.

    Each process sums up its own tokens by weights relative to its greatest score, and one all-reduce brings the sums
    together relative to the greatest of all, so that it is the softmax over all tokens.

    Args:
        scores: of the queries with this process's tokens, `(B, H, Q, T_r)` in at least float32.
        value: of these, `(B, H, T_r, D)`.
        mask: `(B, T_r)` bool, which of them are real; `None` means all. A row without any gathers 0.
        processes: those that hold the shards.
        what: by which name bytes are counted.
        dropout_prob: probability of dropping an attention weight.
    """
    return _over_all(*_softmax_sums(scores, value, mask, dropout_prob), processes, what).to(value.dtype)


def _softmax_sums(scores: Tensor, value: Tensor, mask: Tensor | None, dropout_prob: float) -> tuple[Tensor, Tensor]:
    """Sums of values and of weights relative to the greatest score, `(B, H, Q, D + 1)`, and that, `(B, H, Q, 1)`."""
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
    greatest = scores.detach().amax(-1, keepdim=True)
    weights = (scores - greatest).exp()
    if mask is not None:
        weights = weights.masked_fill(~mask[:, None, None, :], 0)
    context = functional.dropout(weights, dropout_prob) @ value.to(weights.dtype)
    return torch.cat([context, weights.sum(-1, keepdim=True)], -1), greatest


def _over_all(sums: Tensor, greatest: Tensor, processes: Processes, what: str) -> Tensor:
    """The weighted means over all shards of what `_softmax_sums` made of each of them, `(B, H, Q, D)`."""
    sums = processes.summed(sums * (greatest - processes.greatest(greatest, what)).exp(), what)
    return sums[..., :-1] / sums[..., -1:].clamp(min=torch.finfo(sums.dtype).tiny)


@contextmanager
def _drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from a seed on; behind it, those that would have come without it."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


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
        return _reduced(grad, ctx.group)[dist.get_rank(ctx.group)], None


class _Sum(torch.autograd.Function):
    """The sum over the processes; the gradient of each summand is the sum of what the processes make of the result."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _reduced(tensor, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _reduced(grad, ctx.group), None


def _reduced(tensor: Tensor, group: Any, operation: Any = dist.ReduceOp.SUM) -> Tensor:
    """What all processes have, put together element by element, in every process, without gradients."""
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, operation, group)
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
