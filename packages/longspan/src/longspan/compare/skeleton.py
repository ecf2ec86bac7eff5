"""The model that all mechanisms are put into: one skeleton, with as many weights whatever the mechanism brings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from torch import nn

from longspan.attention import MECHANISMS, Attention, AttentionConfig
from longspan.attention.support import since, supports, why_not
from longspan.compare.probes import Probe
from longspan.compare.probes.base import Form
from longspan.errors import InputError
from longspan.settings import Count, Range, check, entry, from_spec
from longspan.stacks import STACKS

NEAR = 0.02
"""How far the number of weights may be from the target."""
NARROWEST = 8
"""The narrowest feed-forward layer that is used to match it."""


@dataclass(frozen=True, kw_only=True)
class Skeleton:
    """What surrounds the attention; pre-normalised, sinusoidal positions, no dropout.

    Attributes:
        width: model width E.
        heads: heads H, which divide the width.
        layers: blocks.
        feed_forward: width of the feed-forward layers of a mechanism with four projections E × E; the others' are
            narrower or wider, so that all have as many weights.
        stack: how the blocks are put together.
        memory_tokens: vectors in front of every row that are global tokens (GMAT); mechanisms that take none, and
            causal forms, refuse them.
    """

    width: Annotated[int, Range(8, 8192)] = 64
    heads: Annotated[int, Range(1, 256)] = 4
    layers: Annotated[int, Range(1, 200)] = 2
    feed_forward: Count = 512
    stack: str = "sequential"
    memory_tokens: Annotated[int, Range(0, 4096)] = 0

    def __post_init__(self) -> None:
        check(self)
        if self.width % self.heads:
            raise InputError(f"heads={self.heads} does not divide width={self.width}; choose a number that does")


@dataclass(frozen=True, kw_only=True)
class Built:
    """A model, with what was done to match its weights.

    Attributes:
        model: from `(B, T)` ids to logits `(B, T, V)`.
        parameters: its weights.
        target: how many it was to have.
        feed_forward: the width that matches best.
        description: the mechanism with the options that differ from its defaults.
    """

    model: Any
    parameters: int
    target: int
    feed_forward: int
    description: str


def kind_of(mechanism: str) -> type[AttentionConfig]:
    """The configuration of a mechanism, or of the attention that a stack of that name brings."""
    own = STACKS[mechanism].own_attention if mechanism in STACKS else None
    return own or entry(MECHANISMS, mechanism, "mechanisms")


def config_of(spec: dict[str, Any]) -> AttentionConfig:
    """The configuration of either from plain data.

    Raises:
        InputError: an unknown name or option, or a value out of range.
    """
    return from_spec({spec["mechanism"]: kind_of(spec["mechanism"])}, "mechanism", spec, "attention")


def form_of(mechanism: str, probe: type[Probe]) -> Form | None:
    """The form in which a mechanism does a probe, `None` if there is none that both have."""
    kind = kind_of(mechanism)
    has = {"both ways": kind.bidirectional, "causal": kind.causal}
    return next((form for form in probe.forms if has[form]), None)


def refusal(mechanism: str, probe: type[Probe]) -> str:
    """Why a mechanism cannot do a probe for which it has no form."""
    config = kind_of(mechanism)()
    law, words = ("causal", "has no causal form") if probe.forms[0] == "causal" else ("bidirectional", "is causal only")
    return f"{words}{since(why_not(config, law, causal=law == 'causal'))}"


def takes_globals(mechanism: str, form: Form) -> bool:
    """Whether the places that ask become global tokens."""
    return form == "both ways" and supports(kind_of(mechanism), "globals")


def spec_of(mechanism: str, options: dict[str, Any], tokens: int) -> dict[str, Any]:
    """The mechanism as plain data, with what follows from the length where no option says it."""
    kind = kind_of(mechanism)
    return {"mechanism": mechanism, **kind.defaults_for(tokens, options), **options}


def build(skeleton: Skeleton, spec: dict[str, Any], probe: Probe, form: Form, tokens: int) -> Built:
    """The skeleton with a mechanism, for rows of so many tokens.

    The feed-forward layers are made as wide as brings the number of weights nearest to that of a mechanism with four
    projections E × E and nothing else.

    Raises:
        InputError: the mechanism refuses the form, the length or an option.
    """
    made = partial(_model, skeleton, spec, probe, form, tokens)
    first, second = made(skeleton.feed_forward), made(skeleton.feed_forward + 1)
    count, each = count_weights(first), count_weights(second) - count_weights(first)
    usual = skeleton.layers * 4 * (skeleton.width**2 + skeleton.width)
    target = count - _of_attention(first) + usual
    inner = max(skeleton.feed_forward + round((target - count) / each), NARROWEST)
    model = made(inner)
    described = config_of(spec).describe()
    return Built(model=model, parameters=count_weights(model), target=target, feed_forward=inner, description=described)


def _model(skeleton: Skeleton, spec: dict[str, Any], probe: Probe, form: Form, tokens: int, inner: int) -> Any:
    from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForTokenClassification

    causal = form == "causal"
    within: dict[str, Any] = {"attention": spec, "stack": skeleton.stack, "normalization": "pre"}
    if spec["mechanism"] not in MECHANISMS:  # a stack that brings its attention, and says itself where it normalises
        if skeleton.stack != Skeleton.stack:
            raise InputError(
                f"stack={skeleton.stack!r} cannot hold {spec['mechanism']!r}, which is a stack itself; leave one of "
                "them out"
            )
        options = {name: value for name, value in spec.items() if name != "mechanism"}
        within = {"stack": {"stack": spec["mechanism"], **options}}
    config = LongspanConfig(
        vocab_size=probe.vocabulary,
        pad_token_id=probe.padding,
        bos_token_id=None,
        eos_token_id=None,
        hidden_size=skeleton.width,
        num_attention_heads=skeleton.heads,
        num_hidden_layers=skeleton.layers,
        intermediate_size=inner,
        max_position_embeddings=tokens,
        num_memory_tokens=skeleton.memory_tokens,
        position_embedding="sinusoidal",
        # Small models learn at once with weights of this size, and with tokens that are not lost beside the positions.
        scale_embedding=True,
        init_std=0.8 / skeleton.width**0.5,
        dropout=0.0,
        **within,
        **({} if causal else {"head": "token_classification", "num_labels": probe.vocabulary}),
    )
    return (LongspanForCausalLM if causal else LongspanForTokenClassification)(config)


def count_weights(module: nn.Module) -> int:
    """How many numbers the weights of a model have; those that several modules share count once."""
    return sum(weight.numel() for weight in module.parameters())


def _of_attention(model: nn.Module) -> int:
    """Of these, the mechanism's: those of its modules and of the tables that they share."""
    from longspan.models.encoder import Network

    modules = [module for module in model.modules() if isinstance(module, Attention)]
    modules += [module.relative for module in model.modules() if isinstance(module, Network) and module.relative]
    return sum({id(weight): weight.numel() for module in modules for weight in module.parameters()}.values())
