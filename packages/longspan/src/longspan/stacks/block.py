"""The Transformer block: attention, optional cross-attention, and a feed-forward layer.

The same block serves encoders and decoders; it has plain numbers as arguments, so that it does not depend on models.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longspan.attention import Attention, Tokens
from longspan.attention.base import LayerState, projected
from longspan.attention.parts.tokens import in_order
from longspan.errors import InputError
from longspan.ops import attend
from longspan.ops.attend.reference import full_precision
from longspan.patterns import Full
from longspan.settings import show

if TYPE_CHECKING:
    from longspan.ops.shards import Processes

PLAIN_ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU, "tanh": nn.Tanh}
"""Activations that PyTorch defines as transformers does; the others are transformers' own."""

ROWS_AT_ONCE = 1024
"""Tokens whose feed-forward layer is computed at once without gradients on a CPU."""


def activation(name: str) -> nn.Module:
    """Returns the activation with this transformers name; raises `InputError` if there is none."""
    if name in PLAIN_ACTIVATIONS:
        return PLAIN_ACTIVATIONS[name]()
    from transformers.activations import ACT2FN

    if name not in ACT2FN:
        raise InputError(f"activation_function={show(name)} is unknown; choose one of {', '.join(sorted(ACT2FN))}")
    return ACT2FN[name]


class FeedForward(nn.Module):
    """`down(dropout(activation(up(x))))`: `(B, T, E)` → `(B, T, E)`.

    Training saves only the output of `up` and recomputes the activation in the backward pass: it is the widest
    tensor of a block and the cheapest to recompute, which saves a quarter of a step's memory for about a hundredth
    of its time. Without gradients on a CPU it is computed for `ROWS_AT_ONCE` tokens at a time, so that it stays in the
    cache of the processor: a tenth to a quarter less time.
    """

    def __init__(self, width: int, inner: int, *, activation_function: str, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.activation = activation(activation_function)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() or torch.compiler.is_compiling()) and hidden.device.type == "cpu":
            pieces = hidden.flatten(0, -2).split(ROWS_AT_ONCE)
            return torch.cat([self._narrow(projected(self.up, piece)) for piece in pieces]).view_as(hidden)
        wide = projected(self.up, hidden)
        if not wide.requires_grad or torch.compiler.is_compiling():
            return self._narrow(wide)
        drops = self.training and self.dropout.p > 0
        narrowed = checkpoint(self._narrow, wide, use_reentrant=False, preserve_rng_state=drops)
        assert isinstance(narrowed, Tensor)
        return narrowed

    def _narrow(self, wide: Tensor) -> Tensor:
        """Applies everything after `up`."""
        return projected(self.down, self.dropout(self.activation(wide)))


class CrossAttention(nn.Module):
    """Every output token attends to every real source token (Vaswani et al. 2017, section 3.2.3).

    Attributes:
        processes: the processes that share a source: each has a part of it and the same output tokens; `None` if each
            has whole sources.
    """

    processes: Processes | None = None

    def __init__(self, *, width: int, heads: int, dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)

    def forward(
        self, hidden: Tensor, source: Tensor, source_mask: Tensor | None = None, state: LayerState | None = None
    ) -> Tensor:
        """Maps `(B·beams, T, E)` with a source `(B, S, E)` to `(B·beams, T, E)`.

        Consecutive decoder rows share a document; their queries are concatenated along the query axis, so that the
        source is neither copied nor processed once per beam.

        Args:
            hidden: `(B·beams, T, E)`.
            source: `(B, S, E)` encoder states; unused once the state has their keys and values.
            source_mask: `(B, S)` bool, or `None` if every token is real.
            state: caches the source's keys and values.
        """
        key, value = self._source(source, state)
        rows, tokens, _ = hidden.shape
        beams = rows // max(key.shape[0], 1)
        query = self._split(projected(self.query, hidden))
        folded = query.unflatten(0, (key.shape[0], beams)).transpose(1, 2).flatten(2, 3) if beams != 1 else query
        dropout = self.dropout if self.training else 0.0
        if self.processes is not None:
            from longspan.ops.shards import attend_all

            context = attend_all(folded, key, value, source_mask, self.processes, "source", dropout_prob=dropout)
        else:
            context = attend(folded, key, value, pattern=Full(), key_mask=source_mask, dropout_prob=dropout)
        if beams != 1:
            context = context.unflatten(2, (beams, tokens)).transpose(1, 2).flatten(0, 1)
        return projected(self.output, context.transpose(1, 2).flatten(2))

    def _source(self, source: Tensor, state: LayerState | None) -> tuple[Tensor, Tensor]:
        """Returns the source's `(B, H, S, D)` keys and values, computed once per generation."""
        if state is not None and state.is_initialized:
            assert state.keys is not None
            assert state.values is not None
            return state.keys, state.values
        key, value = self._split(projected(self.key, source)), self._split(projected(self.value, source))
        # Contiguous, since every later step uses them.
        return (key, value) if state is None else state.update(key.contiguous(), value.contiguous())

    def _split(self, hidden: Tensor) -> Tensor:
        return hidden.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class BlockState(NamedTuple):
    """State of one layer between steps: of its own sequence, and of the source if there is one."""

    own: LayerState
    source: LayerState | None = None


class Block(nn.Module):
    """Attention, optional cross-attention, and a feed-forward layer, each in a residual branch.

    Args:
        attention: the mechanism's module; it determines the width.
        inner: width of the feed-forward layer.
        activation_function: activation of the feed-forward layer, by its transformers name.
        eps: ε of the LayerNorms.
        dropout: dropout probability of each branch.
        activation_dropout: dropout probability inside the feed-forward layer.
        pre: normalise the input of each branch, not the sum.
        cross_attention: attention to a source, for decoders, or another module with the same arguments.
        norm_before_sum: normalise its output before it is added, for any `pre`.
    """

    cross_attention: nn.Module | None
    float32_attention: bool = False
    """Whether self-attention stays in float32 under autocast, an option of training."""

    def __init__(
        self,
        attention: Attention,
        *,
        inner: int,
        activation_function: str,
        eps: float,
        dropout: float,
        activation_dropout: float,
        pre: bool,
        cross_attention: nn.Module | None = None,
        norm_before_sum: bool = False,
    ) -> None:
        super().__init__()
        width = attention.width
        self.attention = attention
        self.attention_norm = nn.LayerNorm(width, eps=eps)
        self.cross_attention = cross_attention
        if cross_attention is not None:
            self.cross_attention_norm = nn.LayerNorm(width, eps=eps)
        self.feed_forward = FeedForward(
            width, inner, activation_function=activation_function, dropout=activation_dropout
        )
        self.feed_forward_norm = nn.LayerNorm(width, eps=eps)
        self.dropout = nn.Dropout(dropout)
        self.pre = pre
        self.norm_before_sum = norm_before_sum

    def forward(
        self,
        hidden: Tensor,
        tokens: Tokens,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        *tables: Tensor,
        layer_past: BlockState | None = None,
        memory: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """Maps `(B, T, E)` to `(B, T, E)`: each branch is `x + f(norm(x))` if pre-normalised, else `norm(x + f(x))`.

        Args:
            hidden: `(B, T, E)`.
            tokens: their properties, including those in a state or the memory.
            source: `(B', S, E)` for `cross_attention`. The source, its mask and the tables are separate
                arguments, since reentrant checkpointing only tracks gradients of tensor arguments, not of objects
                that contain tensors.
            source_mask: `(B', S)` bool.
            *tables: those that layers share.
            layer_past: the state of the sequence that is continued. All versions of transformers' checkpointed layers
                drop it under this name.
            memory: `(B, M, E)`, earlier inputs of the block, before the tokens.
            places: `(B, Q)`, the positions of the outputs, `(B, Q, E)`, by default all. They attend to the same keys.
                Attention with a method `forward_at` does not compute the others.
        """
        own_state, source_state = layer_past or (None, None)
        if tables:
            tokens = replace(tokens, relative=tables)
        if memory is not None and self.pre:
            memory = self.attention_norm(memory)
        read = self.attention_norm(hidden) if self.pre else hidden
        with full_precision(read) if self.float32_attention else nullcontext():
            read = read.float() if self.float32_attention else read
            if memory is not None:
                from longspan.attention.features.memory import forward_behind

                attended = forward_behind(self.attention, memory.to(read.dtype), read, tokens)
            elif places is not None:
                attended = at_places(self.attention, places, read, tokens, own_state)
            else:
                attended = self.attention(read, tokens, own_state)
        hidden = (hidden if places is None else in_order(hidden, places)) + self.dropout(attended)
        del read, attended, memory  # freed before the wide activations of the feed-forward layer
        hidden = hidden if self.pre else self.attention_norm(hidden)
        if places is not None and places.shape[1] == 0:
            return hidden

        if self.cross_attention is not None and source is not None:
            cross, norm, arguments = (
                self.cross_attention,
                self.cross_attention_norm,
                (source, source_mask, source_state),
            )
            if self.norm_before_sum:
                hidden = hidden + self.dropout(norm(cross(hidden, *arguments)))
            elif self.pre:
                hidden = hidden + self.dropout(cross(norm(hidden), *arguments))
            else:
                hidden = norm(hidden + self.dropout(cross(hidden, *arguments)))

        if self.pre:
            hidden = hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))
        else:
            hidden = self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))
        return clamp_half(hidden) if hidden.dtype == torch.float16 else hidden

    def attention_loss(self, hidden: Tensor, tokens: Tokens) -> Tensor | None:
        """Returns the loss that attention adds for inputs `(B, T, E)` of the block in training. It is not part of
        `forward`, which checkpointing computes twice, the first time without gradients.
        """
        attention: Any = self.attention
        if not getattr(attention.config, "inputs_add_loss", False):
            return None
        return attention.inputs_loss(self.attention_norm(hidden) if self.pre else hidden, tokens)

    def weights_loss(self) -> Tensor | None:
        """Returns the loss of attention for its weights in training, of mechanisms with a method `weights_loss`."""
        loss: Any = getattr(self.attention, "weights_loss", None)
        return None if loss is None else loss()


def at_places(
    attention: Attention, places: Tensor, hidden: Tensor, tokens: Tokens, state: LayerState | None = None
) -> Tensor:
    """Returns outputs of attention at positions `(B, Q)`, `(B, T, E)` → `(B, Q, E)`; a state is updated with all T."""
    forward_at: Any = getattr(attention, "forward_at", None)
    if forward_at is None:
        return in_order(attention(hidden, tokens, state), places)
    return forward_at(places, hidden, tokens, state)


def total_loss(losses: Sequence[Tensor | None]) -> Tensor | None:
    """Returns the sum of the losses of layers, in float32 at least; `None` if there are none."""
    terms = [loss.to(torch.promote_types(loss.dtype, torch.float32)) for loss in losses if loss is not None]
    return torch.stack(terms).sum() if terms else None


def clamp_half(hidden: Tensor) -> Tensor:
    """Clips states `(…, E)` of float16 to finite numbers, since large BART checkpoints overflow."""
    limit = torch.finfo(torch.float16).max - 1000
    return hidden.clamp(-limit, limit)
