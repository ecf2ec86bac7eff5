"""Binary partition: a binary tree over the tokens has states for its spans, and each token attends to small spans
nearby and to large ones far away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from longspan.attention import Tokens
from longspan.attention.base import LayerState, ProjectedAttention, projected
from longspan.attention.config import AttentionConfig
from longspan.attention.parts.tokens import in_order, inverse_order, real_first
from longspan.attention.support import Support
from longspan.errors import InputError
from longspan.ops.tiles.partition import Partition, level_count
from longspan.settings import Count, Range
from longspan.stacks.base import Sizes, Source, StackConfig, StackCost, StackOutput, StackReturns
from longspan.stacks.block import Block, BlockState, CrossAttention, FeedForward
from longspan.stacks.sequential import Layers
from longspan.stacks.trees import GrowingTree, Tree, WholeTree

MOST_LEVELS = 21
"""Levels of a compiled program's tree for texts of any length: enough for a million tokens."""


@dataclass(frozen=True, kw_only=True)
class NodeAttentionConfig(AttentionConfig):
    """Attention over the edges of the tree; options as in the stack. T is the number of nodes here."""

    mechanism: ClassVar[str] = "binary_partition"
    source: ClassVar[str] = "Ye et al. 2019, arXiv 1911.04070, section 3"
    causal: ClassVar[bool] = True
    sees_everything: ClassVar[bool] = True
    support: ClassVar[Mapping[str, Support]] = {"globals": "its spans already cover the whole text"}

    neighbours: Count = 16
    clip_levels: Annotated[int, Range(0, 64)] = 6

    def build(self, *, width: int, heads: int, causal: bool = False) -> NodeAttention:
        return NodeAttention(self, width=width, heads=heads, causal=causal)

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """Mean over the nodes: the keys of tokens, and the tokens of each span."""
        tree = self.tree(tokens_of(length), causal=causal)
        return (tree.edges() + tree.tokens * (tree.levels - 1)) / length if length else 0.0

    def tree(self, tokens: int, *, causal: bool) -> Partition:
        """Returns the tree over `tokens` tokens."""
        return Partition(tokens, level_count(tokens), self.neighbours, self.clip_levels, causal)


@dataclass(frozen=True, kw_only=True)
class BinaryPartitionConfig(StackConfig):
    """BP-Transformer (Ye et al. 2019, "BP-Transformer: Modelling Long-Range Context via Binary Partitioning", arXiv
    1911.04070, section 3, as in the authors' code).

    Tokens are the leaves of a binary tree made by halving. A span attends to its tokens. A token attends to itself and,
    on each side, to k nodes of every level; they are adjacent, the next level starting where the level below ends.

    Attributes:
        neighbours: k, nodes of each level that a token attends to on each side; with as many as tokens, it
            is full attention.
        clip_levels: c, the level from which on labels are shared.
    """

    stack: ClassVar[str] = "binary_partition"
    own_attention: ClassVar[type[AttentionConfig]] = NodeAttentionConfig
    work_exponent: ClassVar[float] = 1.2
    unused: ClassVar[Mapping[str, str]] = {
        "attention": "which brings its own",
        "decoder_attention": "which brings its own",
        "normalization": "which normalises sums, as published",
        "global_tokens": "whose spans already cover the whole text",
    }

    neighbours: Count = 16
    clip_levels: Annotated[int, Range(0, 64)] = 6

    def returns(self) -> StackReturns:
        return StackReturns(normalized=True, summary=True, source=True)

    def decoder_table(self) -> bool:
        """False: labels of edges have the positions."""
        return False

    def costs(self, *, layers: int, tokens: int, width: int) -> StackCost:
        """A layer processes all nodes, about two for each token."""
        nodes = Partition(tokens, level_count(tokens), self.neighbours, self.clip_levels, causal=False).nodes
        return StackCost(layers=((self.node_attention(), nodes),) * layers)

    def node_attention(self, dropout: float = 0.0) -> NodeAttentionConfig:
        """Returns the attention of each layer."""
        return NodeAttentionConfig(neighbours=self.neighbours, clip_levels=self.clip_levels, dropout=dropout)

    def build(self, block: Callable[..., Block], layers: int, sizes: Sizes) -> BinaryPartition:
        return BinaryPartition([PartitionLayer(self, sizes) for _ in range(layers)], self, causal=sizes.causal)


def tokens_of(nodes: int) -> int:
    """Returns the most tokens whose tree has at most `nodes` nodes, about half of them."""
    tokens = nodes // 2 + 1
    while tokens and Partition(tokens, level_count(tokens), 1, 0, False).nodes > nodes:
        tokens -= 1
    return tokens


class NodeAttention(ProjectedAttention):
    """The module of `NodeAttentionConfig`. Its projections have no bias; heads share a table of
    label vectors, `labels`.
    """

    config: NodeAttentionConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: NodeAttentionConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal, bias=False)
        self.labels = nn.Embedding(config.tree(0, causal=causal).labels, self.head_width)

    def forward(
        self,
        hidden: Tensor,
        tokens: Tokens | None = None,
        state: LayerState | None = None,
        tree: Tree | None = None,
    ) -> Tensor:
        """Maps `(B, N, E)` to `(B, N, E)`; the default tree is that of the most tokens that N nodes allow, and further
        outputs are zero.
        """
        if tree is None:
            tree = WholeTree(self.config.tree(tokens_of(hidden.shape[1]), causal=self.causal))
        nodes = hidden[:, : tree.nodes]
        context = tree.attend(*self.project(nodes), self.labels.weight, state=state, dropout_prob=self.dropout_prob)
        mixed = projected(self.output, self.merge_heads(context))
        return functional.pad(mixed, (0, 0, 0, hidden.shape[1] - tree.nodes))


class PartitionLayer(nn.Module):
    """One layer for tokens and spans, with the same weights: attention over the edges of the tree, cross-attention if
    there is a source, and a feed-forward layer, each followed by a LayerNorm of the sum.
    """

    def __init__(self, config: BinaryPartitionConfig, sizes: Sizes) -> None:
        super().__init__()
        width, eps = sizes.width, sizes.eps
        attention_config = config.node_attention(sizes.attention_dropout)
        self.attention = attention_config.build(width=width, heads=sizes.heads, causal=sizes.causal)
        self.attention_norm = nn.LayerNorm(width, eps=eps)
        self.cross_attention = None
        if sizes.source:
            self.cross_attention = CrossAttention(
                width=width, heads=sizes.heads, dropout=sizes.attention_dropout, bias=False
            )
            self.cross_attention_norm = nn.LayerNorm(width, eps=eps)
        inner = 4 * width if sizes.inner is None else sizes.inner
        self.feed_forward = FeedForward(
            width, inner, activation_function=sizes.activation_function, dropout=sizes.activation_dropout
        )
        self.feed_forward_norm = nn.LayerNorm(width, eps=eps)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(
        self,
        hidden: Tensor,
        tree: Tree,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        state: BlockState | None = None,
    ) -> Tensor:
        """Maps `(B, N, E)` to `(B, N, E)`, tokens before spans; only tokens attend to a source `(B', S, E)`."""
        own_state, source_state = state or (None, None)
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, state=own_state, tree=tree)))
        if self.cross_attention is not None and source is not None:
            tokens, spans = hidden.split([tree.tokens, hidden.shape[1] - tree.tokens], dim=1)
            crossed = self.cross_attention(tokens, source, source_mask, source_state)
            hidden = torch.cat([self.cross_attention_norm(tokens + self.dropout(crossed)), spans], dim=1)
        hidden = self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))
        return hidden if tree.absent is None else hidden.masked_fill(tree.absent[..., None], 0)


class BinaryPartition(Layers):
    """The module of `BinaryPartitionConfig`: a list of its layers.

    Attributes:
        gradient_checkpointing: whether training saves only the states between layers; set by transformers
            with its function.
    """

    gradient_checkpointing = False
    _gradient_checkpointing_func: Callable[..., Tensor]

    def __init__(self, layers: list[PartitionLayer], config: BinaryPartitionConfig, *, causal: bool) -> None:
        super().__init__(layers)
        self.config, self.causal = config, causal

    @property
    def keeps_state(self) -> bool:
        return self.causal

    def new_state(self, step: int) -> LayerState:
        """Returns a state for keys and values of all tokens and complete spans, which grows with the text."""
        from longspan.attention.parts.state import TreeLayer

        return TreeLayer()

    def forward(
        self,
        hidden: Tensor,
        tokens: Tokens,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        *tables: Tensor,
        block_states: Sequence[BlockState] | None = None,
        output_hidden_states: bool = False,
    ) -> StackOutput:
        """Maps `(B, T, E)` to states `(B, T, E)`; arguments as in `Sequential.forward`. Spans are initialised with
        zeros, trees begin at each row's first real token, and outputs at padding are zero.

        The summary is the root of each row's tree. The source for a decoder is all nodes, in the bidirectional form.

        Raises:
            InputError: global tokens, or a bidirectional prefix.
        """
        self.config.refuse_globals(tokens)
        if tokens.prefix is not None:
            raise InputError(
                f"stack {self.config.stack!r} supports no bidirectional prefix, since spans would contain later "
                "tokens; choose another stack"
            )
        checkpoints = self.gradient_checkpointing and self.training
        states = None if checkpoints else block_states  # as transformers' checkpointed layers drop them
        tree, order = self._tree(hidden, tokens, states)
        nodes = in_order(hidden, order)
        nodes = torch.cat([nodes, nodes.new_zeros(nodes.shape[0], tree.nodes - tree.tokens, nodes.shape[2])], dim=1)
        back = None if order is None else inverse_order(order)
        all_hidden_states = [hidden]
        for number, layer in enumerate(self):
            state = None if states is None else states[number]
            run = partial(self._gradient_checkpointing_func, layer) if checkpoints else layer
            nodes = run(nodes, tree, source, source_mask, state)
            if output_hidden_states:
                all_hidden_states.append(in_order(nodes[:, : tree.tokens], back))
        output = StackOutput(
            states=in_order(nodes[:, : tree.tokens], back),
            all_hidden_states=tuple(all_hidden_states) if output_hidden_states else None,
        )
        if self.causal or not isinstance(tree, WholeTree):
            return output
        return output._replace(summary=tree.roots(nodes), source=Source(nodes, tree.present(nodes)))

    def _tree(self, hidden: Tensor, tokens: Tokens, states: Sequence[BlockState] | None) -> tuple[Tree, Tensor | None]:
        """Returns the tree of a batch `(B, T, E)`, and the order `(B, T)` of its leaves."""
        length, options = hidden.shape[1], (self.config.neighbours, self.config.clip_levels)
        state: Any = states[0].own if states else None
        if state is not None and state.get_seq_length():
            return GrowingTree.of(int(state.get_seq_length()), length, tokens.mask, hidden.device, *options), None
        compiled = torch.compiler.is_compiling() or torch.compiler.is_exporting()
        if compiled and not isinstance(length, int):
            mask = hidden.new_ones(hidden.shape[:2], dtype=torch.bool) if tokens.mask is None else tokens.mask
            partition = Partition(length, MOST_LEVELS, *options, self.causal, spare=1)
            return WholeTree(partition, mask.sum(1)), real_first(mask)
        partition = Partition(length, level_count(length), *options, self.causal)
        if tokens.mask is None:
            return WholeTree(partition), None
        in_place = not compiled and bool((tokens.mask[:, 1:] <= tokens.mask[:, :-1]).all())
        counts = tokens.mask.sum(1)
        if in_place and bool((counts == length).all()):
            return WholeTree(partition), None
        return WholeTree(partition, counts), None if in_place else real_first(tokens.mask)
