"""What every attention mechanism is: a configuration and a module."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from longspan.attention.answers import Activations, AttentionCost, Lengthening, Reach, SharedTables
from longspan.attention.parts.tokens import Tokens, in_order
from longspan.errors import InputError
from longspan.ops.attend.slots import check_slots
from longspan.settings import Dropout, check

if TYPE_CHECKING:
    from transformers.cache_utils import CacheLayerMixin as LayerState
else:  # transformers is imported by whoever makes a state
    LayerState = Any

Start = Literal["from_local", "new"]
"""How a weight that a source lacks starts: as a copy of another of the layer, or as the mechanism draws it."""


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Base of every mechanism's configuration: frozen, keyword-only, every field with a default.

    A new mechanism says five things: its key and fields, `build`, what it sees (`sees_everything` or `depends_on`),
    `scores_per_token`, and its `source`. Everything else has a default and is said where that is not right.
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
    prefix_options: ClassVar[Mapping[str, Any] | None] = None
    """Options, with the values beside which the causal form reads a source both ways before it writes, by
    `Tokens.prefix`; `None` where it never does."""
    exempt: ClassVar[Mapping[str, str]] = {}
    """Laws of `tests/contract` that do not apply, each with the reason, which stands in the refusal: `"bidirectional"`,
    `"causal"`, `"state"`, `"globals"`; one of which only the cost speaks, `"linear"`; and `"future"`, of a causal form
    that is what was published and not causal to the bit."""
    earlier_defaults: ClassVar[Mapping[str, Any]] = {}
    """Option → what it was, or stood for, up to version 0.2, where that is not its default today: read into folders of
    models that leave it out and were written then."""

    dropout: Dropout = 0.0
    """Probability of dropping an attention weight during training."""

    def __post_init__(self) -> None:
        """Refuse what is not of its field's type, or outside its limits."""
        check(self)

    # What every mechanism says, besides its key, its fields and its paper: `build`, the scores, and what it sees, by
    # `sees_everything` or `depends_on`.

    def build(self, *, width: int, heads: int, causal: bool = False) -> Attention:
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
        if self.sees_everything:  # all up to the last of them, or all if there is any
            return needed.flip(0).cumsum(0).flip(0) > 0 if causal else needed.any().expand(needed.shape)
        raise InputError(f"attention {self.mechanism!r} has no known receptive field; define its depends_on()")

    # What a mechanism may say besides.

    @property
    def own_head_width(self) -> int | None:
        """Width D of a head that is not the model's width over the number of heads: projections are then `(E, H·D)`."""
        return None

    def activations(self) -> Activations:
        """What a layer computes for every token."""
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

    @property
    def reads_prefix(self) -> bool:
        """Whether the causal form can read a source both ways before it writes, by `Tokens.prefix`."""
        options = self.prefix_options
        return options is not None and all(getattr(self, name) == value for name, value in options.items())

    def describe(self) -> str:
        """The mechanism with the options that differ from its defaults, and its windows."""
        default, hidden = asdict(type(self)()), {"dropout", *self.idle}
        shown = [
            f"{name}={value}"
            for name, value in asdict(self).items()
            if name not in hidden and (value != default[name] or name.endswith("_tokens"))
        ]
        options = ", ".join(shown)
        return f"{self.mechanism}({options})" if options else self.mechanism

    def since(self, law: str) -> str:
        """Why a law does not apply, as the end of a clause; empty where no reason is given."""
        return f", since {self.exempt[law]}" if law in self.exempt else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the mechanism's name first; `attention_config` reverses it."""
        return {"mechanism": self.mechanism, **asdict(self)}


class Attention(nn.Module):
    """An attention mechanism: hidden states in, hidden states out. It has no weights of its own accord; most mechanisms
    are a `ProjectedAttention`, which brings the usual four projections."""

    config: AttentionConfig
    inherits: ClassVar[tuple[str, ...]] = ()
    """Parts whose weights every source brings."""

    def __init__(self, config: AttentionConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        own = config.own_head_width
        if heads < 1 or (own is None and width % heads):
            raise InputError(f"heads={heads} does not divide width={width}; choose a number of heads that does")
        if causal and not config.causal:
            raise InputError(
                f"attention {config.mechanism!r} has no causal form{config.since('causal')}; use causal=False or "
                "another mechanism"
            )
        if not causal and not config.bidirectional:
            raise InputError(
                f"attention {config.mechanism!r} is causal only{config.since('bidirectional')}; build it with "
                "causal=True"
            )
        self.config = config
        self.width = width
        self.heads = heads
        self.head_width = width // heads if own is None else own
        self.causal = causal

    @property
    def dropout_prob(self) -> float:
        """Probability of dropping a weight now: the configured one while training, else 0."""
        return self.config.dropout if self.training else 0.0

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Set the weights beyond the projections that every mechanism shares, as the configuration says.

        Called at construction, and by a model after it has initialised or loaded those projections. Weights that
        transformers marked as loaded are left alone. Here: the copies of `starts_from`.
        """
        for name, source in self.starts_from.items():
            for kind in ("weight", "bias"):
                parameter = getattr(getattr(self, name), kind)
                if parameter is not None and not getattr(parameter, "_is_hf_initialized", False):
                    parameter.copy_(getattr(getattr(self, source), kind))

    @property
    def starts_from(self) -> Mapping[str, str]:
        """Linear part with weights of its own → the part of which it starts as a copy."""
        return {}

    @torch.no_grad()
    def warm_start(self, missing: Collection[str], std: float = 0.02) -> dict[str, Start]:
        """Start the weights of `missing` names, which a source lacks, so that it is disturbed as little as can be.

        Returns how each of them starts; what no source may lack is left out, and left as it is.
        """
        new = [name for name in missing if name.partition(".")[0] not in self.inherits]
        if not new:
            return {}
        kept = {name: tensor.clone() for name, tensor in self.state_dict().items() if name not in new}
        self.init_extra_weights(std)
        self.load_state_dict(kept, strict=False)
        return {name: "from_local" if name.partition(".")[0] in self.starts_from else "new" for name in new}

    def after_step(self, step: int) -> None:
        """What changes between two steps of training but weights: training calls it when `step` of them are done. Here
        nothing does."""

    def share_positions(self) -> None:
        """Give up tables of one's own that layers can share, for those of `Tokens(relative=…)`; here there are none."""

    def check_tokens(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> None:
        """Raise `InputError` where `tokens` or `state` does not fit `hidden` `(B, T, E)` or this mechanism."""
        name = f"attention {self.config.mechanism!r}"
        if state is not None and not (self.causal and self.config.incremental):
            raise InputError(
                f"{name} got state=, which only causal mechanisms that keep a state take{self.config.since('state')}; "
                "pass state=None"
            )
        has_globals = tokens.is_global is not None or tokens.global_slots is not None
        if has_globals and "globals" in self.config.exempt:
            raise InputError(f"{name} takes no global tokens{self.config.since('globals')}; pass is_global=None")
        if has_globals and self.causal:
            raise InputError(
                f"{name} with causal=True takes no global tokens, which would see the future; pass is_global=None"
            )
        if tokens.prefix is not None and not (self.causal and self.config.reads_prefix):
            raise InputError(f"{name} with causal={self.causal} reads no prefix both ways; pass prefix=None")
        batch, length = hidden.shape[:2]
        past = 0 if state is None else int(state.get_seq_length())
        for flags, label, expected in ((tokens.mask, "mask", past + length), (tokens.is_global, "is_global", length)):
            if flags is not None and flags.shape != (batch, expected):
                raise InputError(
                    f"{label} has shape {tuple(flags.shape)}, but the sequence needs ({batch}, {expected})"
                )
        slots = tokens.global_slots
        if slots is not None and slots.shape[0] != batch:
            raise InputError(f"global_slots has {slots.shape[0]} rows and the batch {batch}; give one for each")
        if slots is not None:
            check_slots("global_slots", slots, length)

    @property
    def keeps_state(self) -> bool:
        """Whether there is a state that token-by-token decoding continues."""
        return self.causal and self.config.incremental

    def new_state(self) -> LayerState:
        """What this layer keeps between steps, still empty: `attention(hidden, tokens, state)` continues it.

        Raises:
            InputError: the mechanism is not causal, or has no steps.
        """
        raise InputError(
            f"attention {self.config.mechanism!r} with causal={self.causal} keeps no state; build a mechanism that "
            "decodes step by step, with causal=True"
        )

    def memory_state(self, tokens: int) -> LayerState | None:
        """A state of the last so many positions, behind which outputs are those behind these positions alone; `None`
        where only their hidden states serve."""
        return None

    def forward_with_memory(self, past: Tensor, hidden: Tensor, tokens: Tokens) -> Tensor:
        """Outputs `(B, T, E)` of the last T of M + T positions, causal: `(B, M, E)` and `(B, T, E)`, and what is known
        of all of them."""
        return self(torch.cat([past.to(hidden.dtype), hidden], dim=1), tokens)[:, past.shape[1] :]

    def limit_keys(self, tokens: int) -> None:
        """From now on no query sees further back than the last so many positions, its own included, in the causal form.

        Raises:
            InputError: the mechanism does not choose keys by their distance.
        """
        raise InputError(
            f"same_length=True does not go with attention {self.config.mechanism!r}, which does not choose keys by "
            "their distance; set it to False, or choose a window"
        )

    def forward(self, hidden: Tensor, tokens: Tokens | None = None, state: LayerState | None = None) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`; with `state`, the T tokens continue the sequence that it holds."""
        raise NotImplementedError

    def forward_at(self, places: Tensor, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        """What `forward` gives at some places `(B, Q)` alone: `(B, T, E)` → `(B, Q, E)`; a state takes in all of T.

        Here all of it is computed first; a mechanism whose queries can be left out one by one leaves them out.
        """
        return in_order(self(hidden, tokens, state), places)

    def weights(self, hidden: Tensor, tokens: Tokens | None = None) -> Tensor:
        """Dense attention weights `(B, H, T, S)`, for pictures and tests on short inputs."""
        raise NotImplementedError
