"""ETC: a long part with local attention, a global part with full attention, and structure between the two."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import LayerState, ProjectedAttention, projected
from longspan.attention.config import AttentionConfig, AttentionCost, Lengthening, Reach
from longspan.attention.features.starts import FurtherWeights, Start
from longspan.attention.parts.global_local import Parts, hidden_outside, labelled, put_rows, relations, taken_apart
from longspan.attention.parts.tokens import Tokens, in_order
from longspan.attention.parts.windowed import pairs_within, shifted
from longspan.attention.support import Support, Unless
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.attend.terms import Bias, ContentToPosition, GlobalKeyBias, PositionBias, Term
from longspan.patterns import Blocks, DrawnBlocks, Full, Pattern, PerHead, Window
from longspan.patterns.random_blocks import MOST_BLOCKS
from longspan.settings import Count, Range

MOST_HEADS = 1024
"""Number of heads with different random blocks."""
LABEL_STD = 0.5
"""Standard deviation of new labels, as published: that of keys, not that of weights."""


@dataclass(frozen=True, kw_only=True)
class EtcConfig(AttentionConfig):
    """Global tokens and the other tokens, the long part, attend to each other in four pieces with two softmaxes.

    A long token attends to the long tokens within a radius and to the global tokens; a global token attends to all.
    Distances are counted within a part. A label of each pair has a learned key a and bias b, `q·(k + a_label) +
    b_label`: its clipped distance within a part, or whether the long token belongs to the global one
    (`Tokens.belongs_to`). Long and global queries have separate labels.

    Attributes:
        radius_tokens: r, how many long tokens a long token attends to on each side.
        window: "radius" counts them from each token; "blocks" as in BigBird: a block of tokens attends to itself and to
            the whole neighbouring blocks within the radius.
        block_tokens: tokens of such a block.
        random_blocks: further blocks that each block attends to, drawn for each head and length of the long part.
        seed: random seed of the blocks.
        clamp_tokens: k, the maximal distance, to which larger ones are clamped; `None` for no labels.
        hard_global_to_long: a global token attends only to long tokens that belong to it or to none.
        hard_long_to_global: a long token attends only to the global token it belongs to, or to all if it
            belongs to none.
        projections: "shared" has one query, key and value for both parts; "parts" has a set for the queries of each
            part, with separate keys and values; "pieces" has keys and values for each of the four pieces.
        shared_output: whether both parts share the output projection.
    """

    mechanism: ClassVar[str] = "etc"
    cost: ClassVar[str] = (
        "2·radius_tokens + 1 + 2G, or (2·⌈radius_tokens / block_tokens⌉ + 1 + random_blocks)·block_tokens + 2G"
    )
    source: ClassVar[str] = "Ainslie et al. 2020, arXiv 2004.08483, section 3"
    support: ClassVar[Mapping[str, Support]] = {
        "causal": "its global tokens see the whole text",
        "structure": True,
        "sharded": Unless("random blocks are drawn from whole rows", {"random_blocks": 0}),
    }

    radius_tokens: Count = 84
    window: Literal["radius", "blocks"] = "radius"
    block_tokens: Count = 84
    random_blocks: Annotated[int, Range(0, MOST_BLOCKS)] = 0
    seed: Annotated[int, Range(0, 2**20)] = 0
    clamp_tokens: Count | None = 12
    hard_global_to_long: bool = False
    hard_long_to_global: bool = False
    projections: Literal["shared", "parts", "pieces"] = "shared"
    shared_output: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.random_blocks and self.window != "blocks":
            raise InputError(
                f"random_blocks={self.random_blocks} belong to window='blocks', which defines the blocks; choose it, "
                "or random_blocks=0"
            )

    @property
    def idle(self) -> frozenset[str]:
        return super().idle if self.window == "blocks" else super().idle | {"block_tokens", "seed"}

    @property
    def side_blocks(self) -> int:
        """The number of neighbouring blocks within the radius on each side."""
        return -(-self.radius_tokens // self.block_tokens)

    def reach(self) -> Reach:
        if self.random_blocks:
            return Reach()
        if self.window == "radius":
            return Reach(left=self.radius_tokens, right=self.radius_tokens)
        furthest = (self.side_blocks + 1) * self.block_tokens - 1
        return Reach(left=furthest, right=furthest, period=self.block_tokens)

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """Includes the ends of the text for a radius, but not the edges of blocks."""
        long = max(length - global_tokens, 0)
        near = pairs_within(long, -self.radius_tokens, self.radius_tokens)
        if self.window == "blocks":
            near = min((2 * self.side_blocks + 1 + self.random_blocks) * self.block_tokens * long, long**2)
        return (near + global_tokens * (long + length)) / max(length, 1)

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """Labels are a product of each query with each of 2k + 1 distances."""
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        labels = 0 if self.clamp_tokens is None else (2 * self.clamp_tokens + 1) * width * length
        return replace(cost, mixing=cost.mixing + labels)

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        if self.random_blocks and needed.any():  # an upper bound: the random blocks differ by head
            return torch.ones_like(needed)
        is_global = torch.zeros_like(needed) if is_global is None else is_global
        long = needed[~is_global]
        if self.window == "blocks":
            block = torch.arange(len(long)) // self.block_tokens
            blocks = torch.zeros(len(long) // self.block_tokens + 1, dtype=torch.bool).index_fill(0, block[long], True)
            near = shifted(blocks, -self.side_blocks, self.side_blocks)[block]
        else:
            near = shifted(long, -self.radius_tokens, self.radius_tokens)
        visible = needed.masked_scatter(~is_global, near)
        return visible | (is_global & needed.any()) | (needed & is_global).any()

    def lengthening(self, tokens: int = 1) -> Lengthening:
        wide = replace(self, radius_tokens=max(self.radius_tokens, tokens))
        furthest = self.radius_tokens
        if self.window == "blocks":
            furthest = (self.side_blocks + 1) * self.block_tokens - 1
        return replace(super().lengthening(tokens), covers=furthest >= tokens - 1, widened=wide)

    def build(self, *, width: int, heads: int, causal: bool = False) -> EtcAttention:
        return EtcAttention(self, width=width, heads=heads, causal=causal)


class EtcAttention(FurtherWeights, ProjectedAttention):
    """The module of `EtcConfig`.

    Keys of the global part come before those of the long part in both softmaxes, so that one call serves the long
    queries and one the global ones.
    """

    config: EtcConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    long_labels: nn.Parameter
    long_label_bias: nn.Parameter
    global_labels: nn.Parameter
    global_label_bias: nn.Parameter

    def __init__(self, config: EtcConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        for name in self.starts_from:
            setattr(self, name, nn.Linear(width, width))
        if config.clamp_tokens is not None:
            rows = 2 * config.clamp_tokens + 3
            for part in ("long", "global"):
                setattr(self, f"{part}_labels", nn.Parameter(torch.empty(heads, rows, self.head_width)))
                setattr(self, f"{part}_label_bias", nn.Parameter(torch.empty(heads, rows)))
        self.init_extra_weights()

    @property
    def starts_from(self) -> Mapping[str, str]:
        """All start as copies of the long part's, as the paper initialises from a plain Transformer."""
        config, names = self.config, {}
        if config.projections != "shared":
            names = {f"global_{name}": name for name in ("query", "key", "value")}
        if config.projections == "pieces":
            names |= {
                f"{way}_{name}": name for way in ("long_to_global", "global_to_long") for name in ("key", "value")
            }
        return names if config.shared_output else names | {"global_output": "output"}

    @property
    def label_names(self) -> tuple[str, ...]:
        if self.config.clamp_tokens is None:
            return ()
        return tuple(f"{part}_{kind}" for part in ("long", "global") for kind in ("labels", "label_bias"))

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Initialises labels from a normal distribution truncated at two deviations, for any `std` of
        the other weights.
        """
        super().init_extra_weights(std)
        for name in self.label_names:
            table = getattr(self, name)
            if getattr(table, "_is_hf_initialized", False):
                continue
            if name.endswith("bias"):
                nn.init.zeros_(table)
            else:
                nn.init.trunc_normal_(table, std=LABEL_STD, a=-2 * LABEL_STD, b=2 * LABEL_STD)

    @torch.no_grad()
    def warm_start(self, missing: Collection[str], std: float = 0.02) -> dict[str, Start]:
        """Initialises labels that a source lacks with 0, since it was trained without them."""
        started = super().warm_start(missing, std)
        for name in set(self.label_names) & set(started):
            getattr(self, name).zero_()
        return started

    def compute(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        parts = taken_apart(hidden, tokens, self.pad_globals)
        context, rows = self.gathered(parts)
        out = in_order(projected(self.output, self.merge_heads(context)), parts.back)
        if rows is None or parts.slots is None:
            return out
        rows = projected(self.layer("global_output", "output"), self.merge_heads(rows))
        return put_rows(out, rows, parts.slots, 1)

    @property
    def pad_globals(self) -> int:
        """The number of slots is padded to a multiple of this: blocks of long tokens are fastest at a multiple
        of their size.
        """
        return self.config.block_tokens if self.config.window == "blocks" else 1

    def gathered(self, parts: Parts, **changes: Any) -> tuple[Tensor, Tensor | None]:
        """Computes the outputs of the long queries, `(B, H, T, D)`, and of the global ones, `(B, H, G, D)`, if any.
        `changes` are arguments of `attend`.
        """
        long, rows = self.calls(parts)
        context = attend(**(long | changes))[:, :, parts.global_keys :]
        if parts.mask is not None:
            context = context.masked_fill(~parts.mask[:, None, :, None], 0)
        return context, None if rows is None else attend(**(rows | changes))

    def calls(self, parts: Parts) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Returns arguments of `attend` for long queries, after a row for each global key, and for global queries."""
        query, key, value = self.project(parts.long)
        count, options = parts.global_keys, {"dropout_prob": self.dropout_prob, "scale": self.scale}
        terms = self.near_terms(query)
        long: dict[str, Any] = {"pattern": self.pattern_behind(count), "terms": terms, **options}
        if parts.slots is None or parts.globals is None:
            return long | {"query": query, "key": key, "value": value, "key_mask": parts.mask}, None
        assert parts.mask is not None
        present = parts.slots >= 0
        key_mask = torch.cat([present, parts.mask], 1)
        front = torch.where(present, torch.arange(count, device=present.device), -1)
        beside = self.cross_bias(query, parts)
        if beside is not None:
            terms.append(GlobalKeyBias(F.pad(beside, (0, 0, count, 0))))
        names = ("key", "value")
        near = [self.heads_of(self.layer(f"long_to_global_{name}", name), parts.globals) for name in names]
        long |= {
            "query": F.pad(query, (0, 0, count, 0)),
            "key": torch.cat([near[0], key], 2),
            "value": torch.cat([near[1], value], 2),
            "key_mask": key_mask,
            "globals": front,
            "global_rows": False,
        }
        query = self.heads_of(self.layer("global_query", "query"), parts.globals)
        rows = {"query": query, "key": long["key"], "value": long["value"]}
        if self.config.projections != "shared":
            for name in names:
                projected_globals = projected(getattr(self, f"global_{name}"), parts.globals)
                far = projected(self.layer(f"global_to_long_{name}", f"global_{name}"), parts.long)
                rows[name] = torch.cat([self.split_heads(projected_globals), self.split_heads(far)], 2)
        bias = self.row_bias(query, parts)
        return long, rows | options | {
            "pattern": Full(),
            "terms": [] if bias is None else [Bias(bias)],
            "key_mask": key_mask,
        }

    def layer(self, name: str, otherwise: str) -> nn.Module:
        """Returns the projection `name`, or `otherwise` if it does not exist."""
        return getattr(self, name if name in self.starts_from else otherwise)

    def pattern_behind(self, count: int) -> Pattern:
        """Returns the pattern of a long query over the long part, which begins after `count` places."""
        config = self.config
        if config.window == "radius":
            return Window(config.radius_tokens, config.radius_tokens)
        size, sides = config.block_tokens, config.side_blocks
        near = Blocks(size, sides, sides, count)
        if not config.random_blocks:
            return near
        seeds = [config.seed * MOST_HEADS + head for head in range(self.heads)]
        return PerHead([near | DrawnBlocks(size, config.random_blocks, seed, count, sides) for seed in seeds])

    def near_terms(self, query: Tensor) -> list[Term]:
        """Returns the labels of long queries on long keys, by offset from −k to k."""
        if self.config.clamp_tokens is None:
            return []
        table, bias = self.long_labels[:, :-2], self.long_label_bias[:, :-2]
        return [
            ContentToPosition(table.to(query.dtype), globals=False),
            PositionBias((bias * self.scale).to(query.dtype), globals=False),
        ]

    def cross_bias(self, query: Tensor, parts: Parts) -> Tensor | None:
        """Returns the bias of the scores of long queries on global keys, `(B, H, T, G)`; −∞ masks a pair."""
        belongs, shown = relations(parts)
        bias = None
        if self.config.clamp_tokens is not None:
            bias = labelled(query, self.long_labels[:, -2:], self.long_label_bias[:, -2:], belongs.long()) * self.scale
        return hidden_outside(bias, query, shown if self.config.hard_long_to_global else None)

    def row_bias(self, query: Tensor, parts: Parts) -> Tensor | None:
        """Returns the bias of the scores of global queries on global and long keys, `(B, H, G, G + T)`; −∞
        masks a pair.
        """
        belongs, shown = (None if flags is None else flags.transpose(1, 2) for flags in relations(parts))
        bias, most, place = None, self.config.clamp_tokens, torch.arange(query.shape[2], device=query.device)
        assert belongs is not None
        if most is not None:
            offset = (place - place[:, None]).clamp(-most, most) + most
            row = torch.cat([offset.expand(query.shape[0], -1, -1), belongs.long() + 2 * most + 1], 2)
            bias = labelled(query, self.global_labels, self.global_label_bias, row) * self.scale
        if shown is None or not self.config.hard_global_to_long:
            return bias
        return hidden_outside(bias, query, F.pad(shown, (query.shape[2], 0), value=True))

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """Returns the weights of both softmaxes, each token at its own position."""
        parts = taken_apart(hidden, tokens, self.pad_globals)
        count, length = parts.global_keys, hidden.shape[1]
        identity = torch.eye(count + length, dtype=hidden.dtype, device=hidden.device)
        identity = identity.expand(hidden.shape[0], self.heads, -1, -1)
        weights, rows = self.gathered(parts, value=identity, backend="reference")

        def in_place(weights: Tensor) -> Tensor:
            near = in_order(weights[..., count:], parts.back, 3)
            return near if parts.slots is None else put_rows(near, weights[..., :count], parts.slots, 3)

        weights = in_order(in_place(weights), parts.back, 2)
        if rows is not None and parts.slots is not None:
            weights = put_rows(weights, in_place(rows), parts.slots, 2)
        return weights
