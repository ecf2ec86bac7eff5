"""The backends of `attend` in one table, and the choice of the cheapest one that supports a call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.attend import adding, dense, flex, flex_options, reference
from longspan.ops.attend.call import Call
from longspan.ops.attend.dense import DENSE_PAIRS, HEADS_NUMBERS, MASK_NUMBERS
from longspan.ops.runtime import derivatives_of
from longspan.ops.tiles import blocked, blocked_operator
from longspan.ops.tiles.layout import traits_of


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One implementation of `attend`.

    Attributes:
        compute: computes `(B, H, T, Dv)` of a call.
        serves: whether it supports a call and is worth considering; evaluated if the fields below do not decide.
        cost: cost of a supported call, in scores of PyTorch's dense kernel; `None` if no other backend is faster.
        with_terms: whether calls must have terms (True) or must not (False); `None` accepts both.
        in_graph: likewise, whether it is for compiled graphs, which are one program for all lengths.
        on_gpu: likewise, whether it is for CUDA devices.
        derivatives: 0 for backward alone, 1 for those of `torch.func` too, 2 for forward mode too.
        by_row: whether it accepts rows of different lengths at once under a pattern that depends on the length.
        named: whether `attend` accepts its name as `backend`.
    """

    compute: Callable[[Call], Tensor]
    serves: Callable[[Call], bool]
    cost: Callable[[Call], float] | None = None
    with_terms: bool | None = None
    in_graph: bool | None = None
    on_gpu: bool | None = None
    derivatives: int = 0
    by_row: bool = False
    named: bool = False


def full_serves(call: Call) -> bool:
    """Whether PyTorch's kernel supports a call without terms: full attention, and causal attention of a whole sequence,
    except long padded inputs with dropout, for which the CPU kernel stores all weights. A compiled graph must serve
    every length."""
    traits = traits_of(call.pattern)
    if call.slots is not None or not (traits.is_full or (traits.is_causal and call.is_square)):
        return False
    if traits.is_full:
        return True
    if call.key_mask is None or not call.dropout_prob or call.query.is_cuda:
        return True
    return not torch.compiler.is_compiling() and call.query.shape[2] ** 2 <= DENSE_PAIRS


def single_serves(call: Call) -> bool:
    """Whether a call without terms has a single query, as in decoding, and a pattern that does not depend on the
    length."""
    return call.slots is None and call.query.shape[2] == 1 and not traits_of(call.pattern).reads_length


def tiles_serve(call: Call) -> bool:
    """Whether tiles compute a call directly: without gradients and dropout, with one pattern in one order."""
    return not (torch.is_grad_enabled() or call.dropout_prob or traits_of(call.pattern).is_rearranged)


def dense_serves(call: Call) -> bool:
    """Whether the mask of all pairs of a call without terms is small enough: a short input without dropout, and without
    global tokens on a GPU, whose positions would require a synchronisation."""
    (batch, _, queries), keys = call.query.shape[:3], call.key.shape[2]
    pairs, heads = queries * keys, traits_of(call.pattern).heads or 1
    if call.dropout_prob or (call.query.is_cuda and call.slots is not None) or not 0 < pairs <= DENSE_PAIRS:
        return False
    rows = 1 if call.key_mask is None and call.slots is None else batch
    return rows * heads * pairs <= MASK_NUMBERS and (heads == 1 or heads * pairs <= HEADS_NUMBERS)


def window_serves(call: Call) -> bool:
    """Whether PyTorch's FlashAttention supports a window, and FlexAttention is not faster on this device."""
    if not dense.flash_serves(call):
        return False
    return not (flex_options.is_faster_on_windows(call.query.device) and flex.flex_serves(call))


BACKENDS = {
    "kernel": Backend(compute=dense.attend_full, serves=full_serves, with_terms=False, derivatives=1),
    "single": Backend(compute=dense.attend_single, serves=single_serves, with_terms=False, in_graph=False),
    # As many scores as keys, in steps that a graph fuses.
    "step": Backend(compute=reference.attend_reference, serves=lambda call: call.query.shape[2] == 1, in_graph=True),
    "window": Backend(compute=dense.attend_window, serves=window_serves, with_terms=False, on_gpu=True),
    "masked": Backend(
        compute=dense.attend_masked, serves=dense.masked_serves, with_terms=False, in_graph=False, on_gpu=True
    ),
    "flex": Backend(compute=flex.attend_flex, serves=flex.flex_serves, on_gpu=True, by_row=True, named=True),
    "dense": Backend(
        compute=dense.attend_dense, serves=dense_serves, cost=dense.dense_cost, with_terms=False, in_graph=False
    ),
    "adding": Backend(
        compute=adding.attend_adding,
        serves=adding.adding_serves,
        cost=adding.adding_cost,
        with_terms=True,
        in_graph=False,
        on_gpu=False,
    ),
    "reference": Backend(
        compute=reference.attend_reference,
        serves=reference.trains_short,
        cost=reference.reference_cost,
        with_terms=True,
        in_graph=False,
        on_gpu=False,
        derivatives=2,
        by_row=True,
        named=True,
    ),
    "tiles": Backend(
        compute=blocked.attend_tiles,
        serves=tiles_serve,
        cost=blocked_operator.blocked_cost,
        with_terms=False,
        in_graph=False,
    ),
    "blocked": Backend(
        compute=blocked_operator.attend_blocked,
        serves=lambda call: len(call.terms) > 0 or torch.compiler.is_compiling() or not tiles_serve(call),
        cost=blocked_operator.blocked_cost,
        named=True,
    ),
}
"""Name → backend. Among equal costs, and among backends without a cost, the first is chosen. Calls that no backend
supports, under derivatives other than backward, are computed by the reference."""

NAMED = tuple(name for name, backend in BACKENDS.items() if backend.named)


def cheapest(call: Call, *, by_row: bool = False) -> Backend | None:
    """Returns the cheapest backend that supports a call, or `None`.

    Args:
        by_row: consider only backends that accept rows of different lengths at once.
    """
    terms, in_graph, on_gpu = len(call.terms) > 0, torch.compiler.is_compiling(), call.query.is_cuda
    derivatives = derivatives_of(call.query, call.key, call.value, *(call.tensors if terms else ()))
    serving = []
    for backend in BACKENDS.values():
        if (
            backend.with_terms is (not terms)
            or backend.in_graph is (not in_graph)
            or backend.on_gpu is (not on_gpu)
            or derivatives > backend.derivatives
            or (by_row and not backend.by_row)
            or not backend.serves(call)
        ):
            continue
        if backend.cost is None:
            return backend
        serving.append(backend)
    # The cost of a single candidate is not computed: counting the tiles of a long input takes time.
    return min(serving, key=lambda backend: backend.cost(call)) if len(serving) > 1 else next(iter(serving), None)


def compute(call: Call, name: str) -> Tensor:
    """Computes a call with the backend of that name, or with the cheapest one for "auto".

    Raises:
        InputError: the named backend does not support the call.
    """
    if name != "auto":
        backend = BACKENDS[name]
        if derivatives_of(*call.tensors) > backend.derivatives:
            raise InputError(
                f"backend={name!r} has no forward-mode derivatives and none by torch.func, which are asked for; "
                "use backend='reference', or plain backward"
            )
        return backend.compute(call)
    backend = cheapest(call) or BACKENDS["reference"]
    try:
        return backend.compute(call)
    except flex.FlexFailedError as error:  # it now rejects such calls
        warnings.warn(f"attention is computed by backend='blocked' instead: {error}", stacklevel=4)
        return compute(call, name)
