"""The Transformer block: attention, cross-attention where there is a source, and a feed-forward layer.

The same block serves encoders and decoders; it takes plain numbers, so that stacks of blocks stand below the models.
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
"""Those that PyTorch has as transformers means them; the others are transformers' own."""


def activation(name: str) -> nn.Module:
    """The activation that transformers calls `name`; `InputError` when there is none."""
    if name in PLAIN_ACTIVATIONS:
        return PLAIN_ACTIVATIONS[name]()
    from transformers.activations import ACT2FN

    if name not in ACT2FN:
        raise InputError(f"activation_function={show(name)} is unknown; choose one of {', '.join(sorted(ACT2FN))}")
    return ACT2FN[name]


class FeedForward(nn.Module):
    """`down(dropout(activation(up(x))))`: `(B, T, E)` → `(B, T, E)`.

    Training keeps only what comes out of `up` and computes the activation again in backward: it is the widest tensor of
    a block and the cheapest to remake, a quarter of the memory of a step for about a hundredth of its time.
    """

    def __init__(self, width: int, inner: int, *, activation_function: str, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.activation = activation(activation_function)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        wide = projected(self.up, hidden)
        if not wide.requires_grad or torch.compiler.is_compiling():
            return self._narrow(wide)
        drops = self.training and self.dropout.p > 0
        narrowed = checkpoint(self._narrow, wide, use_reentrant=False, preserve_rng_state=drops)
        assert isinstance(narrowed, Tensor)
        return narrowed

    def _narrow(self, wide: Tensor) -> Tensor:
        """Everything after `up`."""
        return projected(self.down, self.dropout(self.activation(wide)))


class CrossAttention(nn.Module):
    """Every output token sees every real source token (Vaswani et al. 2017, section 3.2.3).

    Attributes:
        processes: those of which each holds a part of every source, and the same output tokens as the others; `None`
            where each has whole sources.
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
        """`(B·beams, T, E)` over `(B, S, E)` → `(B·beams, T, E)`.

        Consecutive decoder rows share a document; their queries are laid side by side on the query axis, so that the
        source is neither copied nor read once per beam.

        Args:
            hidden: `(B·beams, T, E)`.
            source: `(B, S, E)` encoder states; not read once the state holds their keys and values.
            source_mask: `(B, S)` bool, or `None` when every token is real.
            state: keeps the source's keys and values.
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
        """The source's `(B, H, S, D)` keys and values, computed once per generation."""
        if state is not None and state.is_initialized:
            assert state.keys is not None
            assert state.values is not None
            return state.keys, state.values
        key, value = self._split(projected(self.key, source)), self._split(projected(self.value, source))
        # Contiguous, since every later step reads them.
        return (key, value) if state is None else state.update(key.contiguous(), value.contiguous())

    def _split(self, hidden: Tensor) -> Tensor:
        """`(B, T, E)` → `(B, H, T, D)`."""
        return hidden.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class BlockState(NamedTuple):
    """What one layer keeps between steps: of its own sequence, and of the source where there is one."""

    own: LayerState
    source: LayerState | None = None


class Block(nn.Module):
    """Attention, cross-attention where there is a source, and a feed-forward layer, each in a residual branch.

    Args:
        attention: the mechanism, built; its width is the block's.
        inner: width of the feed-forward layer.
        activation_function: of the feed-forward layer, by its transformers name.
        eps: ε of the LayerNorms.
        dropout: of each branch.
        activation_dropout: inside the feed-forward layer.
        pre: normalise the input of each branch, not the sum.
        cross_attention: attention to a source, for decoders that have one; or whatever else reads a source so.
        norm_before_sum: normalise what this gives, before it is added, whatever `pre` says.
    """

    cross_attention: nn.Module | None
    float32_attention: bool = False
    """Whether attention to its own sequence stays in float32 under autocast, as training may ask for."""

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
        """`(B, T, E)` → `(B, T, E)`: each branch is `x + f(norm(x))` when pre-normalised, else `norm(x + f(x))`.

        Args:
            hidden: `(B, T, E)`.
            tokens: what is known of them, and of those that a state or the memory holds.
            source: `(B', S, E)`, read by `cross_attention`; this, its mask and the tables are arguments of their own,
                since reentrant checkpointing follows gradients through tensors that it is given, and through nothing
                that holds tensors.
            source_mask: `(B', S)` bool.
            *tables: those that layers share.
            layer_past: the state of the sequence that is continued. Checkpointed layers of transformers drop it under
                this name in every version.
            memory: `(B, M, E)`, earlier inputs of the block, behind which the tokens stand.
            places: `(B, Q)`, the only places at which the output is wanted, `(B, Q, E)`; these see all that they would
                see otherwise. Attention with a method `forward_at` leaves the others out.
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
        del read, attended, memory  # not to be there while the feed-forward layer is wide
        hidden = hidden if self.pre else self.attention_norm(hidden)
        if places is not None and places.shape[1] == 0:
            return hidden

        if self.cross_attention is not None and source is not None:
            cross, norm, given = self.cross_attention, self.cross_attention_norm, (source, source_mask, source_state)
            if self.norm_before_sum:
                hidden = hidden + self.dropout(norm(cross(hidden, *given)))
            elif self.pre:
                hidden = hidden + self.dropout(cross(norm(hidden), *given))
            else:
                hidden = norm(hidden + self.dropout(cross(hidden, *given)))

        if self.pre:
            hidden = hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))
        else:
            hidden = self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))
        return clamp_half(hidden) if hidden.dtype == torch.float16 else hidden

    def attention_loss(self, hidden: Tensor, tokens: Tokens) -> Tensor | None:
        """What attention adds to the loss for inputs `(B, T, E)` of the block, in training; it stands beside `forward`,
        since what is computed there is computed twice under checkpointing, and without gradients at first."""
        attention: Any = self.attention
        if not getattr(attention.config, "inputs_add_loss", False):
            return None
        return attention.inputs_loss(self.attention_norm(hidden) if self.pre else hidden, tokens)

    def weights_loss(self) -> Tensor | None:
        """What the weights of attention add to the loss in training, of mechanisms with a method `weights_loss`."""
        loss: Any = getattr(self.attention, "weights_loss", None)
        return None if loss is None else loss()


def at_places(
    attention: Attention, places: Tensor, hidden: Tensor, tokens: Tokens, state: LayerState | None = None
) -> Tensor:
    """What attention returns at some places `(B, Q)` alone: `(B, T, E)` → `(B, Q, E)`; a state takes in all of T."""
    forward_at: Any = getattr(attention, "forward_at", None)
    if forward_at is None:
        return in_order(attention(hidden, tokens, state), places)
    return forward_at(places, hidden, tokens, state)


def total_loss(losses: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of what layers add to a loss, in float32 at least; `None` where none of them does."""
    given = [loss.to(torch.promote_types(loss.dtype, torch.float32)) for loss in losses if loss is not None]
    return torch.stack(given).sum() if given else None


def clamp_half(hidden: Tensor) -> Tensor:
    """States `(…, E)` of float16 clipped to finite numbers, since large BART checkpoints overflow; others unchanged."""
    limit = torch.finfo(torch.float16).max - 1000
    return hidden.clamp(-limit, limit)
