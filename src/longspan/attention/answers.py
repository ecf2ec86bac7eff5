"""What a mechanism may say of itself beyond what it must: small objects, whose defaults are right for most of them.

`AttentionConfig` returns each where somebody asks: `activations()` and `costs()` for costs and plans of memory,
`reach()` for models that read piece by piece, `lengthening()` for `longspan lengthen`, `shared_tables()` for encoders
whose layers share tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

Config = Any
"""An `AttentionConfig`, which returns what stands here and so comes after it."""


@dataclass(frozen=True, kw_only=True)
class Activations:
    """What a layer computes for every token, besides scores.

    Attributes:
        projections: the linear maps `(E, E)` through which a token passes, one name for each time that it does.
        copies: tensors as large as a projection's output that training saves besides one for each of these.
    """

    projections: tuple[str, ...] = ("query", "key", "value", "output")
    copies: int = 0


@dataclass(frozen=True, kw_only=True)
class AttentionCost:
    """The cost of one layer over one text without global tokens; counts are exact, the ends of the text included.

    Attributes:
        tokens: length of the text, T.
        scores: pairs of query and key, or query and pool, in one head.
        projections: multiply-adds of the linear projections, the output's included.
        mixing: multiply-adds of scores, with all their terms, and of the weighted sums over values, all heads.
        pooling: multiply-adds of pooling keys and values, the prediction of LDConv's weights included.
        weights: attention weights of all heads, which is what an implementation stores that keeps them for backward.
        saved_activations: numbers that the layer saves for its backward pass, its input not counted: queries, keys and
            values of every level and what they gather. Attention weights are mostly computed again.
    """

    tokens: int
    scores: int
    projections: int
    mixing: int
    pooling: int
    weights: int
    saved_activations: int

    @property
    def multiply_adds(self) -> int:
        """Projections, mixing and pooling together."""
        return self.projections + self.mixing + self.pooling


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far one output of one layer depends on its input, without global tokens.

    Attributes:
        left, right: how many tokens to each side at most, wherever the output stands; `None` where nothing bounds it.
        period: shifting a text by so many tokens shifts the outputs with it, where the reach is bounded.
        dilations: distance between neighbours of a window, one for all heads or one per head.
        longest: the most real tokens that a text may have; `None` where nothing bounds them.
    """

    left: int | None = None
    right: int | None = None
    period: int = 1
    dilations: tuple[int, ...] = (1,)
    longest: int | None = None


@dataclass(frozen=True, kw_only=True)
class Lengthening:
    """How a mechanism relates to others with the same weights, on texts of a given number of tokens.

    Attributes:
        covers: whether no window ends inside such a text, so that wider ones would give the same.
        widened: the mechanism with windows that cover such a text, if they can.
        first_level: the mechanism without further levels, whose weights are some of its own; itself where it has one.
        exact: what it approximates; itself where it approximates nothing.
        starts_active: whether further levels, when their weights are new, change the output of the first.
    """

    covers: bool
    widened: Config
    first_level: Config
    exact: Config
    starts_active: bool = False


def _starts_by_itself(tables: Any, missing: Collection[str]) -> set[str]:
    return set()


def _as_it_is(name: str, table: Tensor, source: Config) -> Tensor:
    return table


@dataclass(frozen=True, kw_only=True)
class SharedTables:
    """Tables, of relative positions or others, that all layers of an encoder share.

    The encoder makes them, calls `share_positions` of each layer's attention, and passes what the tables give, a tuple
    of tensors, in `Tokens(relative=…)`.

    Attributes:
        build: `(width, heads)` → the module, for a model width E and H heads.
        agreed: options on which all layers that share the tables must agree.
        trained: options that trained weights decide, so that a longer model made from them cannot choose others.
        handed_on: options with their values that a layer with trained weights hands on to the one that takes its place
            in a longer model.
        what: what the tables are, in words.
        start: `(tables, missing)` starts those tensors that are missing in a source, in place, and gives the names of
            those that start from others; it raises `InputError` where they could not start without disturbing what the
            source has learned.
        carry: `(name, table, source)` gives a tensor of the tables of another configuration as these have it.
    """

    build: Callable[[int, int], nn.Module]
    agreed: tuple[str, ...]
    trained: tuple[str, ...] = ()
    handed_on: Mapping[str, Any] = field(default_factory=dict)
    what: str = "relative positions"
    start: Callable[[Any, Collection[str]], set[str]] = _starts_by_itself
    carry: Callable[[str, Tensor, Config], Tensor] = _as_it_is
