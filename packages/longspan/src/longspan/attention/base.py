"""What every attention mechanism is: a module, most of them with linear projections for queries, keys and values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from longspan.attention.config import AttentionConfig
from longspan.attention.features.packed import each_document
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
else:  # transformers is imported by whoever makes a state
    LayerState = Any


def projected(layer: nn.Module, inputs: Tensor) -> Tensor:
    """`layer(inputs)` of a projection, `(…, E)` → `(…, F)`: never slower in half precision than in float32."""
    wide = inputs.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return layer(inputs) if wide else half_linear.called(layer, inputs)


def input_dtype(layer: nn.Module) -> torch.dtype:
    """The type in which a projection takes its inputs: that of its weights, float32 where they are quantised."""
    return getattr(layer.weight, "dtype", torch.float32)  # a quantised layer has a method of that name


ROWS: dict[str, Callable[[Any, Tensor, Tokens], Tensor]] = {"documents": each_document}
"""Field of `Tokens` by which rows are not whole documents → what computes the outputs of a mechanism for such rows;
`longspan.attention.features.sharded` adds "shards"."""


class Attention(nn.Module):
    """An attention mechanism: hidden states in, hidden states out. It has no weights of its own accord; most mechanisms
    are a `ProjectedAttention`, which brings the usual four projections."""

    config: AttentionConfig
    state_kind: ClassVar[Literal["keys", "window", "sums"] | None] = None
    """What the causal form keeps between steps: the keys and values of every position so far, or of those within reach
    of a window, or tensors that sum up the past; `None` where `new_state` is written anew, or nothing."""

    def __init__(self, config: AttentionConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        own = config.own_head_width
        if heads < 1 or (own is None and width % heads):
            raise InputError(f"heads={heads} does not divide width={width}; choose a number of heads that does")
        check_support(config, "causal" if causal else "bidirectional", causal=causal)
        self.config = config
        features = ("state", "globals", "prefix", "structure")
        self._refused = [feature for feature in features if not supports(config, feature, causal=causal)]
        self.width = width
        self.heads = heads
        self.head_width = width // heads if own is None else own
        self.causal = causal

    @property
    def dropout_prob(self) -> float:
        """Probability of dropping a weight now: the configured one while training, else 0."""
        return self.config.dropout if self.training else 0.0

    def check_tokens(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> None:
        """Raise `InputError` where `tokens` or `state` does not fit `hidden` `(B, T, E)` or this mechanism."""
        name = f"attention {self.config.mechanism!r}"
        given = {
            "state": state is not None,
            "globals": tokens.is_global is not None or tokens.global_slots is not None,
            "prefix": tokens.prefix is not None,
            "structure": tokens.belongs_to is not None,
        }
        for feature in self._refused:
            if given[feature]:
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
            if tokens.belongs_to.shape != (batch, length):
                raise InputError(
                    f"belongs_to has shape {tuple(tokens.belongs_to.shape)}, but the sequence needs ({batch}, {length})"
                )
            tokens.check_structure()

    @property
    def keeps_state(self) -> bool:
        """Whether `new_state` gives a state, by which `forward` decodes token by token."""
        return supports(self.config, "state", causal=self.causal)

    def new_state(self) -> LayerState:
        """What this layer keeps between steps, still empty: `attention(hidden, tokens, state)` continues it.

        Raises:
            InputError: the mechanism is not causal, or has no steps.
        """
        if self.keeps_state and self.state_kind is not None:
            from transformers.cache_utils import DynamicLayer

            from longspan.attention.parts.state import RecurrentLayer, WindowLayer

            if self.state_kind == "sums":
                return RecurrentLayer()
            reach = self.config.reach().left if self.state_kind == "window" else None
            return DynamicLayer() if reach is None else WindowLayer(reach)
        check_support(self.config, "state", causal=self.causal)
        raise NotImplementedError

    def forward(self, hidden: Tensor, tokens: Tokens | None = None, state: LayerState | None = None) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`; padded tokens are seen by none. With `state`, the T tokens continue its sequence.

        Raises:
            InputError: a mask that does not cover the sequence, global tokens, a state or anything else that the
                mechanism, or its causal form, does not support.
        """
        tokens = tokens or Tokens()
        if state is None and (tokens.documents is not None or tokens.shards is not None):
            kind = "shards" if tokens.documents is None else "documents"
            if kind in ROWS:
                return ROWS[kind](self, hidden, tokens)
        self.check_tokens(hidden, tokens, state)
        return self.compute(hidden, tokens, state)

    def compute(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        """What a mechanism computes of whole rows of one document each, `(B, T, E)` → `(B, T, E)`; called by `forward`,
        which has checked the arguments."""
        raise NotImplementedError

    def weights(self, hidden: Tensor, tokens: Tokens | None = None) -> Tensor:
        """Dense attention weights `(B, H, T, S)`, for pictures and tests on short inputs."""
        raise NotImplementedError


class ProjectedAttention(Attention):
    """A mechanism with the four usual projections.

    They are always called `query`, `key`, `value` and `output` (`nn.Linear(E, E)` with bias, or between E and H·D where
    heads have a width of their own), so that published weights map onto every such mechanism in the same way. Between
    them stands `context`, and `context_weights`, its dense form.
    """

    pattern: Pattern
    """What a query sees."""
    has_positions: bool = False
    """Whether scores know how far apart two tokens are, by `position_terms`."""

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
        """What each token gathers, before the output projection: `(B, T, E)` → `(B, T, E)`. Here: by `pattern`."""
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
        """What a query sees of these tokens: what their prefix shows, where they have one; and all of a buffer whose
        order does not matter."""
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
        """How scores know positions, of mechanisms with `has_positions`.

        Args:
            query: of the last T of S positions, `(B, H, T, D)`.
            key: of all of them, `(B, H, S, D)`.
            tokens: what is known of each position, shared tables among it.
            state: what holds the keys before the queries.
            slots: `(B, G)` int64 positions of global tokens, −1 in unused slots.
            places: `(B, S)` int64, where the tokens stand in their text as far as global ones are concerned, if not
                one behind the other from 0 on.

        Returns:
            The queries as keys are multiplied by them, the pattern, what is added to the scores, and what
            `WindowedAttention.global_rows` needs to replace the rows of global queries, if it replaces any.
        """
        raise NotImplementedError

    def local_queries(self, query: Tensor, tokens: Tokens) -> Tensor:
        """Projected queries as keys are multiplied by them, `(B, H, T, D)`; here as they are."""
        return query

    def weights(self, hidden: Tensor, tokens: Tokens | None = None) -> Tensor:
        """Dense attention weights `(B, H, T, T)`."""
        tokens = tokens or Tokens()
        self.check_tokens(hidden, tokens)
        return self.context_weights(hidden, tokens)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """The weights by which `context` gathers, `(B, H, T, T)`: quadratic, so never part of a forward pass."""
        query, key, _ = self.project(hidden)
        return self.dense_weights(self.local_queries(query, tokens), key, tokens)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`(B, T, E)` → local queries, keys and values, `(B, H, T, D)` each."""
        return self.heads_of(self.query, hidden), self.heads_of(self.key, hidden), self.heads_of(self.value, hidden)

    def heads_of(self, projection: nn.Module, hidden: Tensor) -> Tensor:
        """`(…, T, E)` through a projection, split into heads: `(…, H, T, D)`."""
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
        """Project `(B, T, E)` and continue `state` with the keys and values.

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
            if state.is_compileable:  # a preallocated layer hands out places that are still empty
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
        """Weights `(B, H, T, T)` of queries on keys, `(B, H, T, D)` both; a bias is added to the scaled scores."""
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
    """What a layer gives, whose weights learn nothing from it."""
    weights = {name: weight.detach() for name, weight in layer.named_parameters()}
    return torch.func.functional_call(layer, weights, (hidden,))
