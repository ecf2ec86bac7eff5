"""The model of a comparison: one skeleton with any mechanism, and the same number of weights for all."""

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
"""Maximum relative difference of the number of weights from the target."""
NARROWEST = 8
"""Minimum width of the feed-forward layers when the number of weights is matched."""


@dataclass(frozen=True, kw_only=True)
class Skeleton:
    """The model around the attention; pre-normalised, with sinusoidal positions and without dropout.

    Attributes:
        width: model width E.
        heads: heads H, which must divide the width.
        layers: number of blocks.
        feed_forward: width of the feed-forward layers for a mechanism with four projections E × E; for others, they are
            narrower or wider, so that all models have the same number of weights.
        stack: how blocks are combined.
        memory_tokens: vectors in front of every row that are global tokens (GMAT); mechanisms without global tokens,
            and causal forms, do not support them.
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
    """A model with a matched number of weights.

    Attributes:
        model: from `(B, T)` ids to logits `(B, T, V)`.
        parameters: its number of weights.
        target: the target of this number.
        feed_forward: the width that matches best.
        description: the mechanism with the options that differ from its defaults.
    """

    model: Any
    parameters: int
    target: int
    feed_forward: int
    description: str


def kind_of(mechanism: str) -> type[AttentionConfig]:
    """Returns the configuration class of a mechanism, or of a stack's own attention."""
    attention = STACKS[mechanism].own_attention if mechanism in STACKS else None
    return attention or entry(MECHANISMS, mechanism, "mechanisms")


def config_of(spec: dict[str, Any]) -> AttentionConfig:
    """Returns the configuration of either from plain data.

    Raises:
        InputError: a name or option is unknown, or a value is out of range.
    """
    return from_spec({spec["mechanism"]: kind_of(spec["mechanism"])}, "mechanism", spec, "attention")


def form_of(mechanism: str, probe: type[Probe]) -> Form | None:
    """Returns the form of attention that a mechanism and a probe both support, or `None`."""
    kind = kind_of(mechanism)
    has = {"bidirectional": kind.bidirectional, "causal": kind.causal}
    return next((form for form in probe.forms if has[form]), None)


def refusal(mechanism: str, probe: type[Probe]) -> str:
    """Returns the reason why a mechanism does not support a probe."""
    config = kind_of(mechanism)()
    law, words = ("causal", "has no causal form") if probe.forms[0] == "causal" else ("bidirectional", "is causal only")
    return f"{words}{since(why_not(config, law, causal=law == 'causal'))}"


def takes_globals(mechanism: str, form: Form) -> bool:
    """Whether positions with questions become global tokens."""
    return form == "bidirectional" and supports(kind_of(mechanism), "globals")


def spec_of(mechanism: str, options: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Returns the mechanism as plain data, with defaults that depend on the length."""
    kind = kind_of(mechanism)
    return {"mechanism": mechanism, **kind.defaults_for(tokens, options), **options}


def build(skeleton: Skeleton, spec: dict[str, Any], probe: Probe, form: Form, tokens: int) -> Built:
    """Create the skeleton with a mechanism, for rows of `tokens`.

    The width of the feed-forward layers is chosen so that the number of weights is nearest to that of a mechanism with
    four projections E × E and nothing else.

    Raises:
        InputError: the mechanism does not support the form, the length or an option.
    """
    made = partial(_model, skeleton, spec, probe, form, tokens)
    first, second = made(skeleton.feed_forward), made(skeleton.feed_forward + 1)
    count, per_unit = count_weights(first), count_weights(second) - count_weights(first)
    usual = skeleton.layers * 4 * (skeleton.width**2 + skeleton.width)
    target = count - _of_attention(first) + usual
    inner = max(skeleton.feed_forward + round((target - count) / per_unit), NARROWEST)
    model = made(inner)
    described = config_of(spec).describe()
    return Built(model=model, parameters=count_weights(model), target=target, feed_forward=inner, description=described)


def _model(skeleton: Skeleton, spec: dict[str, Any], probe: Probe, form: Form, tokens: int, inner: int) -> Any:
    from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForTokenClassification

    causal = form == "causal"
    within: dict[str, Any] = {"attention": spec, "stack": skeleton.stack, "normalization": "pre"}
    if spec["mechanism"] not in MECHANISMS:  # a stack with its own attention, which also determines its normalisation
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
        # Small models learn fast with weights of this size, and with token embeddings that are not small relative to
        # positions.
        scale_embedding=True,
        init_std=0.8 / skeleton.width**0.5,
        dropout=0.0,
        **within,
        **({} if causal else {"head": "token_classification", "num_labels": probe.vocabulary}),
    )
    return (LongspanForCausalLM if causal else LongspanForTokenClassification)(config)


def count_weights(module: nn.Module) -> int:
    """Returns the number of weights of a model; shared weights count once."""
    return sum(weight.numel() for weight in module.parameters())


def _of_attention(model: nn.Module) -> int:
    """Returns the mechanism's number of weights: of its modules, and of tables that they share."""
    from longspan.models.encoder import Network

    modules = [module for module in model.modules() if isinstance(module, Attention)]
    modules += [module.relative for module in model.modules() if isinstance(module, Network) and module.relative]
    return sum({id(weight): weight.numel() for module in modules for weight in module.parameters()}.values())
