"""What is known of each position of a batch besides its hidden state: padding, global tokens, shared tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longspan.attention.parts.relative import RelativeTables
from longspan.errors import InputError
from longspan.ops.slots import distinct_slots


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What is known of each position of a batch, besides its hidden state.

    Attributes:
        mask: `(B, T)` bool, True where a token is real; `None` means that every token is real. With a `state`, it
            covers all S positions of the sequence so far, the new T being the last.
        is_global: `(B, T)` bool, True where a token attends everywhere and is attended by everyone; `None` means none.
        global_slots: `(B, G)` int64 positions of the global tokens, −1 in unused slots; one named twice counts once.
            Derived from `is_global` when absent; a model derives it once for all of its layers, with `with_slots`.
        relative: tables of relative positions that an encoder shares between its layers; only mechanisms with relative
            positions read it.
    """

    mask: Tensor | None = None
    is_global: Tensor | None = None
    global_slots: Tensor | None = None
    relative: RelativeTables | None = None

    def __post_init__(self) -> None:
        for name in ("mask", "is_global"):
            flags = getattr(self, name)
            if flags is not None and (flags.dtype != torch.bool or flags.dim() != 2):
                raise InputError(f"{name} is {flags.dtype} of shape {tuple(flags.shape)}; give a bool tensor (B, T)")
        slots = self.global_slots
        if slots is not None and (slots.dtype != torch.int64 or slots.dim() != 2):
            raise InputError(
                f"global_slots is {slots.dtype} of shape {tuple(slots.shape)}; give an int64 tensor (B, G)"
            )

    def with_slots(self, max_globals: int | None = None) -> Tokens:
        """The same tokens with `global_slots` filled in; padding is never global.

        Args:
            max_globals: the static number of slots G, for `torch.compile(fullgraph=True)` and `torch.export`. Without
                it, G is the largest count of the batch, which reads the data; no global at all then gives no slots.

        Raises:
            InputError: a row has more globals than `max_globals`.
        """
        if self.is_global is None or self.global_slots is not None:
            return self
        is_global = self.is_global if self.mask is None else self.is_global & self.mask
        rank = is_global.cumsum(1)
        if max_globals is None:
            max_globals = int(rank[:, -1].max()) if rank.numel() else 0
        elif torch.compiler.is_compiling():
            # The only check that becomes part of a compiled or exported program, where the count is not known yet.
            torch._assert_async((rank <= max_globals).all(), "max_globals is fewer than the global tokens of a row")
        elif bool((rank > max_globals).any()):
            raise InputError(
                f"max_globals={max_globals} is fewer than the {rank.max()} global tokens of a row; raise it"
            )
        if max_globals == 0:
            return replace(self, is_global=None)
        slots = _slots(is_global, rank, max_globals)
        return replace(self, is_global=is_global, global_slots=slots)

    def real_slots(self) -> Tensor | None:
        """`global_slots` with each real position once; what is on padding, or named again, becomes −1."""
        if self.global_slots is None:
            return None
        slots = distinct_slots(self.global_slots)
        return slots if self.mask is None else torch.where(self.mask.gather(1, slots.clamp(min=0)), slots, -1)

    def global_mask(self, length: int) -> Tensor | None:
        """`(B, T)` bool, True at the real global positions; `None` when there are none."""
        flags = self.is_global
        if flags is None and self.global_slots is not None:
            slots = torch.where(self.global_slots < 0, length, self.global_slots)
            flags = torch.zeros(slots.shape[0], length + 1, dtype=torch.bool, device=slots.device)
            flags = flags.scatter(1, slots, True)[:, :length]
        return flags if flags is None or self.mask is None else flags & self.mask


def _slots(is_global: Tensor, rank: Tensor, count: int) -> Tensor:
    """Positions of the first `count` True entries of each row `(B, T)`, −1 where there are fewer: no data-dependent
    shape. Everything that is not kept is written to one spare column, which is then dropped."""
    positions = torch.arange(is_global.shape[1], device=is_global.device).expand(is_global.shape)
    column = torch.where(is_global, (rank - 1).clamp(max=count), count)
    slots = torch.full((is_global.shape[0], count + 1), -1, device=is_global.device, dtype=torch.int64)
    return slots.scatter(1, column, positions)[:, :count]
