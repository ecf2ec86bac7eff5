"""The configuration of an attention mechanism: what it says of itself, and the small objects in which it says more.

`AttentionConfig` returns such an object where somebody asks, whose defaults are right for most mechanisms:
`activations()` and `costs()` for costs and plans of memory, `reach()` for models that read piece by piece,
`lengthening()` for `longspan lengthen`, `shared_tables()` for encoders whose layers share tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from longspan.attention.support import Support
from longspan.errors import InputError
from longspan.settings import Dropout, check

Module = Any
"""An `Attention`, which has its configuration and so comes after it."""
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


LONGER = "poolingformer"
"""The mechanism of a lengthened model where none is asked for."""


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


def full_inputs(needed: Tensor, *, causal: bool = False) -> Tensor:
    """The inputs `(T,)` bool that the `needed` outputs depend on where every token sees every token: all if there is
    any, or in the causal form all up to the last."""
    return needed.flip(0).cumsum(0).flip(0) > 0 if causal else needed.any().expand(needed.shape)


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


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Base of every mechanism's configuration: frozen, keyword-only, every field with a default.

    A mechanism that is a pattern derives from `PatternConfig`. Any other defines its key and fields, `build`, what its
    outputs depend on (`sees_everything` or `depends_on`), `scores_per_token`, and its `source`. All other members have
    a default, and are overridden where it is wrong.
    """

    mechanism: ClassVar[str]
    """The key under which `MECHANISMS` lists it."""
    source: ClassVar[str]
    """Paper and equation."""
    cost: ClassVar[str] = "see scores_per_token"
    """Scores per token, as a formula over the fields."""
    bidirectional: ClassVar[bool] = True
    causal: ClassVar[bool] = False
    incremental: ClassVar[bool] = False
    """Whether `state=` is supported for token-by-token decoding (causal builds only)."""
    sees_everything: ClassVar[bool] = False
    """Whether every token sees every token, or in the causal form all up to itself."""
    chooses: ClassVar[bool] = False
    """Whether the states decide what a query sees: `depends_on` is then an upper bound, and rounding can decide too."""
    support: ClassVar[Mapping[str, Support]] = {}
    """Rows of the table of support (`longspan.attention.support.FEATURES`) of which the default is not right: True, why
    not, or `Unless`."""
    replaces: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Option → the options that it takes the place of, beside which it is refused."""

    dropout: Dropout = 0.0
    """Probability of dropping an attention weight during training."""

    def __post_init__(self) -> None:
        """Refuse what is not of its field's type, or outside its limits."""
        check(self)

    # What every mechanism says, besides its key, its fields and its paper: `build`, the scores, and what it sees, by
    # `sees_everything` or `depends_on`.

    def build(self, *, width: int, heads: int, causal: bool = False) -> Module:
        """Make the module: `width` is the model width E, `heads` the number of heads H (E = H·D)."""
        raise NotImplementedError

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """Mean attention scores per token of `length` real tokens, `global_tokens` of them global: `cost`, counted."""
        raise NotImplementedError

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        """The inputs of one layer, with its residual connection, that the `needed` ones of its outputs depend on.

        Exact, or all that there can be where states decide (`chooses`), over a text of T real tokens: `(T,)` bool all,
        `is_global` True at the global tokens.

        Raises:
            InputError: nobody has said for this mechanism.
        """
        if self.sees_everything:
            return full_inputs(needed, causal=causal)
        raise InputError(f"attention {self.mechanism!r} has no known receptive field; define its depends_on()")

    # What a mechanism may say besides.

    @property
    def own_head_width(self) -> int | None:
        """Width D of a head that is not the model's width over the number of heads: projections are then `(E, H·D)`."""
        return None

    def activations(self) -> Activations:
        """What a layer computes for every token besides scores, for costs and plans of memory."""
        return Activations()

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """Count the cost of a layer, model width E and H heads, on a text of T tokens.

        A projection costs E² per token and a score 2E in all heads: D each for the product and for the sum over values.
        """
        inner = width if self.own_head_width is None else heads * self.own_head_width
        scores = round(self.scores_per_token(length, causal=causal) * length)
        activations = self.activations()
        return AttentionCost(
            tokens=length,
            scores=scores,
            projections=len(activations.projections) * width * inner * length,
            mixing=2 * inner * scores,
            pooling=0,
            weights=heads * scores,
            saved_activations=(len(activations.projections) + activations.copies) * inner * length,
        )

    def reach(self) -> Reach:
        """How far an output depends on its input, and how long a text may be."""
        return Reach()

    def lengthening(self, tokens: int = 1) -> Lengthening:
        """How it relates to mechanisms with the same weights, on texts of so many tokens, which only `covers` and
        `widened` ask for."""
        covers = self.sees_everything or tokens <= 1
        return Lengthening(covers=covers, widened=self, first_level=self, exact=self)

    def windows_instead(self, tokens: int) -> Mapping[str, Any] | None:
        """Windows of so many tokens that take its place in longer texts, as a spec; `None` where it stays."""
        return None

    def shared_tables(self) -> SharedTables | None:
        """The tables that all layers of an encoder share, `None` if there are none."""
        return None

    @property
    def idle(self) -> frozenset[str]:
        """Options that mean nothing beside the values of the others, which `describe` leaves out."""
        return frozenset()

    @classmethod
    def defaults_for(cls, tokens: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """Options whose default follows the longest input of a model, where `given` ones leave them open."""
        return {}

    # What follows from these answers.

    def describe(self) -> str:
        """The mechanism with the options that differ from its defaults, and its windows."""
        default, hidden = asdict(type(self)()), {"dropout", *self.idle}
        shown = [
            f"{name}={getattr(self, name)}"
            for name, value in asdict(self).items()
            if name not in hidden and (value != default[name] or name.endswith("_tokens"))
        ]
        options = ", ".join(shown)
        return f"{self.mechanism}({options})" if options else self.mechanism

    @classmethod
    def beside(cls, options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Options, those of which `given` ones take the place left out."""
        out = {other for name, others in cls.replaces.items() if given.get(name) is not None for other in others}
        return {name: value for name, value in options.items() if name not in out}

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the mechanism's name first; `attention_config` reverses it."""
        return {"mechanism": self.mechanism, **asdict(self)}
