"""Patterns with a near and a far set of keys, which tiles compute faster separately.

Columns of single keys would make nearly empty tiles. Gathered, or with the positions of a residue class next to each
other, they are dense. Each set has its own softmax, and the outputs are combined by their log-sum-exp into the softmax
over both. Source of the sets: Sparse Transformer (Child et al. 2019, §4.3).
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
from longspan.ops.tiles.band import Band, band_serves
from longspan.ops.tiles.biased import Biased
from longspan.ops.tiles.layout import least_cost, traits_of
from longspan.patterns import Blocks, NearFar, Pattern

NOTHING = 1e30
"""Replaces the log-sum-exp over no keys."""
CHEAPER = 0.8
"""Two sets are computed separately if their tiles cost at most this fraction of the tiles for both at once."""


def split(call: Call) -> list[tuple[list[int] | slice, Whole | Apart | Biased | Band]]:
    """Returns the cheapest way to compute the call: heads together or in parts, sets of keys together or separate, with
    tiles or not."""
    if _has_only_biases(call):
        return [(slice(None), Biased(call))]
    if call.query.is_cuda and band_serves(call):
        return [(slice(None), Band(call))]
    sets = sets_of(call)
    if sets is not None:
        return [(slice(None), Apart(parts_of(call, sets)))]
    if traits_of(call.pattern).heads is not None:
        shared = [(heads, heads_only(call, heads, pattern)) for pattern, heads in by_pattern(call.pattern).items()]
        if any(sets_of(part) for _, part in shared):
            return [(as_run(heads), split(part)[0][1]) for heads, part in shared]
    return [(heads, Whole(part)) for heads, part in arrange(call)]


def _has_only_biases(call: Call) -> bool:
    """Whether a call is full or causal attention with biases of near keys only."""
    if not call.terms or call.slots is not None or not all(isinstance(term, Bias) for term in call.terms):
        return False
    return call.pattern.is_full or call.pattern.is_causal


@dataclass(frozen=True)
class Whole:
    """A call with one set of keys."""

    part: Arranged

    def output(self) -> Tensor:
        """Computes attention `(B, H, T, Dv)`."""
        return self.part.output(blocked.forward(self.part.call))

    def gradients(
        self, grad: Tensor, wanted: Sequence[bool], saved: tuple[Tensor, Tensor] | None = None
    ) -> list[Tensor]:
        """Returns the gradients of query, key, value and the `wanted` tensors of the terms; `saved` is not used."""
        part = self.part
        return part.gradients(blocked.backward(part.call, part.upstream(grad), wanted))


@dataclass(frozen=True)
class Apart:
    """A call with several sets of keys, each with its own arrangement."""

    parts: list[Arranged]

    def output(self) -> Tensor:
        """Computes attention `(B, H, T, Dv)` over all sets."""
        return self.output_with_logs()[0]

    def output_with_logs(self) -> tuple[Tensor, Tensor]:
        """As `output`, and returns the log-sum-exp over all sets, `(B, H, T, 1)`, with a large number instead of −∞, so
        that `exp(score − log)` is 0."""
        results = [blocked.forward_with_logs(part.call) for part in self.parts]
        outputs = [part.output(output) for part, (output, _) in zip(self.parts, results, strict=True)]
        logs = torch.stack([part.output(part_logs) for part, (_, part_logs) in zip(self.parts, results, strict=True)])
        shares = torch.softmax(logs, 0).nan_to_num_(0.0)  # a query that sees nothing has output 0
        whole = sum((share * output for share, output in zip(shares, outputs, strict=True)), start=0 * shares[0])
        total = logs.logsumexp(0)
        return whole.to(outputs[0].dtype), total.masked_fill_(total == -math.inf, NOTHING)

    def gradients(
        self, grad: Tensor, wanted: Sequence[bool], saved: tuple[Tensor, Tensor] | None = None
    ) -> list[Tensor]:
        """Returns the gradients of query, key and value; `saved` is the result of `output_with_logs`."""
        whole, logs = self.output_with_logs() if saved is None else saved
        products = (grad.to(logs.dtype) * whole).sum(-1, keepdim=True)
        total: list[Tensor] = []
        for part in self.parts:
            whole_softmax = part.permuted(logs), part.upstream(products)  # padding of residue classes has gradient 0
            part_grads = part.gradients(blocked.backward(part.call, part.upstream(grad), wanted, whole_softmax))
            total = [grad_sum + more for grad_sum, more in zip(total, part_grads, strict=True)] if total else part_grads
        return total


def has_sets(pattern: Pattern) -> bool:
    """Whether some head has two sets of keys, which long inputs without terms compute separately."""
    return any(near_far_of(pattern.head(index)) is not None for index in range(pattern.heads or 1))


@lru_cache(maxsize=256)
def near_far_of(pattern: Pattern) -> NearFar | None:
    """Returns `pattern.near_far()`, cached."""
    return pattern.near_far()


def sets_of(call: Call) -> NearFar | None:
    """Returns the two sets of keys of a call if computing them separately is cheaper, otherwise `None`."""
    sets = near_far_of(call.pattern) if call.is_square and not call.terms else None
    return sets if sets is not None and _cheaper_apart(call.pattern, call.query.shape[2]) else None


@cached
def _cheaper_apart(pattern: Pattern, length: int) -> bool:
    sets = near_far_of(pattern)
    assert sets is not None
    if sets.columns is None:
        inner = sets.far.residues()
        assert inner is not None
        class_length = -(-length // inner.classes)
        far = least_cost(inner.inner & Blocks(class_length), class_length * inner.classes, class_length * inner.classes)
    else:
        far = least_cost(sets.far, length, sets.columns.count(length))
    return least_cost(sets.near, length, length) + far <= CHEAPER * least_cost(pattern, length, length)


def parts_of(call: Call, sets: NearFar) -> list[Arranged]:
    """Returns the near and the far call; global keys are in the near one."""
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
    """Returns the positions of the keys that the far set of a pattern gathers, `(S',)` int64."""
    sets = near_far_of(pattern)
    assert sets is not None
    assert sets.columns is not None
    return sets.columns.places(length).to(device)


@dataclass(frozen=True)
class _Gathered(Arranged):
    """A gathered subset of the keys, at the positions `index` `(S',)` of `length`."""

    index: Tensor
    length: int

    def gradients(self, grads: list[Tensor]) -> list[Tensor]:
        whole = (grad.new_zeros(*grad.shape[:2], self.length, grad.shape[3]) for grad in grads[1:3])
        placed = (total.index_copy_(2, self.index, grad) for total, grad in zip(whole, grads[1:3], strict=True))
        return [grads[0], *placed, *grads[3:]]
