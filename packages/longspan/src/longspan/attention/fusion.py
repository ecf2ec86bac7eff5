"""Fusion: Poolingformer whose first level has DeBERTa's relative position scores."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longspan.attention.base import LayerState
from longspan.attention.config import AttentionConfig, AttentionCost, Lengthening, SharedTables
from longspan.attention.features.starts import Start
from longspan.attention.parts.pooled import Pools
from longspan.attention.parts.relative import RelativePositions, RelativeTables, bucket, bucket_middles, near_row
from longspan.attention.parts.tokens import Tokens
from longspan.attention.poolingformer import PoolingformerAttention, PoolingformerConfig
from longspan.attention.support import Support
from longspan.errors import InputError
from longspan.ops.attend.call import gather_slots
from longspan.ops.attend.reference import full_precision
from longspan.ops.attend.terms import ContentToPosition, GlobalKeyBias, PositionToContent, Term, content_scores
from longspan.ops.runtime import cached
from longspan.patterns import Pattern, Window
from longspan.settings import Count, Dropout, Range

_OF_THE_TABLE = ("relative_span", "position_buckets", "position_norm_eps")


@dataclass(frozen=True, kw_only=True)
class FusionConfig(PoolingformerConfig):
    """Poolingformer's two levels, the first with DeBERTa's disentangled scores; other options as in Poolingformer.

    Attributes:
        two_level: False omits the second level, for the lower layers of a model.
        levels: as in Poolingformer; the first has relative positions.
        relative_span: offsets up to this have a row of their own in the table of relative positions (paper: k); the
            window must not reach further.
        global_buckets: rows on each side of the second table, for pairs with a global token (thesis: k_g).
        global_span: distance that these rows divide evenly; larger ones share the last row (thesis: N_max).
        p2c_index: the row of the position-to-content term of query i and key j: that of i − j as in DeBERTa's code and
            published weights, `"code"`, or that of j − i as in its equation, `"paper"`.
        position_dropout: probability of dropping an element of the table of relative positions during training.
        position_buckets: DeBERTa-v2: rows on each side of that table, one per offset up to half of them and then
            logarithmic buckets up to `relative_span`; larger offsets share the last row, so windows have no limit.
            `None` gives each offset a row.
        position_norm_eps: DeBERTa-v2: ε of a LayerNorm over the tables; `None` for no LayerNorm.
        tie_position_projections: DeBERTa-v2: the tables are projected by the tokens' local `key` and `query`.
    """

    mechanism: ClassVar[str] = "fusion"
    causal: ClassVar[bool] = False
    incremental: ClassVar[bool] = False
    source: ClassVar[str] = "He et al. 2020, DeBERTa, arXiv 2006.03654, equation 4; level 2: Poolingformer"
    support: ClassVar[Mapping[str, Support]] = {
        "causal": "its relative positions, and pools on both sides of a token, are published for encoders",
    }

    separate_global_projections: bool = False
    two_level: bool = True
    relative_span: Annotated[int, Range(1, 65_536)] = 512
    global_buckets: Annotated[int, Range(1, 65_536)] = 64
    global_span: Count = 4096
    p2c_index: Literal["code", "paper"] = "code"
    position_dropout: Dropout = 0.0
    position_buckets: Annotated[int, Range(2, 65_536)] | None = None
    position_norm_eps: Annotated[float, Range(above=0, maximum=1)] | None = None
    tie_position_projections: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.levels is not None and len(self.levels) > 1 and not self.two_level:
            raise InputError(
                f"two_level=False leaves the second level out, and levels has {len(self.levels)}; give one, or leave "
                "two_level out"
            )
        buckets = self.position_buckets
        if buckets is not None and buckets // 2 >= self.relative_span - 1:
            raise InputError(
                f"position_buckets={buckets} leaves no offset of relative_span={self.relative_span} for a "
                "logarithmic bucket; leave it out, so that each offset has a row"
            )
        for name in ("left_tokens", "right_tokens"):
            if self.widest_window is not None and getattr(self, name) > self.widest_window:
                raise InputError(
                    f"{name}={getattr(self, name)} exceeds relative_span={self.relative_span}, so that distant tokens "
                    "would share a position; narrow the window or widen relative_span"
                )
        if self.global_span < self.global_buckets:
            raise InputError(
                f"global_span={self.global_span} is fewer than global_buckets={self.global_buckets}, which would leave "
                "buckets unused; lower global_buckets"
            )

    @property
    def near_rows(self) -> int:
        """The number of rows on each side of the table of the window."""
        return self.relative_span if self.position_buckets is None else self.position_buckets

    @property
    def widest_window(self) -> int | None:
        return self.relative_span if self.position_buckets is None else None

    @property
    def pools(self) -> tuple[Pools, ...]:
        return super().pools if self.two_level else ()

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """As Poolingformer; each pair of the window has two more products, and both of its tables are projected."""
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        pairs = round(self.level_scores(length)[0] * length)
        offsets = 1 + sum(min(side, max(length - 1, 0)) for side in (self.left_tokens, self.right_tokens))
        rows = min(offsets, 2 * self.near_rows)
        return replace(cost, projections=cost.projections + 2 * rows * width**2, mixing=cost.mixing + 2 * width * pairs)

    def lengthening(self, tokens: int = 1) -> Lengthening:
        alone = self if self.levels is None else self.with_levels(self.levels[:1])
        return replace(super().lengthening(tokens), first_level=replace(alone, two_level=False))

    @classmethod
    def defaults_for(cls, tokens: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """The buckets of pairs with a global token cover the longest input by default."""
        buckets = given.get("global_buckets", cls.global_buckets)
        return {"global_span": max(tokens, buckets) if isinstance(buckets, int) else tokens}

    def shared_tables(self) -> SharedTables:
        """Hands on the options of the table of the window, with default windows within its span."""
        most = self.widest_window
        sides = {name: getattr(type(self), name) for name in ("left_tokens", "right_tokens")}
        sides = {name: side if most is None else min(side, most) for name, side in sides.items()}
        trained = (*_OF_THE_TABLE, "tie_position_projections")
        return SharedTables(
            build=self.make_tables,
            agreed=(*_OF_THE_TABLE, "global_buckets", "global_span"),
            trained=trained,
            handed_on={name: getattr(self, name) for name in (*trained, "p2c_index", "position_dropout")} | sides,
            start=self._start_tables,
            carry=self._carry_tables,
        )

    def _start_tables(self, positions: RelativePositions, missing: Collection[str]) -> set[str]:
        """Initialises the table of global pairs from that of the window, each row at the middle of its bucket."""
        if "near.weight" in missing and self.tie_position_projections:
            raise InputError(
                "tie_position_projections=True leaves nothing with which relative positions could start silently, "
                "and the source has none; leave it out"
            )
        if "far.weight" not in missing:
            return set()
        positions.copy_to_buckets(self.global_span)
        return {"far.weight"}

    def _carry_tables(self, name: str, table: Tensor, source: AttentionConfig) -> Tensor:
        """Copies the trained rows of other buckets of global pairs at the middles of their distances."""
        assert isinstance(source, FusionConfig)
        same = (source.global_buckets, source.global_span) == (self.global_buckets, self.global_span)
        if name != "far.weight" or same:
            return table
        middles = bucket_middles(self.global_buckets, self.global_span).to(table.device)
        return table[bucket(middles, source.global_buckets, source.global_span)]

    def make_tables(self, width: int, heads: int = 1) -> RelativePositions:
        return RelativePositions(
            self.relative_span,
            width,
            buckets=self.global_buckets,
            near_buckets=self.position_buckets,
            norm_eps=self.position_norm_eps,
        )

    def build(self, *, width: int, heads: int, causal: bool = False) -> FusionAttention:
        return FusionAttention(self, width=width, heads=heads, causal=causal)


class FarRows(NamedTuple):
    """The projected table of pairs with a global token.

    Attributes:
        key, query: K^{r,g} and Q^{r,g} by bucket, `(H, 2k_g, D)`.
        in_text: whether the positions are those of the input tokens, 0, 1, 2, ….
    """

    key: Tensor
    query: Tensor
    in_text: bool


class FusionAttention(PoolingformerAttention):
    """The module of `FusionConfig`.

    The module owns its tables of relative positions, `positions`, until an encoder that shares one calls
    `share_positions` and passes it in `Tokens(relative=…)`. `position_key` and `position_query` project the table of
    the window, `global_position_key` and `global_position_query` that of pairs with a global token; if they are tied,
    `key` and `query` project both.
    """

    config: FusionConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    positions: RelativePositions | None
    has_positions = True

    def add_weights(self) -> None:
        super().add_weights()
        width, self.scale = self.width, (3 * self.head_width) ** -0.5
        self.positions = self.config.make_tables(width)
        if not self.config.tie_position_projections:
            self.position_key = nn.Linear(width, width, bias=False)
            self.position_query = nn.Linear(width, width)
            self.global_position_key = nn.Linear(width, width, bias=False)
            self.global_position_query = nn.Linear(width, width)

    @property
    def starts_from(self) -> Mapping[str, str]:
        """As in Poolingformer; the position projections of global pairs start as copies of the others."""
        names = () if self.config.tie_position_projections else ("position_key", "position_query")
        return {**super().starts_from, **{f"global_{name}": name for name in names}}

    @torch.no_grad()
    def warm_start(self, missing: Collection[str], std: float = 0.02) -> dict[str, Start]:
        """Starts a source without relative positions at 0: their projections are zero, and queries are scaled by √3,
        since scores are divided by √(3·D) here and by √D in the source. Gradients reach the zeros at the first step.
        """
        if "position_key.weight" in missing:
            self.query.weight.mul_(3**0.5)
            self.query.bias.mul_(3**0.5)
            for parameter in (*self.position_key.parameters(), *self.position_query.parameters()):
                nn.init.zeros_(parameter)
        return super().warm_start(missing, std)

    def _projections_of(self, table: Literal["near", "far"]) -> tuple[nn.Linear, nn.Linear]:
        """Returns the projections to keys and queries for the table of the window, or of pairs with a global token."""
        if self.config.tie_position_projections:
            return self.key, self.query
        if table == "near":
            return self.position_key, self.position_query
        return self.global_position_key, self.global_position_query

    def share_positions(self) -> None:
        """Deletes the module's own tables; from now on they are passed in `Tokens(relative=…)`."""
        self.positions = None

    def tables(self, tokens: Tokens) -> RelativeTables:
        """Returns the shared tables of `tokens`, or the module's own.

        Raises:
            InputError: they are missing, or have another shape than the configuration requires.
        """
        tables = tokens.relative
        if tables is None:
            if self.positions is None:
                raise InputError(
                    "relative=None of Tokens leaves this layer without positions, which its encoder holds for all "
                    "layers; give Tokens(relative=…) the encoder's tables"
                )
            return self.positions()
        tables = RelativeTables(*tables)
        for name, table, rows in zip(
            RelativeTables._fields, tables, (self.config.near_rows, self.config.global_buckets), strict=True
        ):
            if table.shape != (2 * rows, self.width):
                raise InputError(
                    f"relative.{name} has shape {tuple(table.shape)}; attention 'fusion' with these options needs "
                    f"{(2 * rows, self.width)}"
                )
        return tables

    def position_terms(
        self,
        query: Tensor,
        key: Tensor,
        tokens: Tokens,
        state: LayerState | None,
        slots: Tensor | None = None,
        places: Tensor | None = None,
    ) -> tuple[Tensor, Pattern, list[Term], Any]:
        tables = self.tables(tokens)
        left, right = self.config.left_tokens, self.config.right_tokens
        if not torch.compiler.is_compiling():  # whose graph serves every length
            most = max(query.shape[2] - 1, 0)
            left, right = min(left, most), min(right, most)
        position_key, position_query = self._near(tables.near, left, right)
        terms: list[Term] = [
            ContentToPosition(position_key, first=-left, globals=False),
            PositionToContent(position_query, first=-left, globals=False),
        ]
        far = None
        if slots is not None:
            rows = self._dropped(tables.far)
            far_key, far_query = (self.heads_of(layer, rows) for layer in self._projections_of("far"))
            far = FarRows(far_key, far_query, in_text=places is None)
            place, of_globals = torch.arange(query.shape[2], device=query.device)[None], slots.clamp(min=0)
            if places is not None:
                place, of_globals = places, places.gather(1, of_globals)
            columns = self._far_scores(query, gather_slots(key, slots), place, of_globals, far)
            terms.append(GlobalKeyBias(columns))
        return query, Window(left, right), terms, far

    def _near(self, table: Tensor, left: int, right: int) -> tuple[Tensor, Tensor]:
        """Returns K^r and Q^r by offset j − i, from −left to right, `(H, left + 1 + right, D)`; no other
        row is projected.
        """
        ahead = torch.arange(-left, right + 1, device=table.device)
        key, query = self._projections_of("near")
        key_rows = self._rows(-ahead)
        if self.config.p2c_index == "code" and self.config.position_buckets is None:
            rows = self._dropped(table[key_rows])  # no two of these are the same row
            return self.heads_of(key, rows), self.heads_of(query, rows)
        query_rows = key_rows if self.config.p2c_index == "code" else self._rows(ahead)
        table = self._dropped(table)
        return self._projected(key, table, key_rows), self._projected(query, table, query_rows)

    def _rows(self, offset: Tensor) -> Tensor:
        """Returns the row of the table of the window for an offset query − key."""
        return near_row(offset, self.config.relative_span, self.config.position_buckets)

    def _projected(self, projection: nn.Linear, table: Tensor, rows: Tensor) -> Tensor:
        """Returns the projected rows `(H, R, D)`; projects the table or the list of rows, whichever is shorter."""
        if len(rows) <= len(table):
            return self.heads_of(projection, table[rows])
        return self.heads_of(projection, table)[:, rows]

    def _dropped(self, rows: Tensor) -> Tensor:
        return F.dropout(rows, self.config.position_dropout, self.training)

    def _codes(self, offset: Tensor) -> Tensor:
        return bucket(offset, self.config.global_buckets, self.config.global_span)

    def _far_scores(self, query: Tensor, key: Tensor, query_place: Tensor, key_place: Tensor, far: FarRows) -> Tensor:
        """Returns the scaled relative scores through P_g of `(B, H, Q, D)` queries and `(B, H, K, D)` keys at their
        positions `(B or 1, …)`: `(B, H, Q, K)` in at least float32.
        """
        offset = query_place[:, :, None] - key_place[:, None, :]
        if torch.compiler.is_compiling() or not far.in_text:  # whose graph serves every length, or arbitrary positions
            codes = self._codes(offset)
        else:
            most = max(query.shape[2], key.shape[2])  # tokens of the text, or more
            options = (self.config.global_buckets, self.config.global_span)
            codes = _codes_up_to(most, *options, query.device)[offset + (most - 1)]
        codes = codes[:, None].expand(-1, self.heads, -1, -1)
        wide = torch.promote_types(query.dtype, torch.float32)
        with full_precision(query):
            far_key, far_query = (table.to(wide) * self.scale for table in (far.key, far.query))
            to_position = (query.to(wide) @ far_key.transpose(-1, -2)).gather(-1, codes)
            return to_position + (far_query @ key.to(wide).transpose(-1, -2)).gather(2, codes)

    def global_rows(
        self, hidden: Tensor, local: tuple[Tensor, Tensor, Tensor], real: Tensor | None, slots: Tensor, far: Any
    ) -> Tensor:
        """Computes attention of each global query to every real key, all pairs through P_g: `(B, G, E)`."""
        query, key, value = local
        if self.separate:
            query = self.heads_of(self.global_query, gather_slots(hidden[:, None], slots)[:, 0])
            key, value = self.heads_of(self.global_key, hidden), self.heads_of(self.global_value, hidden)
        else:
            query = gather_slots(query, slots)
        place = torch.arange(key.shape[2], device=key.device)[None]
        scores = self.row_scores(query, key, slots.clamp(min=0), place, far)
        with full_precision(query):
            if real is not None:
                scores = scores.masked_fill(~real[:, None, None, :], torch.finfo(scores.dtype).min)
            weights = F.dropout(scores.softmax(-1), self.dropout_prob)
            return self.merge_heads(weights @ value.to(weights.dtype)).to(value.dtype)

    def row_scores(self, query: Tensor, key: Tensor, query_place: Tensor, key_place: Tensor, far: Any) -> Tensor:
        return super().row_scores(query, key, query_place, key_place, far) + self._far_scores(
            query, key, query_place, key_place, far
        )

    def dense_weights(
        self, query: Tensor, key: Tensor, tokens: Tokens, is_global: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Computes weights with one set of projections from the definition: each pair uses its own row of a table."""
        length, tables = query.shape[2], self.tables(tokens)
        place = torch.arange(length, device=query.device)
        behind = place[:, None] - place[None, :]
        key_row = self._rows(behind)
        query_row = key_row if self.config.p2c_index == "code" else self._rows(-behind)
        keys, queries = (self.heads_of(layer, tables.near) for layer in self._projections_of("near"))
        bias = content_scores(query, keys, key_row) + content_scores(key, queries, query_row.T).transpose(-1, -2)
        if is_global is not None:
            codes = self._codes(behind)
            keys, queries = (self.heads_of(layer, tables.far) for layer in self._projections_of("far"))
            far = content_scores(query, keys, codes) + content_scores(key, queries, codes.T).transpose(-1, -2)
            bias = torch.where(is_global[:, None, :, None] | is_global[:, None, None, :], far, bias)
        return super().dense_weights(query, key, tokens, is_global, bias * self.scale)


@cached
def _codes_up_to(length: int, buckets: int, span: int, device: torch.device) -> Tensor:
    """Returns the bucket of every offset between `length` tokens, `(2·length − 1,)`: a look-up is one kernel on a GPU,
    and the computation ten.
    """
    return bucket(torch.arange(1 - length, length, device=device), buckets, span)
