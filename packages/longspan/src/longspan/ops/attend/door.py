"""`attend`: one attention operator for every pattern, with several backends."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.attend.backends import BACKENDS, NAMED, cheapest, compute
from longspan.ops.attend.call import Call, by_length, check_slots, joined, real_slots, slots_of_mask
from longspan.ops.attend.terms import Bias, Term
from longspan.ops.runtime import derivatives_of
from longspan.ops.tiles.layout import traits_of
from longspan.patterns import Pattern
from longspan.settings import show


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    pattern: Pattern,
    terms: Sequence[Term] = (),
    key_mask: Tensor | None = None,
    globals: Tensor | None = None,
    global_rows: bool = True,
    scale: float | None = None,
    dropout_prob: float = 0.0,
    query_offset: int = 0,
    backend: str = "auto",
) -> Tensor:
    """Computes softmax attention of each query over the keys that `pattern` makes visible.

    `softmax(scale·(QKᵀ + content terms) + biases) V` over the visible keys only (Vaswani et al. 2017, eq. 1); a query
    that sees nothing gives zeros.

    Args:
        query: `(B, H, T, D)`.
        key: `(B, H, S, D)`.
        value: `(B, H, S, Dv)`.
        pattern: which pairs of positions may attend, for all heads or `PerHead`.
        terms: terms added to the scores, from `longspan.ops.attend.terms`: `Bias`, `GlobalKeyBias`,
            `ContentToPosition`, `PositionToContent`, `PositionBias`, `SoftSpan`; any number of each.
        key_mask: key padding mask, `(B, S)` bool, True where a key is real; `None` means all are.
        globals: tokens that see every real key and are seen by every query, whatever the pattern: a `(B, S)` bool
            mask, or `(B, G)` int64 positions with −1 in unused slots (a static count, for `torch.compile` and
            `torch.export`). Requires T = S. A padded global token is ignored; a repeated one counts once.
        global_rows: if False, global tokens are keys only: their own rows follow the pattern.
        scale: factor on the scores, `D ** -0.5` by default.
        dropout_prob: probability of dropping an attention weight.
        query_offset: position of the first query, for queries that continue a sequence of keys.
        backend: `"reference"` (dense, quadratic memory), `"blocked"` (tiles, linear memory, any device), `"flex"`
            (FlexAttention on CUDA), or `"auto"`, the cheapest one that supports the call. All compute scores and
            softmax in float32 or wider, so results agree up to rounding in the dtype of the inputs. Forward-mode
            derivatives, and those of `torch.func`, are computed by `"reference"`.

    Returns:
        `(B, H, T, Dv)` in the dtype of the query.

    Raises:
        InputError: shapes or dtypes do not match, or the chosen backend does not support the call.
    """
    if not isinstance(backend, str) or (backend != "auto" and backend not in NAMED):
        raise InputError(f"backend={show(backend)} does not exist; choose one of auto, {', '.join(NAMED)}")
    options = {"key_mask": key_mask, "globals": globals, "global_rows": global_rows, "scale": scale}
    call = checked(
        query, key, value, pattern, terms, **options, dropout_prob=dropout_prob, query_offset=query_offset
    )  # fmt: skip
    if not traits_of(pattern).reads_length or torch.compiler.is_compiling() or derivatives_of(*call.tensors):
        return compute(call, backend)
    # A backend that does not support rows of different lengths gets those of one length at a time.
    taken = cheapest(call, by_row=True) if backend == "auto" else BACKENDS[backend]
    if taken is not None and taken.by_row and (backend != "auto" or taken.cost is None):
        return compute(call, backend)
    return joined(by_length(call), lambda part: compute(part, backend))


def checked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern,
    terms: Sequence[Term],
    *,
    key_mask: Tensor | None,
    globals: Tensor | None,
    global_rows: bool,
    scale: float | None,
    dropout_prob: float,
    query_offset: int,
) -> Call:
    """Returns the checked call of these arguments of `attend`; sizes may be symbols of a compiled graph.

    Raises:
        InputError: an argument has the wrong type, or the arguments do not match.
    """
    tensors = {"query": query, "key": key, "value": value}
    tensors |= {
        name: argument for name, argument in (("key_mask", key_mask), ("globals", globals)) if argument is not None
    }
    for name, argument in tensors.items():
        if not isinstance(argument, Tensor):
            raise InputError(f"{name} is of type {type(argument).__name__}; give a tensor")
    if not isinstance(terms, Sequence):
        raise InputError(f"terms is of type {type(terms).__name__}; give a list of those of longspan.ops.attend.terms")
    if not isinstance(global_rows, bool):
        raise InputError(f"global_rows is of type {type(global_rows).__name__}; give True or False")
    for name, number in (("scale", 1.0 if scale is None else scale), ("dropout_prob", dropout_prob)):
        if isinstance(number, bool) or not isinstance(number, float | int | torch.SymFloat | torch.SymInt):
            raise InputError(f"{name} is of type {type(number).__name__}; give a number")
    if isinstance(query_offset, bool) or not isinstance(query_offset, int | torch.SymInt):
        raise InputError(f"query_offset is of type {type(query_offset).__name__}; give a whole number")
    if isinstance(query_offset, int) and query_offset.bit_length() > 62:
        raise InputError(f"query_offset is {show(query_offset)}; give the position of a token")
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
        raise InputError(
            f"query, key and value have shapes {_shapes(query, key, value)}; "
            "give each four dimensions (B, H, length, D)"
        )
    if query.shape[:2] != key.shape[:2] or query.shape[-1] != key.shape[-1] or key.shape[:3] != value.shape[:3]:
        raise InputError(
            f"query, key and value have shapes {_shapes(query, key, value)}; "
            "they must be (B, H, T, D), (B, H, S, D), (B, H, S, Dv)"
        )
    if not query.dtype == key.dtype == value.dtype:
        raise InputError(
            f"query, key and value have dtypes {query.dtype}, {key.dtype}, {value.dtype}; give all the same"
        )
    if not isinstance(pattern, Pattern):
        raise InputError(
            f"pattern={show(pattern)} is no pattern; give one of longspan.patterns, or parse its text first"
        )
    heads = traits_of(pattern).heads
    if heads not in (None, query.shape[1]):
        raise InputError(f"pattern has {heads} heads and query has {query.shape[1]}; give one pattern for each head")
    if key_mask is not None and (key_mask.dtype != torch.bool or key_mask.shape != (key.shape[0], key.shape[2])):
        raise InputError(
            f"key_mask is {key_mask.dtype} of shape {tuple(key_mask.shape)}; "
            f"give bool of shape {(key.shape[0], key.shape[2])}"
        )
    if not 0 <= dropout_prob <= 1:
        raise InputError(f"dropout_prob={show(dropout_prob)} is no probability; give a number from 0 to 1")
    slots = None if globals is None else _slots(globals, query, key, key_mask, query_offset)
    if terms:
        terms = _checked_terms(terms, query, key, None if globals is None or globals.dtype == torch.bool else globals)
    if slots is not None and slots.shape[1] == 0:
        slots = None
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    rows = global_rows and slots is not None
    return Call(query, key, value, pattern, scale, tuple(terms), key_mask, slots, rows, dropout_prob, query_offset)


def _shapes(*tensors: Tensor) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors)


def _checked_terms(terms: Sequence[Term], query: Tensor, key: Tensor, slots: Tensor | None) -> list[Term]:
    """Returns the terms, with four-dimensional biases, after checking them against heads, lengths and slots."""
    sizes = dict(zip("BHTD", query.shape, strict=True)) | {"S": key.shape[2]}
    if slots is not None:
        sizes["G"] = slots.shape[1]
    for term in terms:
        if not isinstance(term, Term):
            raise InputError(
                f"terms holds {type(term).__name__}, which is no term; give those of longspan.ops.attend.terms"
            )
        wanted = term.shapes(sizes)
        for name in term.tensor_names:
            tensor, place = getattr(term, name), f"{name} of {type(term).__name__}"
            if tensor is None:
                continue
            if name in wanted and tensor.shape != wanted[name]:
                raise InputError(f"{place} has shape {tuple(tensor.shape)}; give {wanted[name]}")
            if not tensor.is_floating_point():
                raise InputError(f"{place} is {tensor.dtype}; give floating-point numbers")
    return [
        Bias(term.values[(None,) * (4 - term.values.ndim)], globals=term.globals) if isinstance(term, Bias) else term
        for term in terms
    ]


def _slots(globals: Tensor, query: Tensor, key: Tensor, key_mask: Tensor | None, query_offset: int) -> Tensor:
    """Returns global tokens as `(B, G)` slots, each real token once, −1 where unused."""
    length = key.shape[2]
    if query.shape[2] != length or query_offset:
        raise InputError(
            f"globals needs queries and keys at the same positions, not {query.shape[2]} queries at offset "
            f"{query_offset} and {length} keys; leave globals out when decoding step by step"
        )
    if globals.ndim != 2 or globals.shape[0] != key.shape[0] or globals.dtype not in (torch.bool, torch.int64):
        raise InputError(
            f"globals is {globals.dtype} of shape {tuple(globals.shape)}; give a bool mask {(key.shape[0], length)} "
            f"or int64 positions ({key.shape[0]}, G)"
        )
    if globals.dtype == torch.bool and globals.shape[1] != length:
        raise InputError(f"globals has {globals.shape[1]} positions and key has {length}; give them the same length")
    if globals.dtype == torch.bool:
        return slots_of_mask(globals if key_mask is None else globals & key_mask)
    check_slots("globals", globals, length)
    if not length:
        return globals[:, :0]  # only unused slots
    return real_slots(globals, key_mask)
