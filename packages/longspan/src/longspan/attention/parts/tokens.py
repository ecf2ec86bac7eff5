"""Properties of the positions of a batch besides the hidden states: padding, global tokens, shared tables."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.attend.call import mask_of_slots, real_slots, slots_of_mask
from longspan.ops.runtime import shared_in_pass
from longspan.patterns import Prefix
from longspan.settings import show

if TYPE_CHECKING:
    from longspan.ops.shards import Shards


def check_tensor(name: str, given: Any, remedy: str = "give a tensor") -> None:
    """Raises `InputError` for an argument that is neither a tensor nor None."""
    if given is not None and not isinstance(given, Tensor):
        raise InputError(f"{name} is {show(given)}, of type {type(given).__name__}; {remedy}")


AnyTokens = TypeVar("AnyTokens", bound="Tokens")


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Properties of the positions of a batch, besides their hidden states.

    Attributes:
        mask: attention mask, `(B, T)` bool, True for real tokens; `None` if every token is real. With a `state`, it
            covers all S positions of the sequence so far, of which the new T are the last.
        is_global: `(B, T)` bool, True for a token that attends to every token and is attended to by every token; `None`
            for none.
        global_slots: `(B, G)` int64 positions of the global tokens, −1 in unused slots; duplicates count once. Derived
            from `is_global` by default; a model derives it once for all of its layers, with `with_slots`.
        belongs_to: `(B, T)` int64, structure: the global token of its row to which each token belongs, counted from 0
            in the order of their positions, −1 for none. Values at padding and at global tokens are ignored. Only for
            mechanisms that support it.
        relative: tables that an encoder shares between its layers, such as relative positions, for mechanisms that
            define `shared_tables`.
        documents: `(B, T)` int64, packed sequences: the number of each token's document, contiguous in its row, −1 at
            padding. Documents do not attend to each other; `belongs_to` then counts the global tokens of a document.
        prefix: the pattern that replaces causal attention in rows that begin with a source that is read
            bidirectionally; only for mechanisms that support it.
        shards: how rows are sharded by sequence parallelism, each process having a contiguous part of the tokens and of
            all fields here; see `longspan.attention.features.sharded`.
        in_buffer: whether the one new token of each row attends to a state of a fixed size, with one compiled graph for
            every length of the text. The mask then covers the maximal length, with the text at its end and False before
            its first token; see `longspan.attention.features.static_cache`.
    """

    mask: Tensor | None = None
    is_global: Tensor | None = None
    global_slots: Tensor | None = None
    belongs_to: Tensor | None = None
    relative: tuple[Tensor, ...] | None = None
    documents: Tensor | None = None
    prefix: Prefix | None = None
    shards: Shards | None = None
    in_buffer: bool = False
    tensors: ClassVar[tuple[str, ...]] = ("mask", "is_global", "global_slots", "belongs_to", "documents")
    """Names of the fields with one tensor."""

    def __post_init__(self) -> None:
        for name in self.tensors:
            check_tensor(name, getattr(self, name))
        for name in ("mask", "is_global"):
            flags = getattr(self, name)
            if flags is not None and (flags.dtype != torch.bool or flags.dim() != 2):
                raise InputError(f"{name} is {flags.dtype} of shape {tuple(flags.shape)}; give a bool tensor (B, T)")
        slots = self.global_slots
        if slots is not None and (slots.dtype != torch.int64 or slots.dim() != 2):
            raise InputError(
                f"global_slots is {slots.dtype} of shape {tuple(slots.shape)}; give an int64 tensor (B, G)"
            )
        for name in ("belongs_to", "documents"):
            numbers = getattr(self, name)
            if numbers is not None and (numbers.dtype != torch.int64 or numbers.dim() != 2):
                raise InputError(
                    f"{name} is {numbers.dtype} of shape {tuple(numbers.shape)}; give an int64 tensor (B, T)"
                )

    def with_slots(self, max_globals: int | None = None) -> Self:
        """Returns the same tokens with `global_slots`; padding is never global.

        Args:
            max_globals: the static number of slots G, for `torch.compile(fullgraph=True)` and `torch.export`. By
                default, G is the largest count of the batch, which reads the data; without global tokens there
                are no slots.

        Raises:
            InputError: a row has more globals than `max_globals`.
        """
        if self.is_global is None or self.global_slots is not None:
            return self
        is_global = self.is_global if self.mask is None else self.is_global & self.mask
        counts = is_global.sum(1)
        if max_globals is None:
            max_globals = int(counts.max()) if is_global.numel() else 0
        elif torch.compiler.is_compiling():
            # The only check that is part of a compiled or exported program, which does not know the count.
            torch._assert_async((counts <= max_globals).all(), "max_globals is fewer than the global tokens of a row")
        elif bool((counts > max_globals).any()):
            raise InputError(
                f"max_globals={max_globals} is fewer than the {counts.max()} global tokens of a row; raise it"
            )
        if max_globals == 0:
            return replace(self, is_global=None)
        return replace(self, is_global=is_global, global_slots=slots_of_mask(is_global, max_globals))

    def real_slots(self) -> Tensor | None:
        """Returns `global_slots` with padding and duplicates replaced by −1."""
        if self.global_slots is None or (self.mask is not None and not self.mask.shape[1]):
            return None
        return real_slots(self.global_slots, self.mask)

    def last_mask(self, count: int) -> Tensor | None:
        """Returns the mask of the last `count` positions, `(B, count)`; with a state, these are the new ones."""
        return None if self.mask is None else self.mask[:, self.mask.shape[1] - count :]

    def places_from_the_first(self) -> Tensor | None:
        """Returns each row's positions from its first real token on, then those before it, `(B, T)` int64; `None` if
        every row begins with a real token. A compiled program, which cannot check, never returns `None`.
        """
        before = self.leading_places()
        if before is None or self.mask is None:
            return None
        return places_from(before, self.mask.shape[1])

    def leading_places(self) -> Tensor | None:
        """Returns the number of positions before each row's first real token, `(B,)` int64; `None` if every row begins
        with one. A compiled program, which cannot check, never returns `None`.
        """
        if self.mask is None or (not torch.compiler.is_compiling() and self._begins_real):
            return None
        return (self.mask.cumsum(1) == 0).sum(1)

    @cached_property
    def _begins_real(self) -> bool:
        """Checked once for all layers, since a GPU must be synchronised."""
        return self.mask is None or bool(self.mask[:, :1].all())

    def global_mask(self, length: int) -> Tensor | None:
        """Returns `(B, T)` bool, True at the real global tokens; `None` if there are none."""
        flags = self.is_global
        if flags is None and self.global_slots is not None:
            flags = mask_of_slots(self.global_slots, length)
        return flags if flags is None or self.mask is None else flags & self.mask


@dataclass(frozen=True, kw_only=True)
class StackTokens(Tokens):
    """`Tokens` with the further inputs of some stacks, which they name in `StackReads`.

    Attributes:
        places: `(1 or B, T)` int64, the position of each new token in its text, from 0, for stacks that add positions.
            `None` counts the real tokens of the mask.
        border: `(B,)` int64, the position at which the second part of each row begins, T for none, for stacks that
            process the parts separately.
        importance: `(B, T)`, the importance of each token, 0 or more, for stacks that weight tokens.
    """

    places: Tensor | None = None
    border: Tensor | None = None
    importance: Tensor | None = None

    tensors: ClassVar[tuple[str, ...]] = (*Tokens.tensors, "places", "border", "importance")

    @classmethod
    def of(cls, tokens: Tokens) -> StackTokens:
        """Returns tokens that may have been created for mechanisms alone, without further inputs then."""
        if isinstance(tokens, cls):
            return tokens
        return cls(**{field.name: getattr(tokens, field.name) for field in fields(tokens)})

    def text_places(self, count: int, device: torch.device, first: int = 0) -> Tensor:
        """Returns the positions of the last `count` tokens in their text, `(1 or B, T)` int64: `places`, or counted
        among the real tokens of the mask, or from `first` on if every token is real.
        """
        if self.places is not None:
            return self.places
        if self.mask is not None:
            return (self.mask.cumsum(1) - 1).clamp(min=0)[:, self.mask.shape[1] - count :]
        return torch.arange(first, first + count, device=device)[None]


def places_from(before: Tensor, length: int) -> Tensor:
    """Returns the positions of each row from `before` `(B,)` on, then those before it, `(B, T)` int64."""
    places = torch.arange(length, device=before.device) + before[:, None]
    return torch.where(places < length, places, places - length)


def in_order(tensor: Tensor, order: Tensor | None, *dims: int) -> Tensor:
    """Permutes the T places of `(B, …)` along the dimensions `dims`, by default 1, to each row's `order`, `(B, T)` or
    fewer places; `None` returns the tensor itself.
    """
    if order is None:
        return tensor
    for dim in dims or (1,):
        shape = [1] * tensor.ndim
        shape[0], shape[dim] = order.shape
        sizes = [*tensor.shape[:dim], order.shape[1], *tensor.shape[dim + 1 :]]
        tensor = tensor.gather(dim, order.view(shape).expand(sizes))
    return tensor


def inverse_order(order: Tensor) -> Tensor:
    """Returns the inverse of the order `(B, T)`, without a sort, which ONNX cannot express."""
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.zeros_like(order).scatter(1, order, places)


@shared_in_pass
def real_first(mask: Tensor) -> Tensor:
    """Returns an order `(B, T)` with the real tokens of a mask first."""
    places = torch.where(mask, mask.cumsum(1), mask.sum(1, keepdim=True) + (~mask).cumsum(1)) - 1
    return inverse_order(places)


def permuted(hidden: Tensor, tokens: AnyTokens, order: Tensor) -> tuple[Tensor, AnyTokens, Tensor]:
    """Permutes `(B, T, E)` and the properties of its tokens to each row's order `(B, T)`; also returns the inverse for
    `in_order`. Global tokens are those of the slots; for structure, they must keep their order.
    """
    mask, slots, back = _permuted_flags(tokens.mask, tokens.global_slots if order.shape[1] else None, order)
    belongs = None if tokens.belongs_to is None else in_order(tokens.belongs_to, order)
    tokens = replace(tokens, mask=mask, is_global=None, global_slots=slots, belongs_to=belongs)
    return in_order(hidden, order), tokens, back


@shared_in_pass
def _permuted_flags(
    mask: Tensor | None, slots: Tensor | None, order: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Permutes a mask and slots; also returns the inverse order."""
    back = inverse_order(order)
    if slots is not None:
        slots = torch.where(slots < 0, -1, back.gather(1, slots.clamp(min=0)))
    return None if mask is None else in_order(mask, order), slots, back
