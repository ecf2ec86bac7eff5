"""The base configuration of attention mechanisms, and the dataclasses that it returns.

`AttentionConfig` returns them from methods whose defaults are right for most mechanisms: `activations()` and `costs()`
for costs and memory planning, `reach()` for models that read piece by piece, `lengthening()` for `longspan lengthen`,
`shared_tables()` for encoders whose layers share tables.
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
"""An `Attention`, whose module imports this one."""
Config = Any
"""An `AttentionConfig`, which is defined below."""


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Activations of a layer for every token, besides scores.

    Attributes:
        projections: the linear maps `(E, E)` of a token, one name for each application.
        copies: further tensors of the size of a projection's output that training saves.
    """

    projections: tuple[str, ...] = ("query", "key", "value", "output")
    copies: int = 0


@dataclass(frozen=True, kw_only=True)
class AttentionCost:
    """The cost of one layer over one text without global tokens; counts are exact, including the ends of the text.

    Attributes:
        tokens: length of the text, T.
        scores: pairs of query and key, or query and pool, in one head.
        projections: multiply-adds of the linear projections, the output's included.
        mixing: multiply-adds of scores, with all their terms, and of the weighted sums over values, all heads.
        pooling: multiply-adds of pooling keys and values, the prediction of LDConv's weights included.
        weights: attention weights of all heads, which an implementation stores if it keeps them for the backward pass.
        saved_activations: numbers that the layer saves for its backward pass, without its input: queries, keys and
            values of every level and the attention outputs. Attention weights are mostly recomputed.
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
        """Returns the sum of projections, mixing and pooling."""
        return self.projections + self.mixing + self.pooling


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The receptive field of one output of one layer, without global tokens.

    Attributes:
        left, right: the most tokens on each side, for any output; `None` if unbounded.
        period: shifting a text by this number of tokens shifts the outputs with it, if the reach is bounded.
        dilations: distance between neighbours of a window, one for all heads or one per head.
        longest: the most real tokens that a text may have; `None` if unbounded.
    """

    left: int | None = None
    right: int | None = None
    period: int = 1
    dilations: tuple[int, ...] = (1,)
    longest: int | None = None


LONGER = "poolingformer"
"""The default mechanism of a lengthened model."""


@dataclass(frozen=True, kw_only=True)
class Lengthening:
    """Relations of a mechanism to others with the same weights, on texts of a certain number of tokens.

    Attributes:
        covers: whether the windows cover such a text, so that wider ones would compute the same.
        widened: the mechanism with windows that cover such a text, if possible.
        first_level: the mechanism without further levels, whose weights are a subset; the mechanism itself if it has
            one level.
        exact: the mechanism that this one approximates; itself if it is exact.
        starts_active: whether newly initialised further levels change the output of the first.
    """

    covers: bool
    widened: Config
    first_level: Config
    exact: Config
    starts_active: bool = False


def full_inputs(needed: Tensor, *, causal: bool = False) -> Tensor:
    """Returns the inputs `(T,)` bool that the `needed` outputs depend on with full attention: all if any is needed, or
    in the causal form all up to the last needed one.
    """
    return needed.flip(0).cumsum(0).flip(0) > 0 if causal else needed.any().expand(needed.shape)


def _starts_by_itself(tables: Any, missing: Collection[str]) -> set[str]:
    return set()


def _as_it_is(name: str, table: Tensor, source: Config) -> Tensor:
    return table


@dataclass(frozen=True, kw_only=True)
class SharedTables:
    """Tables, such as those of relative positions, that all layers of an encoder share.

    The encoder builds them, calls `share_positions` of each layer's attention, and passes the tables' output, a tuple
    of tensors, in `Tokens(relative=…)`.

    Attributes:
        build: `(width, heads)` → the module, for a model width E and H heads.
        agreed: options that must be equal in all layers that share the tables.
        trained: options that trained weights determine, so that a longer model made from them cannot change them.
        handed_on: options that a layer with trained weights passes, with their values, to its replacement in
            a longer model.
        what: description of the tables for messages.
        start: `(tables, missing)` initialises in place the tensors that are missing in a source, and returns the names
            of those that start from others. It raises `InputError` if new values would disturb the trained ones.
        carry: `(name, table, source)` converts a tensor of the tables of another configuration to this one.
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
    """Base class of the configurations: frozen, keyword-only, every field with a default.

    A mechanism that is a pattern derives from `PatternConfig`. Any other defines its key and fields, `build`, what its
    outputs depend on (`sees_everything` or `depends_on`), `scores_per_token`, and its `source`. All other members have
    a default, and are overridden where it is wrong.
    """

    mechanism: ClassVar[str]
    """The key in `MECHANISMS`."""
    source: ClassVar[str]
    """Paper and equation."""
    cost: ClassVar[str] = "see scores_per_token"
    """Scores per token, as a formula over the fields."""
    bidirectional: ClassVar[bool] = True
    causal: ClassVar[bool] = False
    incremental: ClassVar[bool] = False
    """Whether `state=` is supported for token-by-token decoding (causal builds only)."""
    sees_everything: ClassVar[bool] = False
    """Whether every token attends to every token, or in the causal form to all up to itself."""
    chooses: ClassVar[bool] = False
    """Whether the pattern depends on the states: `depends_on` is then an upper bound, and rounding can
    change the pattern.
    """
    support: ClassVar[Mapping[str, Support]] = {}
    """Rows of the table of support (`longspan.attention.support.FEATURES`) with a wrong default: True, the reason for
    no support, or `Unless`.
    """
    replaces: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Option → the options that it replaces and with which it cannot be combined."""

    dropout: Dropout = 0.0
    """Probability of dropping an attention weight during training."""

    def __post_init__(self) -> None:
        """Raises `InputError` if a value does not have its field's type, or is outside its limits."""
        check(self)

    # Every mechanism overrides `build`, `scores_per_token`, and `sees_everything` or `depends_on`.

    def build(self, *, width: int, heads: int, causal: bool = False) -> Module:
        """Builds the module for the model width E (`width`) and H `heads`, E = H·D."""
        raise NotImplementedError

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """Returns the mean number of attention scores per token, for `length` real tokens of which
        `global_tokens` are global.
        """
        raise NotImplementedError

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        """Returns the inputs of one layer, with its residual connection, on which the `needed` outputs depend.

        All are `(T,)` bool over a text of T real tokens; `is_global` is True at the global tokens. Exact, or an upper
        bound if the pattern depends on the states (`chooses`).

        Raises:
            InputError: the mechanism does not define it.
        """
        if self.sees_everything:
            return full_inputs(needed, causal=causal)
        raise InputError(f"attention {self.mechanism!r} has no known receptive field; define its depends_on()")

    # Optional members.

    @property
    def own_head_width(self) -> int | None:
        """Width D of a head if it is not the model's width E over the number of heads H: projections are `(E, H·D)`."""
        return None

    def activations(self) -> Activations:
        """Returns the activations of a layer for every token besides scores, for costs and memory planning."""
        return Activations()

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """Counts the cost of a layer, model width E and H heads, on a text of T tokens.

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
        """Returns the receptive field of an output, and the maximal length of a text."""
        return Reach()

    def lengthening(self, tokens: int = 1) -> Lengthening:
        """Returns the relations to mechanisms with the same weights; only `covers` and `widened` depend on `tokens`."""
        covers = self.sees_everything or tokens <= 1
        return Lengthening(covers=covers, widened=self, first_level=self, exact=self)

    def windows_instead(self, tokens: int) -> Mapping[str, Any] | None:
        """Returns the spec of windows of this number of tokens that replace the mechanism in longer texts; `None` to
        keep it.
        """
        return None

    def shared_tables(self) -> SharedTables | None:
        """Returns the tables that all layers of an encoder share, or `None`."""
        return None

    @property
    def idle(self) -> frozenset[str]:
        """Options without an effect for the values of the others; `describe` omits them."""
        return frozenset()

    @classmethod
    def defaults_for(cls, tokens: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns options whose default depends on the longest input of a model, unless they are in `given`."""
        return {}

    # Derived from the members above.

    def describe(self) -> str:
        """Describes the mechanism by its windows and the options that differ from the defaults."""
        default, hidden = asdict(type(self)()), {"dropout", *self.idle}
        shown = [
            f"{name}={getattr(self, name)}"
            for name, value in asdict(self).items()
            if name not in hidden and (value != default[name] or name.endswith("_tokens"))
        ]
        options = ", ".join(shown)
        return f"{self.mechanism}({options})" if options else self.mechanism

    @classmethod
    def without_replaced(cls, options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns `options` without those that options in `given` replace."""
        out = {other for name, others in cls.replaces.items() if given.get(name) is not None for other in others}
        return {name: value for name, value in options.items() if name not in out}

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data with the mechanism's name first; `attention_config` reverses it."""
        return {"mechanism": self.mechanism, **asdict(self)}
