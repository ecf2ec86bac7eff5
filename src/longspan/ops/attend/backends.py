"""The ways to compute a call of `attend`, in one table, and the choice of the cheapest that serves it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.attend import adding, dense, flex, reference
from longspan.ops.attend.call import Call
from longspan.ops.kernels import banded
from longspan.ops.runtime import derivatives_of
from longspan.ops.tiles import blocked_operator


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A way to compute a call.

    Attributes:
        compute: computes `(B, H, T, Dv)` of a call.
        serves: whether it computes a call and is worth considering; not asked where a field below excludes the call.
        cost: of a call that it serves, in scores of PyTorch's dense kernel; `None` if no other is faster.
        terms: whether it takes calls with terms.
        in_graph: whether it serves in a compiled graph, which is one program for all lengths.
        derivatives: 0 for backward alone, 1 for those of `torch.func` too, 2 for forward mode too.
        by_row: whether it takes rows of different lengths at once under a pattern that depends on the length.
        named: whether `attend` takes its name as `backend`.
    """

    compute: Callable[[Call], Tensor]
    serves: Callable[[Call], bool]
    cost: Callable[[Call], float] | None = None
    terms: bool = False
    in_graph: bool = False
    derivatives: int = 0
    by_row: bool = False
    named: bool = False


BACKENDS = {
    "kernel": Backend(compute=dense.attend_full, serves=dense.full_serves, in_graph=True, derivatives=1),
    "triton": Backend(compute=banded.attend_triton, serves=banded.triton_serves, terms=True, in_graph=True, named=True),
    "single": Backend(compute=dense.attend_single, serves=dense.single_serves),
    "step": Backend(compute=reference.attend_reference, serves=reference.step_serves, terms=True, in_graph=True),
    "window": Backend(compute=dense.attend_window, serves=dense.window_serves),
    "masked": Backend(compute=dense.attend_masked, serves=dense.masked_serves),
    "flex": Backend(
        compute=flex.attend_flex, serves=flex.flex_serves, terms=True, in_graph=True, by_row=True, named=True
    ),
    "dense": Backend(compute=dense.attend_dense, serves=dense.dense_serves, cost=dense.dense_cost),
    "adding": Backend(compute=adding.attend_adding, serves=adding.adding_serves, cost=adding.adding_cost, terms=True),
    "reference": Backend(
        compute=reference.attend_reference,
        serves=reference.trains_short,
        cost=reference.reference_cost,
        terms=True,
        derivatives=2,
        by_row=True,
        named=True,
    ),
    "blocked": Backend(
        compute=blocked_operator.attend_blocked,
        serves=lambda call: True,
        cost=blocked_operator.blocked_cost,
        terms=True,
        in_graph=True,
        named=True,
    ),
}
"""Name → backend. Of equal cost, and of those without one, the first is taken."""

NAMED = tuple(name for name, backend in BACKENDS.items() if backend.named)


def cheapest(call: Call, *, by_row: bool = False) -> Backend | None:
    """The backend that computes a call at the least cost; `None` where none serves it.

    Args:
        by_row: consider only those that take rows of different lengths at once.
    """
    terms, in_graph = len(call.terms) > 0, torch.compiler.is_compiling()
    derivatives = derivatives_of(call.query, call.key, call.value, *(call.tensors if terms else ()))
    serving = []
    for backend in BACKENDS.values():
        if (
            (terms and not backend.terms)
            or (in_graph and not backend.in_graph)
            or derivatives > backend.derivatives
            or (by_row and not backend.by_row)
            or not backend.serves(call)
        ):
            continue
        if backend.cost is None:
            return backend
        serving.append(backend)
    # A single one is not asked what it costs: counting the tiles of a long input takes time.
    return min(serving, key=lambda backend: backend.cost(call)) if len(serving) > 1 else next(iter(serving), None)


def compute(call: Call, name: str) -> Tensor:
    """Compute a call by the backend of that name, or by the cheapest one for "auto".

    Raises:
        InputError: the backend that is named does not serve the call.
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
    except flex.FlexFailedError as error:  # it no longer serves such calls
        warnings.warn(f"attention is computed by backend='blocked' instead: {error}", stacklevel=4)
        return compute(call, name)
