"""What every attention mechanism is: a module, most of them with linear projections for queries, keys and values."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from longspan.attention.config import AttentionConfig
from longspan.attention.parts.documents import each_document
from longspan.attention.parts.reported import MOST_DENSE
from longspan.attention.parts.tokens import Tokens, in_order
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

Start = Literal["from_local", "new"]
"""How a weight that a source lacks starts: as a copy of another of the layer, or as the mechanism draws it."""


def projected(layer: nn.Module, inputs: Tensor) -> Tensor:
    """`layer(inputs)` of a projection, `(…, E)` → `(…, F)`: never slower in half precision than in float32."""
    wide = inputs.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return layer(inputs) if wide else half_linear.called(layer, inputs)


def input_dtype(layer: nn.Module) -> torch.dtype:
    """The type in which a projection takes its inputs: that of its weights, float32 where they are quantised."""
    return getattr(layer.weight, "dtype", torch.float32)  # a quantised layer has a method of that name


class Attention(nn.Module):
    """An attention mechanism: hidden states in, hidden states out. It has no weights of its own accord; most mechanisms
    are a `ProjectedAttention`, which brings the usual four projections."""

    config: AttentionConfig
    inherits: ClassVar[tuple[str, ...]] = ()
    """Parts whose weights every source brings."""
    attends_by_content: ClassVar[bool] = False
    """Whether `content_context` says what queries gather by what keys hold, wherever these stand."""
    state_kind: ClassVar[Literal["keys", "window", "sums"] | None] = None
    """What the causal form keeps between steps: the keys and values of every position so far, or of those within reach
    of a window, or tensors that sum up the past; `None` where `new_state` is written anew, or nothing."""

    @property
    def buffer_order(self) -> Literal["any", "text"] | None:
        """In which order a compiled step over a buffer of a fixed size, as `Tokens(in_buffer=True)` has it, reads keys
        and values: in any, where all of them are visible or the places of real tokens count, or in that of the text,
        where distances count; `None` where no such step is known, as here."""
        return None

    def __init__(self, config: AttentionConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        own = config.own_head_width
        if heads < 1 or (own is None and width % heads):
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
        self.head_width = width // heads if own is None else own
        self.causal = causal

    @property
    def dropout_prob(self) -> float:
        """Probability of dropping a weight now: the configured one while training, else 0."""
        return self.config.dropout if self.training else 0.0

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Set the weights beyond the projections that every mechanism shares, as the configuration says.

        Called at construction, and by a model after it has initialised or loaded those projections. Weights that
        transformers marked as loaded are left alone. Here: the copies of `starts_from`.
        """
        for name, source in self.starts_from.items():
            for kind in ("weight", "bias"):
                parameter = getattr(getattr(self, name), kind)
                if parameter is not None and not getattr(parameter, "_is_hf_initialized", False):
                    parameter.copy_(getattr(getattr(self, source), kind))

    @property
    def starts_from(self) -> Mapping[str, str]:
        """Linear part with weights of its own → the part of which it starts as a copy."""
        return {}

    @torch.no_grad()
    def warm_start(self, missing: Collection[str], std: float = 0.02) -> dict[str, Start]:
        """Start the weights of `missing` names, which a source lacks, so that it is disturbed as little as can be.

        Returns how each of them starts; what no source may lack is left out, and left as it is.
        """
        new = [name for name in missing if name.partition(".")[0] not in self.inherits]
        if not new:
            return {}
        present = {name: tensor.clone() for name, tensor in self.state_dict().items() if name not in new}
        self.init_extra_weights(std)
        self.load_state_dict(present, strict=False)
        return {name: "from_local" if name.partition(".")[0] in self.starts_from else "new" for name in new}

    def after_step(self, step: int) -> None:
        """What changes between two steps of training but weights: training calls it when `step` of them are done. Here
        nothing does."""

    def share_positions(self) -> None:
        """Give up tables of one's own that layers can share, for those of `Tokens(relative=…)`; here there are none."""

    def check_tokens(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> None:
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
        if tokens.prefix is not None and not (self.causal and self.config.reads_prefix):
            raise InputError(f"{name} with causal={self.causal} reads no prefix both ways; pass prefix=None")
        if tokens.documents is not None:
            raise InputError(
                f"{name} was given several documents in a row where it reads one (weights, steps, places); give each "
                "document a row of its own there"
            )
        if tokens.shards is not None:
            self.refuse_shards()
        if tokens.belongs_to is not None and not self.config.reads_structure:
            raise InputError(
                f"{name} reads no structure; pass belongs_to=None, or choose a mechanism that does ('etc')"
            )
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

    def check_reads_shards(self) -> None:
        """Raise `InputError` unless `forward` reads parts of rows, by `Tokens.shards`; here it does not."""
        self.refuse_shards()

    def refuse_shards(self) -> None:
        raise InputError(
            f"attention {self.config.mechanism!r} reads whole rows, and these are divided between processes; give "
            "every process whole rows, or choose a mechanism with a window, such as 'longformer', or 'linear'"
        )

    @property
    def keeps_state(self) -> bool:
        """Whether `new_state` gives a state, by which `forward` decodes token by token."""
        return self.causal and self.config.incremental

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
        raise InputError(
            f"attention {self.config.mechanism!r} with causal={self.causal} keeps no state; build a mechanism that "
            "decodes step by step, with causal=True"
        )

    def memory_state(self, tokens: int) -> LayerState | None:
        """A state of the last so many positions, behind which outputs are those behind these positions alone; `None`
        where only their hidden states serve."""
        return None

    def forward_with_memory(self, past: Tensor, hidden: Tensor, tokens: Tokens) -> Tensor:
        """Outputs `(B, T, E)` of the last T of M + T positions, causal: `(B, M, E)` and `(B, T, E)`, and what is known
        of all of them.

        Where rows are divided between processes, every process has the same M positions before whole rows, all real,
        and the T are its own part, of which alone something is known.
        """
        if tokens.shards is not None:
            from longspan.attention.parts.shards import through_the_first

            return through_the_first(self, past, hidden, tokens)
        return self(torch.cat([past.to(hidden.dtype), hidden], dim=1), tokens)[:, past.shape[1] :]

    def needed_states(self, tokens: int) -> int:
        """How many of the last so many states of a memory later tokens may still need; here all of them."""
        return tokens

    def learned_spans(self) -> Tensor | None:
        """How far back each head looks, `(H,)` in tokens, where its weights say that; mostly they do not."""
        return None

    def weights_loss(self) -> Tensor | None:
        """What the weights of this layer add to the loss of a model in training, a scalar; mostly nothing."""
        return None

    def inputs_loss(self, hidden: Tensor, tokens: Tokens) -> Tensor | None:
        """What its inputs `(B, T, E)` add, where the configuration says `inputs_add_loss`."""
        return None

    def keys_and_values(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`(B, M, E)` → keys and values `(B, H, M, D)`, as a `memory_state` holds them."""
        raise NotImplementedError

    def content_context(self, hidden: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """What `(B, T, E)` gather from `(B, M, E)` by content alone, `(B, H, T, D)`: without positions, order or
        dropout, and without gradient to the weights of this layer. `mask` `(B, M)` bool says what there is.

        For mechanisms that say `attends_by_content`.
        """
        raise NotImplementedError

    def limit_keys(self, tokens: int) -> None:
        """From now on no query sees further back than the last so many positions, its own included, in the causal form.

        Raises:
            InputError: the mechanism does not choose keys by their distance.
        """
        raise InputError(
            f"same_length=True does not go with attention {self.config.mechanism!r}, which does not choose keys by "
            "their distance; set it to False, or choose a window"
        )

    def forward(self, hidden: Tensor, tokens: Tokens | None = None, state: LayerState | None = None) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`; with `state`, the T tokens continue the sequence that it holds."""
        raise NotImplementedError

    def forward_at(self, places: Tensor, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        """What `forward` gives at some places `(B, Q)` alone: `(B, T, E)` → `(B, Q, E)`; a state takes in all of T.

        Here all of it is computed first; a mechanism whose queries can be left out one by one leaves them out.
        """
        return in_order(self(hidden, tokens, state), places)

    def weights(self, hidden: Tensor, tokens: Tokens | None = None) -> Tensor:
        """Dense attention weights `(B, H, T, S)`, for pictures and tests on short inputs."""
        raise NotImplementedError

    def reported_weights(self, hidden: Tensor, tokens: Tokens | None = None) -> tuple[Tensor, Tensor | None]:
        """What a model gives of this layer by `output_attentions`: here the dense weights `(B, H, T, S)` and nothing
        apart; a window in its own width, as transformers' Longformer (`WindowedAttention.reported_weights`).

        Raises:
            InputError: more tokens than weights are reported of pair by pair.
        """
        if hidden.shape[1] > MOST_DENSE:
            raise InputError(
                f"output_attentions=True gives the weight of every pair of tokens with attention "
                f"{self.config.mechanism!r}, which at {hidden.shape[1]:,} tokens would be a matrix of "
                f"{hidden.shape[1]:,} rows and columns for each head; give at most {MOST_DENSE:,} tokens"
            )
        return self.weights(hidden, tokens), None


class ProjectedAttention(Attention):
    """A mechanism with the four usual projections.

    They are always called `query`, `key`, `value` and `output` (`nn.Linear(E, E)` with bias, or between E and H·D where
    heads have a width of their own), so that published weights map onto every such mechanism in the same way. Between
    them stands `context`, and `context_weights`, its dense form.
    """

    inherits: ClassVar[tuple[str, ...]] = ("query", "key", "value", "output")
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

    def forward(self, hidden: Tensor, tokens: Tokens | None = None, state: LayerState | None = None) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`; padded tokens are seen by none. With `state`, the T tokens continue its sequence.

        Raises:
            InputError: a mask that does not cover the sequence, global tokens or a state that the mechanism, or its
                causal form, does not take.
        """
        tokens = tokens or Tokens()
        if tokens.documents is not None and state is None:
            return each_document(self, hidden, tokens)
        if tokens.shards is not None and state is None:
            return self.forward_shard(hidden, tokens)
        self.check_tokens(hidden, tokens, state)
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

    def check_reads_shards(self) -> None:
        from longspan.attention.parts.shards import needed

        needed(self)

    def forward_shard(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """What `forward` gives for this process's part of rows that are divided between processes, `(B, T_r, E)`: here
        by the hidden states within reach of it, which `config.reach()` bounds.

        Raises:
            InputError: global tokens or structure; nothing bounds the reach; as `longspan.attention.parts.shards`.
        """
        from longspan.attention.parts.shards import check_shard, through_halo

        check_shard(self, hidden, tokens)
        return through_halo(self, hidden, tokens)

    def shown(self, tokens: Tokens) -> Pattern:
        """What a query sees of these tokens: what their prefix shows, where they have one; and all of a buffer whose
        order does not matter."""
        return Full() if tokens.in_buffer and self.buffer_order == "any" else tokens.prefix or self.pattern

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
            layer: Any = state
            key, value, key_mask = layer.step(key, value, tokens.mask, in_order=self.buffer_order == "text")
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
