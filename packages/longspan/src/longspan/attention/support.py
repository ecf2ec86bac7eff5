"""The table of support: the features that each mechanism supports, or the reason why it does not.

A feature that concerns many mechanisms (global tokens, packed documents, sharded rows, …) is a row of `FEATURES`. By
default, support follows from the configuration: its forms and its `reach()`. `AttentionConfig.support` overrides this
with True, the reason for no support, or `Unless`. Error messages, the page `docs/mechanisms/support.md` and the
selection of forms in `tests/contract` of this package use this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from longspan.errors import InputError

Config = Any
"""An `AttentionConfig`, or its class for the default options."""


@dataclass(frozen=True)
class Unless:
    """No support, for a reason, unless options have these values."""

    reason: str
    options: Mapping[str, Any]

    def why_not(self, config: Config) -> str | None:
        """Returns the reason and the options that help; `None` if the options have these values."""
        if all(getattr(config, name) == value for name, value in self.options.items()):
            return None
        needed = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.reason} unless {needed}"


Support = bool | str | Unless
"""True, or the reason for no support; False if no reason is known."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A row of the table of support.

    Attributes:
        title: the feature's name on the page.
        meaning: what a mechanism with the feature can do, as a sentence.
        refusal: what a mechanism without it does, as the verb of a sentence.
        remedy: what to do instead.
        default: `(config, causal)` → whether a form supports it, unless `AttentionConfig.support` overrides it.
        form: the only form that can support it; "any" for both.
    """

    title: str
    meaning: str
    refusal: str
    remedy: str
    default: Callable[[Config, bool], Support]
    form: Literal["any", "causal"] = "any"


def _always(config: Config, causal: bool) -> Support:
    return True


def _where_stated(config: Config, causal: bool) -> Support:
    return False


def _globals(config: Config, causal: bool) -> Support:
    return "they would see the future" if causal else True


def _sharded(config: Config, causal: bool) -> Support:
    """Whether rows can be sharded with a halo: for a bounded reach."""
    reach = config.reach()
    return (reach.left is not None and reach.right is not None) or "nothing bounds how far a token sees"


FEATURES: dict[str, Feature] = {
    "bidirectional": Feature(
        title="bidirectional",
        meaning="A token attends to tokens before and after it, as encoders need.",
        refusal="is causal only",
        remedy="build it with causal=True",
        default=lambda config, causal: config.bidirectional,
    ),
    "causal": Feature(
        title="causal",
        meaning="A token attends to no later token, as decoders need.",
        refusal="has no causal form",
        remedy="use causal=False or another mechanism",
        default=lambda config, causal: config.causal,
    ),
    "state": Feature(
        title="token by token",
        meaning="Decoding continues from a state (`state=`), without reading the text again.",
        refusal="keeps no state between steps",
        remedy="pass state=None and read the whole text in every step (use_cache=False), or choose another form",
        default=lambda config, causal: config.incremental,
        form="causal",
    ),
    "static_cache": Feature(
        title="static cache",
        meaning="A decoding step over a cache of a fixed size is one compiled graph for all lengths.",
        refusal="has no step that is one graph for all lengths",
        remedy="leave the step uncompiled",
        default=_where_stated,
        form="causal",
    ),
    "prefix": Feature(
        title="prefix",
        meaning="The first tokens of a causal form are read bidirectionally (`LongspanForPrefixLM`, `Tokens.prefix`).",
        refusal="supports no bidirectional prefix",
        remedy="pass prefix=None",
        default=_where_stated,
        form="causal",
    ),
    "same_length": Feature(
        title="distances",
        meaning="Keys are chosen by their distance alone, so that the stack `recurrent` can limit it (`same_length`), "
        "keep keys and values as its memory, and compress them by `compression_loss: attention`.",
        refusal="does not choose keys by their distance",
        remedy="set same_length=False and compression_loss='auto_encoding', or choose a window",
        default=_where_stated,
        form="causal",
    ),
    "globals": Feature(
        title="global tokens",
        meaning="Chosen tokens attend everywhere and are attended to by all (`Tokens.is_global`, memory tokens).",
        refusal="takes no global tokens",
        remedy="pass is_global=None",
        default=_globals,
    ),
    "structure": Feature(
        title="structure",
        meaning="Each token may belong to a global token (`Tokens.belongs_to`).",
        refusal="reads no structure",
        remedy="pass belongs_to=None, or choose a mechanism that does ('etc')",
        default=_where_stated,
    ),
    "packed": Feature(
        title="packed documents",
        meaning="A row may hold several documents, which do not attend to each other (`Tokens.documents`).",
        refusal="reads one document in a row",
        remedy="give each document a row of its own",
        default=_always,
    ),
    "sharded": Feature(
        title="sequence parallel",
        meaning="Each process holds a part of every row (`Tokens.shards`).",
        refusal="cannot read rows that are sharded between processes",
        remedy="give every process whole rows, or choose a window such as 'longformer', or 'linear'",
        default=_sharded,
    ),
    "padding": Feature(
        title="any padding",
        meaning="A document has the same output with any amount of padding.",
        refusal="depends on the padded length",
        remedy="give each document alone",
        default=_always,
    ),
    "linear": Feature(
        title="linear",
        meaning="Time and memory grow in proportion to the length.",
        refusal="grows faster than the text",
        remedy="choose another mechanism for long texts",
        default=_always,
    ),
    "strict": Feature(
        title="strictly causal",
        meaning="A causal output is the same to the last bit whatever comes later.",
        refusal="is not causal to the last bit",
        remedy="choose its exact form",
        default=_always,
        form="causal",
    ),
}
"""Feature → row of the table, in the order of the page."""


def why_not(config: Config, feature: str, *, causal: bool = False) -> str | None:
    """Returns why a form of a mechanism does not support a feature, as the clause after "since".

    Args:
        config: the mechanism's configuration, or its class for the default options.
        feature: a key of `FEATURES`.
        causal: whether the form is causal.

    Returns:
        `None` if the feature is supported; an empty string if no reason is known.
    """
    config = config() if isinstance(config, type) else config
    row = FEATURES[feature]
    if row.form == "causal" and not causal:
        return "only its causal form does" if config.causal else "it has no causal form"
    answer = config.support.get(feature)
    if answer is None:
        answer = row.default(config, causal)
    if isinstance(answer, Unless):
        return answer.why_not(config)
    if isinstance(answer, str):
        return answer
    return None if answer else ""


def supports(config: Config, feature: str, *, causal: bool = False) -> bool:
    """Returns whether a form of a mechanism supports a feature; arguments as in `why_not`."""
    return why_not(config, feature, causal=causal) is None


def with_feature(kinds: Iterable[Config], feature: str, *, causal: bool = False) -> list[Config]:
    """Returns the mechanisms of these classes that support a feature, each with the options that this needs."""
    stated = ((kind, kind.support.get(feature)) for kind in kinds)
    configs = [kind(**answer.options) if isinstance(answer, Unless) else kind() for kind, answer in stated]
    return [config for config in configs if supports(config, feature, causal=causal)]


def since(reason: str | None) -> str:
    """Formats a reason of `why_not` as the end of a sentence."""
    return f", since {reason}" if reason else ""


def check_support(config: Config, feature: str, *, causal: bool = False) -> None:
    """Raises `InputError` with the reason and the remedy if a form does not support a feature."""
    reason = why_not(config, feature, causal=causal)
    if reason is not None:
        row = FEATURES[feature]
        raise InputError(f"attention {config.mechanism!r} {row.refusal}{since(reason)}; {row.remedy}")
