"""What every attention mechanism shares: the tokens it is told about, its configuration and its module."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from longspan.attention.parts.relative import RelativePositions, RelativeTables
from longspan.errors import InputError
from longspan.ops.reference import dense_mask, dense_weights
from longspan.ops.slots import check_slots, distinct_slots
from longspan.patterns import Pattern
from longspan.settings import Dropout, check


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


class KeyValueState:
    """The keys and values a causal mechanism has seen, kept for incremental decoding: `(B, H, S, D)` each.

    Attributes:
        length: positions seen so far; a mechanism that looks back only so far keeps fewer of them.
    """

    def __init__(self) -> None:
        self.key: Tensor | None = None
        self.value: Tensor | None = None
        self.length = 0

    def update(self, key: Tensor, value: Tensor, keep: int | None = None) -> tuple[Tensor, Tensor]:
        """Append new `(B, H, T, D)` keys and values; return the kept ones followed by these.

        Args:
            keep: how many of the last positions later tokens can still see; `None` keeps all.
        """
        self.length += key.shape[2]
        if self.key is not None and self.value is not None:
            key, value = torch.cat([self.key, key], dim=2), torch.cat([self.value, value], dim=2)
        first = 0 if keep is None else max(0, key.shape[2] - keep)
        self.key, self.value = key[:, :, first:], value[:, :, first:]
        return key, value

    def reorder(self, rows: Tensor) -> None:
        """Keep the batch rows `(B',)` int64, in this order: what beam search does after each step."""
        if self.key is not None and self.value is not None:
            self.key, self.value = self.key.index_select(0, rows), self.value.index_select(0, rows)


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Base of every mechanism's configuration: frozen, keyword-only, every field with a default."""

    mechanism: ClassVar[str]
    """The key under which `MECHANISMS` lists it."""
    bidirectional: ClassVar[bool] = True
    causal: ClassVar[bool] = False
    incremental: ClassVar[bool] = False
    """Whether `state=` is supported for token-by-token decoding (causal builds only)."""
    cost: ClassVar[str]
    """Scores per token, as a formula over the fields."""
    source: ClassVar[str]
    """Paper and equation."""

    dropout: Dropout = 0.0
    """Probability of dropping an attention weight during training."""

    def __post_init__(self) -> None:
        """Refuse what is not of its field's type, or outside its limits."""
        check(self)

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """Mean attention scores per token of `length` real tokens, `global_tokens` of them global: `cost`, counted."""
        raise NotImplementedError

    def build(self, *, width: int, heads: int, causal: bool = False) -> Attention:
        """Make the module: `width` is the model width E, `heads` the number of heads H (E = H·D)."""
        raise NotImplementedError

    def build_positions(self, width: int) -> RelativePositions | None:
        """Tables of relative positions that an encoder of `width` can share between its layers, `None` if there are
        none: it calls `share_positions` of each layer's attention, and passes the tables in `Tokens(relative=…)`."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the mechanism's name first; `AttentionConfig.from_dict` reverses it."""
        return {"mechanism": self.mechanism, **asdict(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Build this configuration from plain data; unknown keys raise."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(data) - set(known) - {"mechanism"})
        if unknown:
            raise InputError(
                f"attention {cls.mechanism!r} has no option {unknown[0]!r}; its options are {', '.join(known)}"
            )
        return cls(**{name: value for name, value in data.items() if name != "mechanism"})


class Attention(nn.Module):
    """An attention mechanism with its projections: hidden states in, hidden states out.

    The local projections are always called `query`, `key`, `value` and `output` (`nn.Linear(E, E)` with bias), so
    that published weights map onto any mechanism in the same way.
    """

    config: AttentionConfig

    def __init__(self, config: AttentionConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise InputError(f"heads={heads} does not divide width={width}; choose a number of heads that does")
        if causal and not config.causal:
            raise InputError(
                f"attention {config.mechanism!r} has no causal form; use causal=False or another mechanism"
            )
        if not causal and not config.bidirectional:
            raise InputError(f"attention {config.mechanism!r} is causal only; build it with causal=True")
        self.config = config
        self.width = width
        self.heads = heads
        self.head_width = width // heads
        self.causal = causal
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    @property
    def dropout_prob(self) -> float:
        """Probability of dropping a weight now: the configured one while training, else 0."""
        return self.config.dropout if self.training else 0.0

    def init_extra_weights(self, std: float = 0.02) -> None:
        """Set the weights beyond the four local projections, as the configuration says.

        Called at construction, and by a model after it has initialised or loaded the local projections. Weights that
        transformers marked as loaded are left alone.
        """

    def share_positions(self) -> None:
        """Give up tables of relative positions of one's own, for those of `Tokens(relative=…)`; here there are none."""

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`(B, T, E)` → local queries, keys and values, `(B, H, T, D)` each."""
        query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        return self.split_heads(query), self.split_heads(key), self.split_heads(value)

    def check_tokens(self, hidden: Tensor, tokens: Tokens, state: KeyValueState | None = None) -> None:
        """Raise `InputError` where `tokens` or `state` does not fit `hidden` `(B, T, E)` or this mechanism."""
        name = f"attention {self.config.mechanism!r}"
        if state is not None and not (self.causal and self.config.incremental):
            raise InputError(f"{name} got state=, which only causal mechanisms that keep a state take; pass state=None")
        if self.causal and (tokens.is_global is not None or tokens.global_slots is not None):
            raise InputError(
                f"{name} with causal=True takes no global tokens, which would see the future; pass is_global=None"
            )
        batch, length = hidden.shape[:2]
        past = 0 if state is None else state.length
        for flags, label, expected in ((tokens.mask, "mask", past + length), (tokens.is_global, "is_global", length)):
            if flags is not None and (flags.shape[0] != batch or flags.shape[1] != expected):
                raise InputError(
                    f"{label} has shape {tuple(flags.shape)}, but the sequence needs ({batch}, {expected})"
                )
        if tokens.global_slots is not None:
            if tokens.global_slots.shape[0] != batch:
                raise InputError(
                    f"global_slots has {tokens.global_slots.shape[0]} rows and the batch {batch}; give one for each"
                )
            check_slots("global_slots", tokens.global_slots, length)

    def split_heads(self, hidden: Tensor) -> Tensor:
        """`(B, T, E)` → `(B, H, T, D)`, without a copy."""
        return hidden.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)

    def merge_heads(self, hidden: Tensor) -> Tensor:
        """`(B, H, T, D)` → `(B, T, E)`."""
        return hidden.transpose(1, 2).flatten(2)

    def remember(
        self, key: Tensor, value: Tensor, tokens: Tokens, state: KeyValueState | None, keep: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None, int]:
        """Continue `state` with new `(B, H, T, D)` keys and values, of which later tokens see the last `keep`.

        Returns the keys and values to attend to, their mask `(B, S)` and the index of the first query among them.
        """
        new = key.shape[2]
        if state is not None:
            key, value = state.update(key, value, keep)
        offset = key.shape[2] - new
        mask = tokens.mask
        return key, value, mask if mask is None else mask[:, mask.shape[1] - new - offset :], offset

    def forward(self, hidden: Tensor, tokens: Tokens | None = None, state: KeyValueState | None = None) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`; with `state`, the T tokens continue the sequence that it holds."""
        raise NotImplementedError

    def dense_weights(
        self, query: Tensor, key: Tensor, pattern: Pattern, key_mask: Tensor | None, is_global: Tensor | None = None
    ) -> Tensor:
        """Weights `(B, H, T, S)` of queries on keys `(B, H, ·, D)`: quadratic, so never part of a forward pass."""
        seen = dense_mask(
            pattern,
            query.shape[2],
            key.shape[2],
            key_mask=key_mask,
            is_global=is_global,
            query_offset=0,
            device=query.device,
        )
        return dense_weights(query, key, seen, scale=query.shape[-1] ** -0.5)

    def weights(self, hidden: Tensor, tokens: Tokens | None = None) -> Tensor:
        """Dense attention weights `(B, H, T, S)`, for pictures and tests on short inputs."""
        raise NotImplementedError
