"""The Transformer block: attention, cross-attention where there is a source, and a feed-forward layer.

The same block serves encoders and decoders; it takes plain numbers, so that stacks of blocks stand below the models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longspan.attention import Attention, Tokens
from longspan.attention.base import LayerState
from longspan.attention.parts.tokens import in_order
from longspan.errors import InputError
from longspan.ops.attend.reference import full_precision
from longspan.settings import show

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
        wide = self.up(hidden)
        if not wide.requires_grad or torch.compiler.is_compiling():
            return self._narrow(wide)
        drops = self.training and self.dropout.p > 0
        narrowed = checkpoint(self._narrow, wide, use_reentrant=False, preserve_rng_state=drops)
        assert isinstance(narrowed, Tensor)
        return narrowed

    def _narrow(self, wide: Tensor) -> Tensor:
        """Everything after `up`."""
        return self.down(self.dropout(self.activation(wide)))


class Branch(NamedTuple):
    """A residual branch of a block: what it does to its normalised input, and where its weights are."""

    sublayer: Callable[[Tensor], Tensor]
    norm: nn.Module
    module: nn.Module
    before_sum: bool = False
    """Whether the norm is of what the branch gives, before that is added, wherever other branches have theirs."""


class Kept(NamedTuple):
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
        past_key_values: Kept | None = None,
        memory: Tensor | None = None,
    ) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`, continuing the sequence that `past_key_values` holds, or else that of earlier
        inputs of the block, `memory` `(B, M, E)`, which `tokens` then cover too.

        The source `(B', S, E)`, its mask `(B', S)` and the tables that layers share are arguments of their
        own, since reentrant checkpointing follows gradients through tensors that it is given, and through nothing that
        holds tensors. transformers' checkpointed layers know a state by the name `past_key_values` and leave it out.
        """
        given = (tokens, source, source_mask, *tables)
        for branch in self.branches(*given, past_key_values=past_key_values, memory=memory):
            hidden = self._branch(hidden, branch)
        return clamp_half(hidden)

    def forward_at(
        self,
        places: Tensor,
        hidden: Tensor,
        tokens: Tokens,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        *tables: Tensor,
        past_key_values: Kept | None = None,
    ) -> Tensor:
        """What `forward` gives at some places `(B, Q)` alone, `(B, Q, E)`; these see all that they would see there.

        Everything but attention goes place by place; what attention can leave out, its `forward_at` says.
        """
        own = None if past_key_values is None else past_key_values.own
        _, *others = self.branches(tokens, source, source_mask, *tables, past_key_values=past_key_values)
        if tables:
            tokens = replace(tokens, relative=tables)
        seen = self.attention_norm(hidden) if self.pre else hidden
        chosen = in_order(hidden, places)
        attended = self._precisely(seen, lambda x: self.attention.forward_at(places, x, tokens, own))
        chosen = chosen + self.dropout(attended)
        if not self.pre:
            chosen = self.attention_norm(chosen)
        for branch in others if places.shape[1] else ():
            chosen = self._branch(chosen, branch)
        return clamp_half(chosen)

    def branches(
        self,
        tokens: Tokens,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        *tables: Tensor,
        past_key_values: Kept | None = None,
        memory: Tensor | None = None,
    ) -> list[Branch]:
        """What `forward` applies one after the other, for stacks that put it together otherwise."""
        own, kept = past_key_values or (None, None)
        if tables:
            tokens = replace(tokens, relative=tables)
        found = [Branch(self._attend(tokens, own, memory), self.attention_norm, self.attention)]
        cross = self.cross_attention
        if cross is not None and source is not None:
            read = partial(_read, cross, source, source_mask, kept)
            found.append(Branch(read, self.cross_attention_norm, cross, self.norm_before_sum))
        return [*found, Branch(self.feed_forward, self.feed_forward_norm, self.feed_forward)]

    def _attend(self, tokens: Tokens, own: LayerState | None, memory: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Attention behind what a state or else a memory holds."""
        if memory is None:
            return lambda x: self._precisely(x, lambda x: self.attention(x, tokens, own))
        past = self.attention_norm(memory) if self.pre else memory
        return lambda x: self._precisely(x, lambda x: self.attention.forward_with_memory(past.to(x.dtype), x, tokens))

    def _precisely(self, hidden: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """Attention to its input, in float32 where mixed precision is to leave it in that."""
        if not self.float32_attention:
            return attend(hidden)
        with full_precision(hidden):
            return attend(hidden.float())

    def _branch(self, hidden: Tensor, branch: Branch) -> Tensor:
        """`x + f(norm(x))` when pre-normalised, else `norm(x + f(x))`, with dropout on the branch; or else, where the
        branch says so, `x + norm(f(x))`."""
        if branch.before_sum:
            return hidden + self.dropout(branch.norm(branch.sublayer(hidden)))
        if self.pre:
            return hidden + self.dropout(branch.sublayer(branch.norm(hidden)))
        return branch.norm(hidden + self.dropout(branch.sublayer(hidden)))


def _read(
    cross: nn.Module, source: Tensor, source_mask: Tensor | None, kept: LayerState | None, hidden: Tensor
) -> Tensor:
    """What a block reads in its source."""
    return cross(hidden, source, source_mask, kept)


def clamp_half(hidden: Tensor) -> Tensor:
    """Keep float16 states finite: large BART checkpoints overflow there; other types pass unchanged."""
    if hidden.dtype != torch.float16:
        return hidden
    limit = torch.finfo(torch.float16).max - 1000
    return hidden.clamp(-limit, limit)
