"""What every attention mechanism is: a configuration and a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from longspan.attention.parts.relative import RelativePositions
from longspan.attention.parts.tokens import Tokens
from longspan.errors import InputError
from longspan.ops.slots import check_slots
from longspan.settings import Dropout, check


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
    exempt: ClassVar[Mapping[str, str]] = {}
    """Laws of `tests/contract` that do not apply, each with the reason, which stands in the refusal: `"bidirectional"`,
    `"causal"`, `"state"`, `"globals"`, and `"linear"`, of which only the cost speaks."""

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

    @classmethod
    def since(cls, law: str) -> str:
        """Why a law does not apply, as the end of a clause; empty where no reason is given."""
        return f", since {cls.exempt[law]}" if law in cls.exempt else ""

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
    """An attention mechanism: hidden states in, hidden states out. It has no weights of its own accord; most mechanisms
    are a `ProjectedAttention`, which brings the usual four projections."""

    config: AttentionConfig

    def __init__(self, config: AttentionConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise InputError(f"heads={heads} does not divide width={width}; choose a number of heads that does")
        if causal and not config.causal:
            raise InputError(
                f"attention {config.mechanism!r} has no causal form{config.since('causal')}; use causal=False or "
                "another mechanism"
            )
        if not causal and not config.bidirectional:
            raise InputError(
                f"attention {config.mechanism!r} is causal only{config.since('bidirectional')}; build it with "
                "causal=True"
            )
        self.config = config
        self.width = width
        self.heads = heads
        self.head_width = width // heads
        self.causal = causal

    @property
    def dropout_prob(self) -> float:
        """Probability of dropping a weight now: the configured one while training, else 0."""
        return self.config.dropout if self.training else 0.0

    def init_extra_weights(self, std: float = 0.02) -> None:
        """Set the weights beyond the projections that every mechanism shares, as the configuration says.

        Called at construction, and by a model after it has initialised or loaded those projections. Weights that
        transformers marked as loaded are left alone.
        """

    def share_positions(self) -> None:
        """Give up tables of relative positions of one's own, for those of `Tokens(relative=…)`; here there are none."""

    def check_tokens(self, hidden: Tensor, tokens: Tokens, state: KeyValueState | None = None) -> None:
        """Raise `InputError` where `tokens` or `state` does not fit `hidden` `(B, T, E)` or this mechanism."""
        name = f"attention {self.config.mechanism!r}"
        if state is not None and not (self.causal and self.config.incremental):
            raise InputError(
                f"{name} got state=, which only causal mechanisms that keep a state take{self.config.since('state')}; "
                "pass state=None"
            )
        has_globals = tokens.is_global is not None or tokens.global_slots is not None
        if has_globals and "globals" in self.config.exempt:
            raise InputError(f"{name} takes no global tokens{self.config.since('globals')}; pass is_global=None")
        if has_globals and self.causal:
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

    def weights(self, hidden: Tensor, tokens: Tokens | None = None) -> Tensor:
        """Dense attention weights `(B, H, T, S)`, for pictures and tests on short inputs."""
        raise NotImplementedError
