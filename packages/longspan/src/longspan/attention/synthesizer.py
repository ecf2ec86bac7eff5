"""Synthesizer: attention weights without comparing tokens, predicted from each token or learned for each position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import LayerState
from longspan.attention.config import Activations, AttentionConfig, AttentionCost, Reach
from longspan.attention.full import EveryToken
from longspan.attention.parts.tokens import Tokens
from longspan.attention.support import Support
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.attend.reference import dense_mask, dense_weights
from longspan.ops.attend.terms import Bias
from longspan.settings import Count, Range

Member = Literal["vanilla", "dense", "random", "fixed_random", "factorised_dense", "factorised_random"]


@dataclass(frozen=True, kw_only=True)
class SynthesizerConfig(AttentionConfig):
    """Attention weights whose scores do not compare tokens: `softmax(B) V`, with B from `members`.

    Tables are indexed by real tokens of a row: token number t has row and column t of every table, so a shorter text
    uses the beginning of the tables, for any padding. Global tokens change nothing, because every token already attends
    to all.

    Attributes:
        members: how scores are computed. `"dense"` predicts the scores of a token from its state, `W₂ relu(W₁ x + b₁) +
            b₂`; `"random"` learns a table for all texts, `"fixed_random"` draws it once; `"factorised_dense"` predicts
            two shorter vectors, of which one is tiled, the other repeated, and multiplies them; `"factorised_random"`
            learns a table of low rank; `"vanilla"` compares tokens, `QKᵀ/√D`. Several are mixed with learned shares
            that are equal initially.
        max_tokens: the most real tokens of a text (paper: N).
        rank: of `"factorised_random"` (paper: k).
        tile_tokens: length of the tiled vector of `"factorised_dense"` (paper: a), which determines the other's; `None`
            takes √max_tokens, rounded up.
        seed: random seed of `"fixed_random"`.
    """

    mechanism: ClassVar[str] = "synthesizer"
    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    sees_everything: ClassVar[bool] = True
    cost: ClassVar[str] = "T (causal: (T + 1) / 2)"
    source: ClassVar[str] = "Tay et al. 2021, arXiv 2005.00743, section 3"
    support: ClassVar[Mapping[str, Support]] = {
        "linear": "every token has a score for every place",
        "static_cache": True,
    }

    members: tuple[Member, ...] = ("dense",)
    max_tokens: Count = 512
    rank: Count = 8
    tile_tokens: Count | None = None
    seed: Annotated[int, Range(0, 2**20)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.members or len(set(self.members)) < len(self.members):
            raise InputError(f"members={self.members} must name at least one source of scores, and each of them once")

    def reach(self) -> Reach:
        return Reach(longest=self.max_tokens)

    @property
    def factors(self) -> tuple[int, int]:
        """The lengths of the tiled and of the repeated vector of `"factorised_dense"`."""
        tiled = self.tile_tokens or math.isqrt(self.max_tokens - 1) + 1
        return tiled, -(-self.max_tokens // tiled)

    @property
    def idle(self) -> frozenset[str]:
        belongs = {"rank": "factorised_random", "tile_tokens": "factorised_dense", "seed": "fixed_random"}
        return frozenset(name for name, member in belongs.items() if member not in self.members)

    def activations(self) -> Activations:
        """Predicted scores have a hidden layer, before and after its activation, and its product."""
        projections = {"vanilla": ("query", "key"), "dense": ("dense",), "factorised_dense": ("tiled", "repeated")}
        names = ("value", "output", *(name for member in self.members for name in projections.get(member, ())))
        return Activations(projections=names, copies=3 if "dense" in self.members else 0)

    @classmethod
    def defaults_for(cls, tokens: int, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"max_tokens": tokens}

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        return (length + 1) / 2 if causal else float(length)

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """A score costs D in each head for the sum over values, and the cost of its members: D if tokens are compared,
        D + 1 if it is predicted, the rank, one product of factors, or nothing.
        """
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        head_width = width // heads
        score_cost = {
            "vanilla": head_width,
            "dense": head_width + 1,
            "factorised_random": self.rank,
            "factorised_dense": 1,
        }
        mixing = heads * cost.scores * (head_width + sum(score_cost.get(member, 0) for member in self.members))
        if "factorised_dense" in self.members:
            mixing += width * sum(self.factors) * length
        return replace(cost, mixing=mixing)

    def build(self, *, width: int, heads: int, causal: bool = False) -> SynthesizerAttention:
        return SynthesizerAttention(self, width=width, heads=heads, causal=causal)


class SynthesizerAttention(EveryToken):
    """The module of `SynthesizerConfig`; `query` and `key` exist for `"vanilla"` only.

    Its tables have a row for each position. Rows of factorised scores become keys, so that attention never stores a
    score per pair of tokens; the scores of the others are biases.
    """

    config: SynthesizerConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    dense: nn.Linear
    dense_weight: Tensor
    dense_bias: Tensor
    random_left: Tensor
    random_right: Tensor
    mixture: Tensor

    def __init__(self, config: SynthesizerConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        if "vanilla" not in config.members:
            del self.query, self.key
        for name in config.activations().projections:
            if not hasattr(self, name):
                self.add_module(name, nn.Linear(width, width))
        for name, shape in self._shapes().items():
            if name == "fixed_random":
                self.register_buffer(name, torch.empty(shape))
            else:
                self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        self.init_extra_weights()

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of all weights besides the projections."""
        config, heads, width = self.config, self.heads, self.head_width
        most, rank, (tiled, repeated) = config.max_tokens, config.rank, config.factors
        members: dict[str, dict[str, tuple[int, ...]]] = {
            "dense": {"dense_weight": (heads, most, width), "dense_bias": (heads, most)},
            "random": {"random": (heads, most, most)},
            "fixed_random": {"fixed_random": (heads, most, most)},
            "factorised_random": {"random_left": (heads, most, rank), "random_right": (heads, most, rank)},
            "factorised_dense": {
                "tiled_weight": (heads, tiled, width),
                "tiled_bias": (heads, tiled),
                "repeated_weight": (heads, repeated, width),
                "repeated_bias": (heads, repeated),
            },
        }
        shapes = {name: shape for member in config.members for name, shape in members.get(member, {}).items()}
        return shapes | ({"mixture": (len(config.members),)} if len(config.members) > 1 else {})

    def init_extra_weights(self, std: float = 0.02) -> None:
        """Initialises predicted scores near 0, as the model's matrices, those of tables with variance 1,
        and shares equally.
        """
        # In this order: the order of a set, and with it the random draws, would change from one process to the next.
        for name in self.config.activations().projections:
            if name not in ("dense", "tiled", "repeated"):
                continue
            nn.init.normal_(getattr(self, name).weight, std=std)
            nn.init.zeros_(getattr(self, name).bias)
        for name in self._shapes():
            weight = getattr(self, name)
            if name.endswith("_bias") or name == "mixture":
                nn.init.zeros_(weight)
            elif name == "fixed_random":
                if not getattr(weight, "_is_hf_initialized", False):
                    generator = torch.Generator().manual_seed(self.config.seed)
                    weight.copy_(torch.randn(weight.shape, generator=generator, device="cpu"))
            else:
                tables = {
                    "random": 1.0,
                    "random_left": self.config.rank**-0.25,
                    "random_right": self.config.rank**-0.25,
                }
                nn.init.normal_(weight, std=tables.get(name, std))

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects queries and keys of `"vanilla"`; without it, a state stores one number of each value in place of a
        key, since it counts tokens by keys.
        """
        if "vanilla" in self.config.members:
            return super().project(hidden)
        value = self.heads_of(self.value, hidden)
        return value[..., :1], value[..., :1], value

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        query, key, value, key_mask, offset = self.remember(hidden, tokens, state)
        places = self._places(key_mask, hidden, key.shape[2])
        queries, keys = self._products(hidden, query, key, places)
        biases = self._biases(hidden, places)
        # The kernels without a bias require one width for all.
        width = 0 if biases else max(queries.shape[-1], value.shape[-1])
        queries, keys, wide = (
            F.pad(tensor.to(value.dtype), (0, max(0, width - tensor.shape[-1]))) for tensor in (queries, keys, value)
        )
        context = attend(
            queries,
            keys,
            wide,
            pattern=self.pattern,
            terms=[Bias(sum(biases[1:], biases[0]))] if biases else [],
            key_mask=key_mask,
            scale=1.0,
            dropout_prob=self.dropout_prob,
            query_offset=offset,
        )
        return self.merge_heads(context[..., : value.shape[-1]])

    def _places(self, mask: Tensor | None, hidden: Tensor, keys: int) -> Places:
        config = self.config
        options = {"mechanism": config.mechanism, "device": hidden.device}
        return Places(mask, hidden.shape[1], keys, config.max_tokens, **options)

    def _shares(self) -> dict[str, Tensor | float]:
        """Returns the share of each member in the mixture."""
        members = self.config.members
        if len(members) == 1:
            return {members[0]: 1.0}
        return dict(zip(members, self.mixture.softmax(0), strict=True))

    def _products(self, hidden: Tensor, query: Tensor, key: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        """Returns queries `(B, H, T, C)` and keys `(B, H, S, C)` whose products are the scores of
        all factorised members.
        """
        shares, queries, keys = self._shares(), [], []
        if "vanilla" in shares:
            queries.append(query * (shares["vanilla"] * self.scale))
            keys.append(key)
        if "dense" in shares:
            predicted = self.heads_of(self.dense, hidden).relu()
            queries += [predicted * shares["dense"], torch.ones_like(predicted[..., :1]) * shares["dense"]]
            keys += [places.of_keys(self.dense_weight), places.of_keys(self.dense_bias[..., None])]
        if "factorised_random" in shares:
            queries.append(places.of_queries(self.random_left) * shares["factorised_random"])
            keys.append(places.of_keys(self.random_right))
        if not queries:
            return query[..., :0], key[..., :0]
        queries, keys = ([tensor.expand(query.shape[0], -1, -1, -1) for tensor in parts] for parts in (queries, keys))
        return torch.cat(queries, -1), torch.cat(keys, -1)

    def _biases(self, hidden: Tensor, places: Places) -> list[Tensor]:
        """Returns scores `(B or 1, H, T, S)` of the members that are tables, or products of factors."""
        shares, biases = self._shares(), []
        for name in ("random", "fixed_random"):
            if name in shares:
                table = places.of_pairs(getattr(self, name))
                biases.append(table if len(shares) == 1 else table * shares[name])
        if "factorised_dense" in shares:
            tiled, repeated = self._factors(hidden)
            repeated = repeated if len(shares) == 1 else repeated * shares["factorised_dense"]
            biases.append(places.of_columns((repeated[..., :, None] * tiled[..., None, :]).flatten(-2)))
        return biases

    def _factors(self, hidden: Tensor) -> list[Tensor]:
        """Returns the two vectors that a token predicts in each head, `(B, H, T, a)` and `(B, H, T, b)`."""
        factors = []
        for name in ("tiled", "repeated"):
            inner = self.heads_of(getattr(self, name), hidden).relu()
            factors.append(inner @ getattr(self, f"{name}_weight").mT + getattr(self, f"{name}_bias")[:, None])
        return factors

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """Computes every member's scores for all N positions from its definition, and selects those of the text."""
        query, key, _ = self.project(hidden)
        length, shares = hidden.shape[1], self._shares()
        places = self._places(tokens.mask, hidden, length)
        scores = torch.zeros((), device=hidden.device)
        for member, share in shares.items():
            if member == "vanilla":
                scores_of_member = self.scale * (query @ key.mT)
            else:
                scores_of_member = places.of_columns(self._table(member, hidden, places))
            scores = scores + share * scores_of_member
        visible = dense_mask(
            self.pattern, length, length, key_mask=tokens.mask, is_global=None, query_offset=0, device=hidden.device
        )
        nothing = torch.zeros_like(query[..., :1])
        scores = scores.expand(hidden.shape[0], self.heads, length, length)
        return dense_weights(nothing, nothing, visible, scale=1.0, bias=scores)

    def _table(self, member: str, hidden: Tensor, places: Places) -> Tensor:
        """Returns scores `(B, H, T, N)` of each token for all positions."""
        if member == "dense":
            inner = self.heads_of(self.dense, hidden).relu()
            return inner @ self.dense_weight.mT + self.dense_bias[:, None]
        if member == "factorised_dense":
            tiled, repeated = self._factors(hidden)
            return (repeated[..., :, None] * tiled[..., None, :]).flatten(-2)[..., : self.config.max_tokens]
        if member == "factorised_random":
            return places.of_queries(self.random_left @ self.random_right.mT)
        return places.of_queries(getattr(self, member))


class Places:
    """The positions of T queries and S keys in tables of `most` entries, the queries being the last of the keys.

    Without padding, tables are sliced instead of gathered; a compiled program, which serves every length, gathers.

    Args:
        mask: `(B, S)` bool, True where a key is real; `None` means all are.
        queries: T.
        keys: S.
        most: the number of entries of the tables.
        mechanism: the mechanism's name, for the error.
        device: the device of the tables.

    Raises:
        InputError: a row has more real tokens than the tables have entries; a compiled program asserts it.
    """

    def __init__(
        self, mask: Tensor | None, queries: int, keys: int, most: int, *, mechanism: str, device: torch.device
    ) -> None:
        self.first, self.keys, self.index = keys - queries, keys, None
        compiling = torch.compiler.is_compiling()
        if mask is not None or compiling:
            places = torch.arange(keys, device=device)[None] if mask is None else (mask.cumsum(1) - 1).clamp(min=0)
            self.index = places.clamp(max=most - 1)
            if compiling:
                torch._assert_async((places < most).all(), "max_tokens is fewer than the real tokens of a row")
        if not compiling and keys > most:
            longest = keys if mask is None else int(mask.sum(1).max()) if len(mask) else 0
            if longest > most:
                raise InputError(
                    f"a text of {longest} tokens is longer than max_tokens={most} of attention {mechanism!r}, whose "
                    "tables have an entry for each place; shorten it, or build with a larger max_tokens"
                )

    def of_keys(self, table: Tensor) -> Tensor:
        """Returns rows `(B or 1, H, S, C)` of a table `(H, N, C)`."""
        if self.index is None:
            return table[None, :, : self.keys]
        return table[:, self.index].transpose(0, 1)

    def of_queries(self, table: Tensor) -> Tensor:
        """Returns rows `(B or 1, H, T, C)` of a table `(H, N, C)`."""
        if self.index is None:
            return table[None, :, self.first : self.keys]
        return table[:, self.index[:, self.first :]].transpose(0, 1)

    def of_pairs(self, table: Tensor) -> Tensor:
        """Returns entries `(B or 1, H, T, S)` of a table `(H, N, N)`."""
        if self.index is None:
            whole = table.shape[1] == self.keys and not self.first  # the gradient of a slice would be copied
            return table[None] if whole else table[None, :, self.first : self.keys, : self.keys]
        return table[:, self.index[:, self.first :, None], self.index[:, None, :]].transpose(0, 1)

    def of_columns(self, rows: Tensor) -> Tensor:
        """Returns the entry of each key's position for every query, `(B, H, T, S)`, from `(B or 1, H, T, N)`."""
        if self.index is None:
            return rows[..., : self.keys]
        rows = rows.expand(self.index.shape[0] if rows.shape[0] == 1 else -1, -1, -1, -1)
        index = self.index[:, None, None].expand(*rows.shape[:3], -1)
        return rows.gather(3, index)
