"""Patterns of two sets of keys, one near and one far, that tiles serve better apart than in one go.

Columns of single keys would make tiles of almost nothing. Gathered, or with the positions of a residue class side by
side, they are dense. Each set then has a softmax of its own; the logarithm of its sum says how much it counts for in
the one over both, so that the result is the same. Source of the sets: Sparse Transformer (Child et al. 2019, §4.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from longspan.ops.attend.call import Call
from longspan.ops.attend.terms import Bias
from longspan.ops.runtime import cached
from longspan.ops.tiles import blocked
from longspan.ops.tiles.arranged import Arranged, arrange, as_run, by_pattern, heads_only
from longspan.ops.tiles.biased import Biased
from longspan.ops.tiles.layout import least_cost, traits_of
from longspan.patterns import Blocks, NearFar, Pattern

NOTHING = 1e30
"""For the logarithm of a sum of nothing."""
CHEAPER = 0.8
"""Two sets are computed apart if their tiles cost at most so much of those for both at once."""


def split(call: Call) -> list[tuple[list[int] | slice, Whole | Apart | Biased]]:
    """The call as it is served best: some heads at a time, sets of their keys together or apart, in tiles or not."""
    if _has_only_biases(call):
        return [(slice(None), Biased(call))]
    sets = sets_of(call)
    if sets is not None:
        return [(slice(None), Apart(parts_of(call, sets)))]
    if traits_of(call.pattern).heads is not None:
        shared = [(heads, heads_only(call, heads, each)) for each, heads in by_pattern(call.pattern).items()]
        if any(sets_of(each) for _, each in shared):
            return [(as_run(heads), split(each)[0][1]) for heads, each in shared]
    return [(heads, Whole(part)) for heads, part in arrange(call)]


def _has_only_biases(call: Call) -> bool:
    """Whether all that a call has besides full or causal attention are biases of near keys."""
    if not call.terms or call.slots is not None or not all(isinstance(term, Bias) for term in call.terms):
        return False
    return call.pattern.is_full or call.pattern.is_causal


@dataclass(frozen=True)
class Whole:
    """A call whose keys are one set."""

    part: Arranged

    def output(self) -> Tensor:
        """Attention `(B, H, T, Dv)`."""
        return self.part.output(blocked.forward(self.part.call))

    def gradients(
        self, grad: Tensor, wanted: Sequence[bool], saved: tuple[Tensor, Tensor] | None = None
    ) -> list[Tensor]:
        """Those of query, key, value and the `wanted` tensors of the terms; nothing is saved for them."""
        part = self.part
        return part.gradients(blocked.backward(part.call, part.upstream(grad), wanted))


@dataclass(frozen=True)
class Apart:
    """A call of several sets of keys, each with its own arrangement."""

    parts: list[Arranged]

    def output(self) -> Tensor:
        """Attention `(B, H, T, Dv)` over all sets."""
        return self.output_with_logs()[0]

    def output_with_logs(self) -> tuple[Tensor, Tensor]:
        """The same, and the logarithms of the sums of its softmax, `(B, H, T, 1)`; a large number instead of −∞, of
        which every score is as good as −∞ below."""
        results = [blocked.forward_with_logs(part.call) for part in self.parts]
        outputs = [part.output(output) for part, (output, _) in zip(self.parts, results, strict=True)]
        logs = torch.stack([part.output(each) for part, (_, each) in zip(self.parts, results, strict=True)])
        shares = torch.softmax(logs, 0).nan_to_num_(0.0)  # a query that sees nothing at all gives zeros
        whole = sum((share * output for share, output in zip(shares, outputs, strict=True)), start=0 * shares[0])
        total = logs.logsumexp(0)
        return whole.to(outputs[0].dtype), total.masked_fill_(total == -math.inf, NOTHING)

    def gradients(
        self, grad: Tensor, wanted: Sequence[bool], saved: tuple[Tensor, Tensor] | None = None
    ) -> list[Tensor]:
        """Those of query, key and value; `saved` is what `output_with_logs` gave."""
        whole, logs = self.output_with_logs() if saved is None else saved
        products = (grad.to(logs.dtype) * whole).sum(-1, keepdim=True)
        total: list[Tensor] = []
        for part in self.parts:
            beside = part.permuted(logs), part.upstream(products)  # what fills up classes asks for nothing
            own = part.gradients(blocked.backward(part.call, part.upstream(grad), wanted, beside))
            total = [each + more for each, more in zip(total, own, strict=True)] if total else own
        return total


def has_sets(pattern: Pattern) -> bool:
    """Whether some head has two sets of keys, which long inputs without terms compute apart."""
    return any(near_far_of(pattern.head(index)) is not None for index in range(pattern.heads or 1))


@lru_cache(maxsize=256)
def near_far_of(pattern: Pattern) -> NearFar | None:
    """`pattern.near_far()`, asked once of each pattern."""
    return pattern.near_far()


def sets_of(call: Call) -> NearFar | None:
    """The two sets of a call, where they are better apart."""
    sets = near_far_of(call.pattern) if call.is_square and not call.terms else None
    return sets if sets is not None and _cheaper_apart(call.pattern, call.query.shape[2]) else None


@cached
def _cheaper_apart(pattern: Pattern, length: int) -> bool:
    sets = near_far_of(pattern)
    assert sets is not None
    if sets.columns is None:
        inner = sets.far.residues()
        assert inner is not None
        each = -(-length // inner.classes)
        far = least_cost(inner.inner & Blocks(each), each * inner.classes, each * inner.classes)
    else:
        far = least_cost(sets.far, length, sets.columns.count(length))
    return least_cost(sets.near, length, length) + far <= CHEAPER * least_cost(pattern, length, length)


def parts_of(call: Call, sets: NearFar) -> list[Arranged]:
    """The calls, near and far; global keys count in the near one."""
    length = call.query.shape[2]
    near = arrange(replace(call, pattern=sets.near))[0][1]
    far = replace(call, pattern=sets.far, slots=None, seed=call.seed + 0x5DEECE66D)
    if sets.columns is None:
        return [near, arrange(far)[0][1]]
    index = _gathered_places(call.pattern, length, call.query.device)
    key, value = call.key.index_select(2, index), call.value.index_select(2, index)
    mask = None if call.key_mask is None else call.key_mask.index_select(1, index)
    return [near, _Gathered(replace(far, key=key, value=value, key_mask=mask), index, length)]


@cached
def _gathered_places(pattern: Pattern, length: int, device: torch.device) -> Tensor:
    """Which keys the far set of a pattern gathers, `(S',)` int64."""
    sets = near_far_of(pattern)
    assert sets is not None
    assert sets.columns is not None
    return sets.columns.places(length).to(device)


@dataclass(frozen=True)
class _Gathered(Arranged):
    """Some of the keys, by themselves, at the places `index` `(S',)` of `length`."""

    index: Tensor
    length: int

    def gradients(self, grads: list[Tensor]) -> list[Tensor]:
        whole = (grad.new_zeros(*grad.shape[:2], self.length, grad.shape[3]) for grad in grads[1:3])
        placed = (each.index_copy_(2, self.index, grad) for each, grad in zip(whole, grads[1:3], strict=True))
        return [grads[0], *placed, *grads[3:]]
