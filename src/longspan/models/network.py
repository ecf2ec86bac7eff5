"""The encoder as plain PyTorch: embeddings and a stack of blocks, each with its own attention mechanism.

What runs here needs nothing of transformers; `longspan.models.encoder` makes of it what transformers expects.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

from longspan.attention import RelativePositions, RelativeTables, Tokens
from longspan.errors import InputError
from longspan.models.blocks import FeedForward, clamp_half, layer_norm, residual
from longspan.models.embeddings import Embeddings
from longspan.models.tokens import describe_tokens

if TYPE_CHECKING:
    from longspan.models.fields import ModelFields


class Block(nn.Module):
    """Attention, then a feed-forward layer, each in a residual branch."""

    def __init__(self, config: ModelFields, layer: int) -> None:
        super().__init__()
        attention = config.layer_attention(layer)
        self.attention = attention.build(width=config.hidden_size, heads=config.num_attention_heads)
        self.attention_norm = layer_norm(config)
        self.feed_forward = FeedForward(config, config.intermediate_size)
        self.feed_forward_norm = layer_norm(config)
        self.dropout = nn.Dropout(config.dropout)
        self.pre = config.normalization == "pre"

    def forward(self, hidden: Tensor, tokens: Tokens, *tables: Tensor) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`. Shared tables of relative positions are arguments of their own, since reentrant
        checkpointing follows gradients through tensors that it is given, and through nothing that holds tensors."""
        if tables:
            tokens = replace(tokens, relative=RelativeTables(*tables))
        hidden = residual(hidden, lambda x: self.attention(x, tokens), self.attention_norm, self.dropout, pre=self.pre)
        hidden = residual(hidden, self.feed_forward, self.feed_forward_norm, self.dropout, pre=self.pre)
        return clamp_half(hidden)


class EncoderNetwork(nn.Module):
    """Embeddings, blocks and, when pre-normalised, a final LayerNorm."""

    block: ClassVar[type[Block]] = Block

    def __init__(self, config: ModelFields) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(self.block(config, layer) for layer in range(config.num_hidden_layers))
        self.relative = self._shared_positions()
        self.final_norm = layer_norm(config) if config.normalization == "pre" else None

    def states(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        first_position: int = 0,
        position_ids: Tensor | None = None,
    ) -> list[Tensor]:
        """The states `(B, T, E)` before each layer and after the last; arguments as in `LongspanModel.forward`.

        `first_position` is where the input begins in a longer document of which it is a piece.
        """
        hidden = self.embeddings(input_ids, token_type_ids, inputs_embeds, first_position, position_ids)
        tokens = describe_tokens(self.config, hidden, input_ids, attention_mask, global_attention_mask)
        tables = () if self.relative is None else self.relative()
        states = [hidden]
        for layer in self.layers:
            hidden = layer(hidden, tokens, *tables)
            states.append(hidden)
        if self.final_norm is not None:
            states[-1] = self.final_norm(hidden)
        return states

    def _shared_positions(self) -> RelativePositions | None:
        """The one pair of tables for all layers with relative positions, as in DeBERTa; `None` if there are no such
        layers. The configuration has checked that they ask for equal tables."""
        shared = None
        for layer, block in enumerate(self.layers):
            tables = self.config.layer_attention(layer).build_positions(self.config.hidden_size)
            if tables is not None:
                assert isinstance(block, Block)
                block.attention.share_positions()
                shared = shared or tables
        return shared


class EncoderBody(nn.Module):
    """The encoder under the name that `LongspanModel` gives it, so that weights have the same names."""

    def __init__(self, config: ModelFields) -> None:
        super().__init__()
        self.encoder = EncoderNetwork(config)


def first_token(hidden: Tensor) -> Tensor:
    """State of each row's first token, `(B, T, E)` → `(B, E)`; `InputError` for an empty input."""
    if hidden.shape[1] == 0:
        raise InputError("input_ids has 0 tokens; this head reads the first token, so give at least one")
    return hidden[:, 0]
