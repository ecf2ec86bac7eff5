"""One call of `attend`, checked: the object that every backend takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.attend.slots import check_slots, distinct_slots, slots_of_mask
from longspan.ops.attend.terms import Bias, OffsetTerm, Term
from longspan.patterns import Pattern
from longspan.settings import show


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of `longspan.attend`, as checked: every part fits the others.

    Attributes:
        slots: `(B, G)` int64 positions of real global tokens, each once, −1 where unused; `None` for no slot at all.
        seed: start of the random numbers of dropout, on tiles.
        step: how many positions one place counts for in offsets, where tiles hold positions in another order.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    pattern: Pattern
    scale: float
    terms: tuple[Term, ...] = ()
    key_mask: Tensor | None = None
    slots: Tensor | None = None
    global_rows: bool = False
    dropout_prob: float = 0.0
    query_offset: int = 0
    seed: int = 0
    step: int = 1

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that may have a gradient."""
        return [self.query, self.key, self.value, *(tensor for term in self.terms for tensor in term.tensors)]

    @property
    def beside(self) -> int:
        """Number of global keys, G."""
        return 0 if self.slots is None else self.slots.shape[1]

    @property
    def is_square(self) -> bool:
        """Whether queries and keys are the same positions."""
        return self.query.shape[2] == self.key.shape[2] and not self.query_offset

    @property
    def has_offsets(self) -> bool:
        """Whether a term depends on the offset of two tokens."""
        return any(isinstance(term, OffsetTerm) for term in self.terms)


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
    """The call of these arguments of `longspan.attend`.

    Raises:
        InputError: they do not fit together, in one sentence.
    """
    _check_kinds(query, key, value, terms, key_mask, globals, global_rows, scale, dropout_prob, query_offset)
    _check_heads(query, key, value)
    if not isinstance(pattern, Pattern):
        raise InputError(f"pattern={pattern!r} is no pattern; give one of longspan.patterns, or parse its text first")
    if pattern.heads not in (None, query.shape[1]):
        raise InputError(
            f"pattern has {pattern.heads} heads and query has {query.shape[1]}; give one pattern for each head"
        )
    if key_mask is not None and (key_mask.dtype != torch.bool or key_mask.shape != (key.shape[0], key.shape[2])):
        raise InputError(
            f"key_mask is {key_mask.dtype} of shape {tuple(key_mask.shape)}; "
            f"give bool of shape {(key.shape[0], key.shape[2])}"
        )
    if not 0 <= dropout_prob <= 1:
        raise InputError(f"dropout_prob={dropout_prob} is no probability; give a number from 0 to 1")
    slots = None if globals is None else _slots(globals, query, key, key_mask, query_offset)
    _check_terms(terms, query, key, None if globals is None or globals.dtype == torch.bool else globals)
    if slots is not None and slots.shape[1] == 0:
        slots = None
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    kept = tuple(_four_dimensions(term) for term in terms)
    rows = global_rows and slots is not None
    return Call(query, key, value, pattern, scale, kept, key_mask, slots, rows, dropout_prob, query_offset)


def _check_kinds(
    query: Any,
    key: Any,
    value: Any,
    terms: Any,
    key_mask: Any,
    globals: Any,
    global_rows: Any,
    scale: Any,
    dropout_prob: Any,
    query_offset: Any,
) -> None:
    """Raise unless every argument is of its kind; numbers may be symbols of a compiled graph."""
    tensors = {"query": query, "key": key, "value": value}
    tensors |= {name: given for name, given in (("key_mask", key_mask), ("globals", globals)) if given is not None}
    for name, given in tensors.items():
        if not isinstance(given, Tensor):
            raise InputError(f"{name} is of type {type(given).__name__}; give a tensor")
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


def _check_heads(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise unless query, key and value are `(B, H, T, D)`, `(B, H, S, D)`, `(B, H, S, Dv)` of one type."""
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


def _shapes(*tensors: Tensor) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors)


def _check_terms(terms: Sequence[Term], query: Tensor, key: Tensor, slots: Tensor | None) -> None:
    """Raise unless every term fits the heads, the lengths and the slots."""
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


def _four_dimensions(term: Term) -> Term:
    if not isinstance(term, Bias):
        return term
    return Bias(term.values[(None,) * (4 - term.values.ndim)], globals=term.globals)


def _slots(globals: Tensor, query: Tensor, key: Tensor, key_mask: Tensor | None, query_offset: int) -> Tensor:
    """Global tokens as `(B, G)` slots, each real token once, −1 where unused."""
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
    if globals.dtype == torch.bool:
        if globals.shape[1] != length:
            raise InputError(
                f"globals has {globals.shape[1]} positions and key has {length}; give them the same length"
            )
        return slots_of_mask(globals if key_mask is None else globals & key_mask)
    check_slots("globals", globals, length)
    if not length:
        return globals[:, :0]  # nothing but unused slots
    slots = distinct_slots(globals)
    if key_mask is not None:
        slots = torch.where(torch.gather(key_mask, 1, slots.clamp(min=0)), slots, -1)
    return slots
