"""The mechanism of each layer, in a compact form: ranges of layers, and options that differ from layer to layer.

    attention:
      - {layers: "0-5", mechanism: longformer, left_tokens: {per_layer: [32, 32, 64, 64, 128, 128]}}
      - {layers: "6-", mechanism: poolingformer}

`layers` is a number, a string such as `"0-5"`, `"6-"` (to the end) or `"0,2,-1"`, or a list of these; negative numbers
count from the end. An option that differs is `{per_layer: [...]}`, with a value for each layer of its entry in rising
order, or a mapping of ranges, `{"0-2": 64, "3-5": 128}`. One mechanism for all layers, and a list with one for each
layer, are also accepted.

`receptive_field` and `reach` compute the receptive field of such layers from their configurations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from longspan.attention import AttentionConfig, attention_config
from longspan.errors import InputError
from longspan.settings import show

Spec = dict[str, Any]
Layer = str | Mapping[str, Any] | AttentionConfig
"""One mechanism, as accepted by `attention_config`."""
_RANGE = re.compile(r"\s*(-?[0-9]{1,4})(?:(-)(-?[0-9]{1,4})?)?\s*")  # up to 9,999 layers


def layer_specs(spec: Any, layers: int) -> list[Spec]:
    """Returns one mechanism per layer as plain JSON data with every option, except a dropout that was not set.

    Raises:
        InputError: an unknown mechanism, option or layer, a layer named twice or not at all, or an option with another
            number of values than its entry has layers.
    """
    entries = spread(spec, layers)
    if None in entries:
        raise InputError(
            f"attention leaves layer {entries.index(None)} without a mechanism; name every layer from 0 to {layers - 1}"
        )
    return [plain_spec(entry) for entry in entries]


def spread(spec: Any, layers: int) -> list[Any]:
    """Returns the value of each layer, `None` if no range contains it; errors as in `layer_specs`."""
    listed = _is_list(spec)
    entries = list(spec) if listed else [spec]
    ranged = [isinstance(entry, Mapping) and "layers" in entry for entry in entries]
    if any(ranged) and not all(ranged):
        raise InputError("attention lists mechanisms with layers and without; give `layers` in each of them")
    if listed and not any(ranged) and len(entries) != layers:
        raise InputError(
            f"attention lists {len(entries)} mechanisms for {layers} layers; give one each, or give "
            "`layers` in each of them, such as layers: '0-5'"
        )
    specs: list[Any] = [None] * layers
    for number, entry in enumerate(entries):
        if any(ranged):
            members = parse_layers(entry["layers"], layers)
        else:
            members = [number] if listed else list(range(layers))
        for layer, options in _differing(entry, members, layers).items():
            if specs[layer] is not None:
                raise InputError(f"attention names layer {layer} twice (layers={show(entry['layers'])}); name it once")
            specs[layer] = options
    return specs


def samples(spec: Any) -> list[Any]:
    """Returns every mechanism of a spec, without its layers and with the first value of each option that differs, to be
    checked before the number of layers is known.
    """
    return [_sample(entry) for entry in (spec if _is_list(spec) else [spec])]


def plain_layers(spec: Any, layers: int) -> Spec | list[Spec]:
    """Returns a spec for `layers` layers as short plain data, with every option; errors as in `layer_specs`."""
    return ranges(layer_specs(spec, layers)) if layers or _is_list(spec) else plain_spec(spec)


def ranges(specs: Sequence[Spec]) -> Spec | list[Spec]:
    """Returns the shortest form of one spec per layer: one for all, or one for each range of equal layers."""
    groups: dict[int, list[int]] = {}
    for layer, spec in enumerate(specs):
        groups.setdefault(specs.index(spec), []).append(layer)
    if len(groups) == 1:
        return dict(specs[0])
    return [{"layers": _range_text(members), **specs[first]} for first, members in groups.items()]


def plain_spec(spec: Any, path: str = "attention") -> Spec:
    """Returns one mechanism as plain JSON data with every option; `path` as in `attention_config`."""
    data = attention_config(spec, path).to_dict()
    # A dropout that was not set is omitted, so that the model's `attention_dropout` determines it.
    chosen = isinstance(spec, Mapping) and "dropout" in spec
    if not chosen and not data["dropout"]:
        del data["dropout"]
    return json.loads(json.dumps(data))


def parse_layers(given: Any, layers: int) -> list[int]:
    """Parses `"0,2,6-"`, a number, or a list of these to rising layer numbers below `layers`.

    Raises:
        InputError: another value, an empty range, or a layer that does not exist.
    """
    chosen: set[int] = set()
    for part in (
        text for part_of_list in (given if _is_list(given) else [given]) for text in str(part_of_list).split(",")
    ):
        numbers = _RANGE.fullmatch(part)
        if numbers is None:
            raise InputError(
                f"attention.layers={show(given)} is not understood; write numbers of up to four digits and ranges, "
                "such as '6-11', '6-' or '0,2,-1'"
            )
        first = _place(numbers[1], layers)
        last = layers - 1 if numbers[2] and not numbers[3] else _place(numbers[3] or numbers[1], layers)
        if last < first:
            raise InputError(
                f"attention.layers={show(given)} has the range {part.strip()}, which is empty; "
                "write the lower number first"
            )
        chosen.update(range(first, last + 1))
    return sorted(chosen)


def check_shared_tables(configs: Sequence[AttentionConfig]) -> None:
    """Raises `InputError` if layers that share tables need different ones."""
    shared = [(layer, config, config.shared_tables()) for layer, config in enumerate(configs)]
    sharing = [(layer, config, tables) for layer, config, tables in shared if tables is not None]
    for layer, config, _ in sharing[1:]:
        first_layer, first, tables = sharing[0]
        for name in ("mechanism", *tables.agreed):
            asked, has = getattr(config, name, None), getattr(first, name)
            if asked != has:
                raise InputError(
                    f"attention of layer {layer} has {name}={asked}, that of layer {first_layer} has {has}; all "
                    f"{first.mechanism} layers share one table of {tables.what}, so give them the same"
                )


def check_longest(configs: Sequence[AttentionConfig], tokens: int, memory: int = 0) -> None:
    """Raises `InputError` if a layer cannot process inputs of `tokens` tokens together with a `memory` of
    that many tokens.
    """
    for layer, config in enumerate(configs):
        longest = config.reach().longest
        if longest is not None and longest < tokens + memory:
            also = f" and num_memory_tokens={memory} together" if memory else ""
            remedy = f"give {config.describe()} a longer maximum, or the model a shorter one"
            raise InputError(
                f"attention of layer {layer} takes at most {longest} tokens, fewer than "
                f"max_position_embeddings={tokens}{also}; {remedy}"
            )


def receptive_field(layers: Sequence[Layer], *, length: int, token: int, is_global: Tensor | None = None) -> Tensor:
    """Returns the input tokens that the state of `token` depends on after each layer: `(L + 1, T)` bool.

    Row l is for the state after the first l layers; row 0 is the token itself. Includes the residual connections;
    feed-forward layers do not mix tokens. Exact, in time linear in the length: no weight and no T × T tensor.

    Args:
        layers: one mechanism for each layer, lowest first, as accepted by `attention_config`.
        length: tokens of the text, T.
        token: index of the token, 0 … T − 1.
        is_global: `(T,)` bool, True at the global tokens.

    Raises:
        InputError: a token outside the text, flags that do not cover it, or a mechanism that does not define its
            receptive field.
    """
    if not 0 <= token < length:
        raise InputError(f"token={token} is not in a text of length={length}; choose one of 0 to {length - 1}")
    if is_global is not None and (is_global.dtype != torch.bool or is_global.shape != (length,)):
        raise InputError(f"is_global is {is_global.dtype} of shape {tuple(is_global.shape)}; give bool ({length},)")
    configs = [attention_config(layer) for layer in layers]
    single = torch.zeros(length, dtype=torch.bool)
    single[token] = True
    rows = [single]
    for top in range(1, len(configs) + 1):
        # Row `top` goes from layer `top` down to the input; each layer adds the inputs that its outputs depend on.
        needed = single
        for config in reversed(configs[:top]):
            needed = config.depends_on(needed, is_global=is_global)
        rows.append(needed)
    return torch.stack(rows)


def reach(layers: Sequence[Layer], *, length: int, token: int) -> list[tuple[int, int]]:
    """Returns the number of tokens to the left and right that a token's state depends on, before the first layer and
    after each.

    Without global tokens; arguments and errors as in `receptive_field`. Choose a length that the stack cannot span, or
    the result is the distance to the ends of the text.
    """
    field = receptive_field(layers, length=length, token=token)
    first, last = field.int().argmax(1), length - 1 - field.flip(1).int().argmax(1)
    return [(token - left, right - token) for left, right in zip(first.tolist(), last.tolist(), strict=True)]


def _is_list(spec: Any) -> bool:
    return isinstance(spec, Sequence) and not isinstance(spec, str)


def _sample(entry: Any) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    options = {name: value for name, value in entry.items() if name != "layers"}
    for name, value in options.items():
        if isinstance(value, Mapping) and value:
            first = next(iter(value.values()))
            options[name] = first[0] if set(value) == {"per_layer"} and isinstance(first, list) and first else first
    return options


def _place(text: str, layers: int) -> int:
    number = int(text)
    if not -layers <= number < layers:
        known = f"layers 0 to {layers - 1}" if layers else "none"
        raise InputError(f"attention.layers names layer {number}, but there are {known}")
    return number % layers


def _differing(entry: Any, members: list[int], layers: int) -> dict[int, Any]:
    """Returns the entry for each layer in `members`, with the value that each option has there."""
    if not isinstance(entry, Mapping):
        return dict.fromkeys(members, entry)
    options = {name: value for name, value in entry.items() if name != "layers"}
    values = {
        name: _by_layer(name, value, members, layers) for name, value in options.items() if isinstance(value, Mapping)
    }
    return {layer: options | {name: by_layer[layer] for name, by_layer in values.items()} for layer in members}


def _by_layer(name: str, value: Mapping[Any, Any], members: list[int], layers: int) -> dict[int, Any]:
    """Returns the value of one option for each layer, from `{per_layer: [...]}` or from ranges."""
    if set(value) == {"per_layer"}:
        listed = value["per_layer"]
        if not _is_list(listed) or len(listed) != len(members):
            raise InputError(
                f"attention.{name}.per_layer is {show(listed)}; it must be a list of {len(members)} values, "
                "one per layer"
            )
        return dict(zip(members, listed, strict=True))
    values: dict[int, Any] = {}
    for text, option in value.items():
        for layer in parse_layers(text, layers):
            if layer in values or layer not in members:
                reason = "named twice" if layer in values else "not among those of its mechanism"
                raise InputError(f"attention.{name} is {show(value)}, where layer {layer} is {reason}; leave it out")
            values[layer] = option
    missing = sorted(set(members) - set(values))
    if missing:
        raise InputError(f"attention.{name} is {show(value)}, which has no value for layer {missing[0]}; add one")
    return values


def _range_text(members: list[int]) -> str:
    parts: list[list[int]] = []
    for layer in members:
        if parts and layer == parts[-1][1] + 1:
            parts[-1][1] = layer
        else:
            parts.append([layer, layer])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
