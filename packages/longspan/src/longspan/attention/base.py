"""Base classes of the attention mechanisms: modules, most with linear projections for queries, keys and values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from longspan.attention.config import AttentionConfig
from longspan.attention.features.packed import each_document
from longspan.attention.features.structure import check_structure
from longspan.attention.parts.tokens import Tokens
from longspan.attention.support import check_support, supports
from longspan.errors import InputError
from longspan.ops import half_linear
from longspan.ops.attend import attend
from longspan.ops.attend.call import check_slots
from longspan.ops.attend.reference import dense_mask, dense_weights
from longspan.ops.attend.terms import Term
from longspan.patterns import Full, Pattern

if TYPE_CHECKING:
    from transformers.cache_utils import CacheLayerMixin as LayerState
else:  # only the functions that create a state import transformers
    LayerState = Any


def projected(layer: nn.Module, inputs: Tensor) -> Tensor:
    """Applies a projection, `(…, E)` → `(…, F)`; in half precision it is never slower than in float32."""
    wide = inputs.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return layer(inputs) if wide else half_linear.called(layer, inputs)


def input_dtype(layer: nn.Module) -> torch.dtype:
    """Returns the dtype of a projection's inputs: that of its weights, or float32 if they are quantised."""
    return getattr(layer.weight, "dtype", torch.float32)  # the `weight` of a quantised layer is a method


ROWS: dict[str, Callable[[Any, Tensor, Tokens], Tensor]] = {"documents": each_document}
"""Maps the field of `Tokens` that marks rows as partial or packed to the function that computes the outputs of a
mechanism for such rows. `longspan.attention.features.sharded` adds "shards".
"""


class Attention(nn.Module):
    """Base class of attention mechanisms. It has no weights; most mechanisms extend `ProjectedAttention`, which has the
    usual four projections.
    """

    config: AttentionConfig
    state_kind: ClassVar[Literal["keys", "window", "sums"] | None] = None
    """What the causal form caches between steps: the keys and values of all earlier positions, those within reach of a
    window, or tensors with sums over the past. `None` if `new_state` is overridden or there is no state.
    """

    def __init__(self, config: AttentionConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        head_width = config.own_head_width
        if heads < 1 or (head_width is None and width % heads):
            raise InputError(f"heads={heads} does not divide width={width}; choose a number of heads that does")
        check_support(config, "causal" if causal else "bidirectional", causal=causal)
        self.config = config
        features = ("state", "globals", "prefix", "structure")
        self._refused = [feature for feature in features if not supports(config, feature, causal=causal)]
        self.width = width
        self.heads = heads
        self.head_width = width // heads if head_width is None else head_width
        self.causal = causal

    @property
    def dropout_prob(self) -> float:
        """Returns the probability of dropping a weight: the configured one during training, else 0."""
        return self.config.dropout if self.training else 0.0

    def check_tokens(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> None:
        """Raises `InputError` if `tokens` or `state` does not fit `hidden` `(B, T, E)` or this mechanism."""
        name = f"attention {self.config.mechanism!r}"
        used = {
            "state": state is not None,
            "globals": tokens.is_global is not None or tokens.global_slots is not None,
            "prefix": tokens.prefix is not None,
            "structure": tokens.belongs_to is not None,
        }
        for feature in self._refused:
            if used[feature]:
                check_support(self.config, feature, causal=self.causal)
        for label, rows in (("documents, several in a row,", tokens.documents), ("shards of rows", tokens.shards)):
            if rows is not None:
                raise InputError(f"{name} was given {label} where it reads whole rows of one document; leave them out")
        batch, length = hidden.shape[:2]
        if tokens.in_buffer:
            assert tokens.mask is not None
            past = tokens.mask.shape[1] - length
        else:
            past = 0 if state is None else int(state.get_seq_length())
        for flags, label, expected in ((tokens.mask, "mask", past + length), (tokens.is_global, "is_global", length)):
            if flags is not None and flags.shape != (batch, expected):
                raise InputError(
                    f"{label} has shape {tuple(flags.shape)}, but the sequence needs ({batch}, {expected})"
                )
        slots = tokens.global_slots
        if slots is not None and slots.shape[0] != batch:
            raise InputError(f"global_slots has {slots.shape[0]} rows and the batch {batch}; give one for each")
        if slots is not None:
            check_slots("global_slots", slots, length)
        if tokens.belongs_to is not None:
            check_structure(tokens, batch, length)

    @property
    def keeps_state(self) -> bool:
        """Whether `new_state` returns a state, with which `forward` decodes token by token."""
        return supports(self.config, "state", causal=self.causal)

    def new_state(self) -> LayerState:
        """Returns an empty state of this layer, which `attention(hidden, tokens, state)` updates.

        Raises:
            InputError: the mechanism is not causal, or does not support decoding steps.
        """
        if self.keeps_state and self.state_kind is not None:
            from longspan.attention.parts.state import GrowingLayer, RecurrentLayer, WindowLayer

            if self.state_kind == "sums":
                return RecurrentLayer()
            reach = self.config.reach().left if self.state_kind == "window" else None
            return GrowingLayer() if reach is None else WindowLayer(reach)
        check_support(self.config, "state", causal=self.causal)
        raise NotImplementedError

    def forward(self, hidden: Tensor, tokens: Tokens | None = None, state: LayerState | None = None) -> Tensor:
        """Maps `(B, T, E)` to `(B, T, E)`; no token attends to padding. With `state`, the T tokens
        continue its sequence.

        Raises:
            InputError: the mask does not cover the sequence, or the mechanism or its causal form does not support
                global tokens, a state or another argument.
        """
        tokens = tokens or Tokens()
        if state is None and (tokens.documents is not None or tokens.shards is not None):
            kind = "shards" if tokens.documents is None else "documents"
            if kind in ROWS:
                return ROWS[kind](self, hidden, tokens)
        self.check_tokens(hidden, tokens, state)
        return self.compute(hidden, tokens, state)

    def compute(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        """Computes the outputs of whole rows of one document each, `(B, T, E)` → `(B, T, E)`. `forward` checks the
        arguments before.
        """
        raise NotImplementedError

    def weights(self, hidden: Tensor, tokens: Tokens | None = None) -> Tensor:
        """Returns dense attention weights `(B, H, T, S)`, for plots and tests on short inputs."""
        raise NotImplementedError


class ProjectedAttention(Attention):
    """Base class of mechanisms with the four usual projections.

    They are always called `query`, `key`, `value` and `output` (`nn.Linear(E, E)` with bias, or between E and H·D if
    heads have a width of their own), so that published weights map onto every such mechanism in the same way.
    Subclasses override `context`, and `context_weights`, its dense form.
    """

    pattern: Pattern
    """The attention pattern: which keys a query attends to."""
    has_positions: bool = False
    """Whether `position_terms` adds relative positions to the scores."""

    def __init__(self, config: AttentionConfig, *, width: int, heads: int, causal: bool, bias: bool = True) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        self.scale, inner = 1 / math.sqrt(self.head_width), heads * self.head_width
        self.query = nn.Linear(width, inner, bias=bias)
        self.key = nn.Linear(width, inner, bias=bias)
        self.value = nn.Linear(width, inner, bias=bias)
        self.output = nn.Linear(inner, width, bias=bias)

    def compute(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        return projected(self.output, self.context(hidden, tokens, state))

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        """Computes attention before the output projection, `(B, T, E)` → `(B, T, E)`; by default with `pattern`."""
        query, key, value, key_mask, offset = self.remember(hidden, tokens, state)
        pattern, terms = self.shown(tokens), []
        if self.has_positions:
            query, pattern, terms, _ = self.position_terms(query, key, tokens, state)
        context = attend(
            query,
            key,
            value,
            pattern=pattern,
            terms=terms,
            key_mask=key_mask,
            dropout_prob=self.dropout_prob,
            query_offset=offset,
        )
        return self.merge_heads(context)

    def shown(self, tokens: Tokens) -> Pattern:
        """Returns the pattern for these tokens: that of their prefix if they have one, and `Full` for a buffer whose
        order does not matter.
        """
        if tokens.in_buffer:
            from longspan.attention.features.static_cache import reads_in_order

            return self.pattern if reads_in_order(self) else Full()
        return tokens.prefix or self.pattern

    def position_terms(
        self,
        query: Tensor,
        key: Tensor,
        tokens: Tokens,
        state: LayerState | None,
        slots: Tensor | None = None,
        places: Tensor | None = None,
    ) -> tuple[Tensor, Pattern, list[Term], Any]:
        """Returns the relative positions as terms of the scores, for mechanisms with `has_positions`.

        Args:
            query: queries of the last T of S positions, `(B, H, T, D)`.
            key: keys of all S positions, `(B, H, S, D)`.
            tokens: properties of the positions, including shared tables.
            state: the state with the keys before the queries.
            slots: `(B, G)` int64 positions of global tokens, −1 in unused slots.
            places: `(B, S)` int64, the positions of the tokens in their text for the scores of global tokens; by
                default 0, 1, 2, ….

        Returns:
            The queries to multiply with the keys, the pattern, the terms added to the scores, and the data that
            `WindowedAttention.global_rows` needs to replace the rows of global queries, if any.
        """
        raise NotImplementedError

    def local_queries(self, query: Tensor, tokens: Tokens) -> Tensor:
        """Transforms projected queries `(B, H, T, D)` before the product with the keys; unchanged by default."""
        return query

    def weights(self, hidden: Tensor, tokens: Tokens | None = None) -> Tensor:
        tokens = tokens or Tokens()
        self.check_tokens(hidden, tokens)
        return self.context_weights(hidden, tokens)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """Returns the attention weights of `context`, `(B, H, T, T)`: quadratic, so never part of a forward pass."""
        query, key, _ = self.project(hidden)
        return self.dense_weights(self.local_queries(query, tokens), key, tokens)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects `(B, T, E)` to local queries, keys and values, `(B, H, T, D)` each."""
        return self.heads_of(self.query, hidden), self.heads_of(self.key, hidden), self.heads_of(self.value, hidden)

    def heads_of(self, projection: nn.Module, hidden: Tensor) -> Tensor:
        """Projects `(…, T, E)` and splits the result into heads, `(…, H, T, D)`."""
        return projected(projection, hidden).unflatten(-1, (self.heads, self.head_width)).transpose(-3, -2)

    def split_heads(self, hidden: Tensor) -> Tensor:
        """`(…, T, E)` → `(…, H, T, D)`, without a copy."""
        return hidden.unflatten(-1, (self.heads, self.head_width)).transpose(-3, -2)

    def merge_heads(self, hidden: Tensor) -> Tensor:
        """`(B, H, T, D)` → `(B, T, E)`."""
        return hidden.transpose(1, 2).flatten(2)

    def remember(
        self, hidden: Tensor, tokens: Tokens, state: LayerState | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, int]:
        """Projects `(B, T, E)` and appends the keys and values to `state`.

        Returns the queries, the keys and values to attend to, the mask `(B, S)` of these, and the index of the first
        query among them.
        """
        query, key, value = self.project(hidden)
        if tokens.in_buffer:
            from longspan.attention.features.static_cache import one_step

            key, value, key_mask = one_step(self, key, value, tokens, state)
            return query, key, value, key_mask, key.shape[2] - 1
        if state is not None:
            key, value = state.update(key, value)
            if state.is_compileable:  # a preallocated layer returns unused places too
                length = int(state.get_seq_length())
                key, value = key[:, :, :length], value[:, :, :length]
        offset = key.shape[2] - hidden.shape[1]
        key_mask = tokens.mask
        if key_mask is not None and key_mask.shape[1] != key.shape[2]:
            key_mask = key_mask[:, key_mask.shape[1] - key.shape[2] :]
        return query, key, value, key_mask, offset

    def dense_weights(
        self, query: Tensor, key: Tensor, tokens: Tokens, is_global: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Returns the weights `(B, H, T, T)` of queries on keys, both `(B, H, T, D)`; a bias is added to
        the scaled scores.
        """
        visible = dense_mask(
            self.shown(tokens),
            query.shape[2],
            key.shape[2],
            key_mask=tokens.mask,
            is_global=is_global,
            query_offset=0,
            device=query.device,
        )
        return dense_weights(query, key, visible, scale=self.scale, bias=bias)


def without_weight_gradient(layer: nn.Module, hidden: Tensor) -> Tensor:
    """Applies a layer without a gradient for its weights."""
    weights = {name: weight.detach() for name, weight in layer.named_parameters()}
    return torch.func.functional_call(layer, weights, (hidden,))
