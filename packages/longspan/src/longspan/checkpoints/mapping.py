"""Correspondence of tensors between published models and ours: tables of names, and one function for both
directions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

import longspan.models
from longspan.characters import counted
from longspan.errors import InputError
from longspan.settings import show

Pairs = tuple[tuple[str, str], ...]
"""(theirs, ours): fields, modules or tensors. `{i}` is a layer index; `.weight` and `.bias` are implied."""

SAME = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings", "id2label", "label2id")
"""Fields with the same name in every architecture."""


@dataclass(frozen=True)
class Head:
    """A transformers class and the Longspan class it converts to.

    Attributes:
        longspan: name of the class in `longspan.models`.
        pairs: tensors of the head, by their full names.
        ignored: prefixes of their tensors that have no counterpart here and affect no output of ours.
        fresh: tensors of ours that keep their initial value.
        fields: configuration fields that this head fixes.
        options: their configuration → the options of our head.
        export: our configuration → the fields of theirs that express these options.
        refuse: raises `InputError` if their configuration contradicts this head.
    """

    longspan: str
    pairs: Pairs = ()
    ignored: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    options: Callable[[Any], dict[str, Any]] = lambda config: {}
    export: Callable[[Any], dict[str, Any]] = lambda config: {}
    refuse: Callable[[Any], None] = lambda config: None

    def fields_of(self, config: Any) -> dict[str, Any]:
        """Returns the fields of our configuration from theirs: those that the head fixes, and its spec."""
        self.refuse(config)
        spec = getattr(getattr(longspan.models, self.longspan), "spec", None)
        return {**self.fields, "head": None if spec is None else {"head": spec.head, **self.options(config)}}


@dataclass(frozen=True)
class Architecture:
    """A published architecture.

    Attributes:
        model_type: the name in `config.json`.
        prefix: the attribute of their models with a head that holds the body ("bert", "model", …).
        body: tensors of the body, by their names inside it.
        our_body: the attribute of our models with a head that holds the body; models without a head have it at the top.
        heads: transformers class name → `Head`; for export the first entry with our class is used.
        names: fields that differ only in name.
        fixed: fields of `LongspanConfig` that are constant for the architecture.
        read: their configuration → further fields of `LongspanConfig`.
        write: our configuration → further fields of theirs, without checking that they express everything.
        checked: fields that `write` does check.
        unpack: their tensors and configuration → tensors that `body` and the heads name individually.
        pack: the inverse of `unpack`, writing into their tensors in place; the third argument is their configuration.
        unread: pattern of our tensors' names that affect no output of theirs.
    """

    model_type: str
    prefix: str
    body: Pairs
    heads: Mapping[str, Head]
    names: Pairs
    fixed: Mapping[str, Any]
    read: Callable[[Any], dict[str, Any]] = lambda config: {}
    write: Callable[[Any], dict[str, Any]] = lambda config: {}
    our_body: str = "model"
    checked: tuple[str, ...] = ()
    unpack: Callable[[Mapping[str, Tensor], Any], Mapping[str, Tensor]] = lambda state, config: state
    pack: Callable[[Mapping[str, Tensor], Mapping[str, Tensor], Any], None] = lambda plain, state, config: None
    unread: re.Pattern[str] | None = None

    def fields(self, config: PreTrainedConfig) -> dict[str, Any]:
        """Returns the fields of `LongspanConfig` for their configuration."""
        return {**_renamed(config, self.names), **self.fixed, **self.read(config)}

    def export(self, config: PreTrainedConfig) -> dict[str, Any]:
        """Returns the fields of their configuration for ours."""
        return {**_renamed(config, reverse(self.names)), **self.write(config)}

    def head(self, name: str) -> Head:
        """Returns the head for a transformers class name.

        Raises:
            InputError: Longspan has no class for it.
        """
        if name not in self.heads:
            raise InputError(
                f"architecture {show(name)} has no counterpart in Longspan; of {self.model_type!r} it loads "
                f"{', '.join(self.heads)}"
            )
        return self.heads[name]

    def leaves(self, name: str) -> bool:
        """Whether our tensor of that name is not exported."""
        return self.unread is not None and self.unread.search(name) is not None

    def pairs(self, head: Head, model: PreTrainedModel) -> Pairs:
        """Returns all pairs (theirs, ours) for this head, with full names on both sides; `model` is theirs."""
        theirs = "" if getattr(model, self.prefix, None) is None else f"{self.prefix}."
        ours = f"{self.our_body}." if self.our_body and head.longspan != "LongspanModel" else ""
        return tuple((theirs + a, ours + b) for a, b in self.body) + head.pairs


UNSAID = 1_024
"""Longest input, in tokens, of a model whose files do not define it: the training length of mT5 and ByT5."""


@dataclass(frozen=True, kw_only=True)
class InPlace:
    """A published architecture that keeps transformers' classes, and reads longer texts with windows in them.

    Attributes:
        classes: the supported classes; files that name a class that transformers no longer has use the first.
        mechanism: the only mechanism that its layers support.
        length: the field of their configuration with the longest input.
        own_window: `(configuration, layer)` → tokens to each side of the layer's own window, `None` if it sees
            everything; raises `InputError` if it has more than windows.
        exchanged: whether the attention can be replaced (`use_attention`); otherwise only its own windows are
            available.
        table: the embedding of absolute positions in their base model, `None` if there is none.
        reserved: rows of that table before that of the first token, which `length` includes.
    """

    classes: tuple[str, ...]
    mechanism: str
    length: str
    own_window: Callable[[Any, int], int | None] = lambda config, layer: None
    exchanged: bool = True
    table: str | None = None
    reserved: int = 0

    def class_of(self, name: str | None) -> str:
        """Returns the class that loads files with this class name.

        Raises:
            InputError: the class is another head.
        """
        if name is None or not hasattr(transformers, name):
            return self.classes[0]
        if name not in self.classes:
            raise InputError(f"architecture {show(name)} is not lengthened; give {' or '.join(self.classes)}")
        return name

    def longest(self, config: Any) -> int:
        """Returns the longest input of their configuration."""
        tokens = getattr(config, self.length, None)
        return tokens - self.reserved if isinstance(tokens, int) and self.reserved < tokens < 10**9 else UNSAID


@torch.no_grad()
def transfer(
    source: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
    pairs: Pairs,
    *,
    ignored: tuple[str, ...] = (),
    reserved: int = 0,
) -> list[str]:
    """Copies every source tensor into its target tensors, in place. Returns the names of the target tensors that were
    not filled.

    Args:
        source: state dict to read. Tied tensors may appear under several names.
        target: state dict to write; tensors that share memory with a filled one count as filled.
        pairs: (source name, target name) patterns; if two source tensors have one target, the earlier pattern wins.
        ignored: prefixes of source names that are skipped.
        reserved: rows by which a table of positions may be longer than its target, which gets the rows after them.

    Raises:
        InputError: a source tensor is neither used nor ignored, or its shape does not match.
    """
    rules = [(_compile(theirs), ours) for ours, theirs in pairs]
    used: set[str] = set()
    reached = set()
    for name, wanted in target.items():
        candidates = [other for other in _translations(name, rules) if other in source]
        used.update(candidates)
        if candidates:
            tensor = source[candidates[0]]
            rows = tensor[reserved:] if tensor.shape != wanted.shape and "position" in name else tensor
            if rows.shape != wanted.shape:
                raise InputError(
                    f"the weights do not fit the configuration: {name} needs {tuple(wanted.shape)}, found "
                    f"{tuple(tensor.shape)}"
                )
            wanted.copy_(rows)
            reached.add(_place(wanted))
    copied = {_place(source[name]) for name in used}
    lost = [name for name, tensor in source.items() if not name.startswith(ignored) and _place(tensor) not in copied]
    if lost:
        raise InputError(
            f"tensor {lost[0]!r} of the source model has no place in the target"
            + (f" (nor have {counted(len(lost) - 1, 'other')})" if len(lost) > 1 else "")
            + "; the checkpoint has parts that this conversion does not know"
        )
    return [name for name, wanted in target.items() if _place(wanted) not in reached]


def _compile(template: str) -> re.Pattern[str]:
    layer = re.escape(template).replace(re.escape("{i}"), r"(?P<i>\d+)")
    return re.compile(rf"{layer}(?P<kind>\.weight|\.bias)?")


def _translations(name: str, rules: list[tuple[re.Pattern[str], str]]) -> Iterator[str]:
    """Yields the names on the other side for every matching rule."""
    for pattern, other in rules:
        match = pattern.fullmatch(name)
        if match:
            yield other.replace("{i}", match.groupdict().get("i") or "") + (match["kind"] or "")


def translations(name: str, pairs: Pairs) -> list[str]:
    """Returns the names of our tensor `name` for every matching (theirs, ours) pattern."""
    return list(_translations(name, [(_compile(ours), theirs) for theirs, ours in pairs]))


def _place(tensor: Tensor) -> tuple[int, tuple[int, ...], str]:
    """Returns a key that is equal for tied tensors."""
    return tensor.data_ptr(), tuple(tensor.shape), str(tensor.device)


def alike(*names: str) -> Pairs:
    """Returns pairs of fields or tensors that have the same name on both sides."""
    return tuple((name, name) for name in names)


def reverse(pairs: Pairs) -> Pairs:
    return tuple((ours, theirs) for theirs, ours in pairs)


def _renamed(config: PreTrainedConfig, names: Pairs) -> dict[str, Any]:
    fields = {
        name: getattr(config, name) for name in SAME if hasattr(config, name)
    }  # Pegasus has no beginning-of-text token
    fields |= {"problem_type": getattr(config, "problem_type", None), "bos_token_id": fields.get("bos_token_id")}
    # Not every architecture has these; if ours has the default, theirs keeps its own.
    for name, default in (("use_cache", True), ("output_hidden_states", False), ("return_dict", True)):
        if getattr(config, name, default) != default:
            fields[name] = not default
    return fields | {new: getattr(config, old) for old, new in names}
