"""Lengthening of models that keep transformers' classes: those with relative or rotary positions, such as T5 and its
variants, ModernBERT and MPNet.

Weights and classes are kept; the encoder's attention becomes windows (`use_attention`), a table of positions is tiled,
and the configuration records the new length and the pattern, from which Longspan restores the windows of a saved
folder.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from longspan.attention import AttentionConfig, attention_config
from longspan.attention.layers import spread
from longspan.checkpoints.architectures import IN_PLACE
from longspan.checkpoints.attention_interface import use_attention
from longspan.checkpoints.lengthening.parity import LONGEST, LengthenReport, compare, in_float32, outputs, random_ids
from longspan.checkpoints.lengthening.plan import STARTS, Spec, as_asked, as_spec, check_longer, tile_positions
from longspan.checkpoints.mapping import InPlace
from longspan.errors import InputError
from longspan.patterns import Window, parse
from longspan.settings import show

TARGET = 8
"""Decoder tokens when models are compared."""


def read_further(model: PreTrainedModel, tokens: int) -> bool:
    """Extends the longest input of an encoder-decoder without position table beyond `tokens`, in place, with memory
    linear in the length. Returns False if that is not possible.

    Windows of `tokens` to each side show all pairs of a text up to that length, whose outputs do not change. A model
    that already has windows keeps them.
    """
    config: Any = model.get_encoder().config
    if getattr(config, "encoder_attention_type", None) is not None:
        return True  # LongT5, which has windows of its own
    if getattr(config, "longspan_pattern", None) is not None:
        return True
    try:
        use_attention(model, f"window({tokens})")
    except InputError:
        return False
    return True


def lengthen_in_place(
    source: Any, attention: Any, max_tokens: int, options: Spec, *, new_positions: str = "copied"
) -> Any:
    """Returns a copy of a model of `IN_PLACE` that reads up to `max_tokens` tokens, with its `report`; `lengthen`
    describes the arguments.

    By default, windows are as wide to each side as the source's longest input, so that outputs for texts up to that
    length do not change.

    Raises:
        InputError: fewer tokens than the source reads, another mechanism than windows, options other than their two
            sides, layers that differ, or a source whose attention is more than windows.
    """
    name, config = type(source).__name__, source.config
    known = IN_PLACE[config.model_type]
    known.class_of(name)
    before = known.longest(config)
    check_longer(max_tokens, before)
    windows = _windows(known, source, attention, options, before)
    model: Any = copy.deepcopy(source).eval()
    report = LengthenReport(
        source=name,
        target=name,
        tokens_before=before,
        tokens_after=max_tokens,
        reserved_rows=known.reserved,
        table=known.table is not None,
        new_positions=new_positions,
        attention=tuple(_seen(windows, known.own_window(config, layer)) for layer in range(config.num_hidden_layers)),
        global_tokens="none",
    )
    if known.table is not None:
        _lengthen_table(known, model, max_tokens, report)
    tiled = sum(report.parameters.values())
    report.parameters["copied"] = sum(parameter.numel() for parameter in model.parameters()) - tiled
    if known.exchanged:
        most = max_tokens if known.table is None else None
        use_attention(model, Window(windows.left_tokens, windows.right_tokens), max_tokens=most)
        _measure(source, model, windows, report)
    else:
        for part_config in (model.config, model.get_encoder().config):
            setattr(part_config, known.length, max_tokens)
    model.report = report
    return model


@torch.no_grad()
def _lengthen_table(known: InPlace, model: Any, max_tokens: int, report: LengthenReport) -> None:
    """Replaces the model's table of positions by one for `max_tokens`, and counts it in the report."""
    assert known.table is not None
    place, _, name = known.table.rpartition(".")
    parent = model.base_model.get_submodule(place)
    old = getattr(parent, name)
    rows = tile_positions(old.weight, max_tokens + known.reserved, known.reserved)
    table = nn.Embedding(len(rows), rows.shape[1], old.padding_idx, device=rows.device, dtype=rows.dtype)
    table.weight.copy_(rows)
    if report.new_positions == "random":
        nn.init.normal_(table.weight[len(old.weight) :], std=model.config.initializer_range)
    setattr(parent, name, table)
    parent.position_ids = torch.arange(len(rows), device=rows.device)[None]
    setattr(model.config, known.length, len(rows))
    report.parameters[STARTS[report.new_positions]] = table.weight.numel()


def _windows(known: InPlace, source: Any, attention: Any, options: Spec, before: int) -> Any:
    """Returns the requested windows of every layer."""
    name, requested = type(source).__name__, as_asked(known.mechanism if attention is None else attention, options)
    first, *others = spread(requested, source.config.num_hidden_layers)
    if any(other != first for other in others) or first is None:
        raise InputError(f"attention differs from layer to layer, and all layers of {name} share one; give it for all")
    spec = as_spec(first)
    if spec.get("mechanism") != known.mechanism:
        attention_config({"mechanism": spec.get("mechanism")})  # misspelt names are reported first
        raise InputError(
            f"attention={spec['mechanism']!r} has no place in {name}, which stays as transformers has it and takes "
            f"windows alone; choose attention={known.mechanism!r}"
        )
    sides, own = (before, before), known.own_window(source.config, 0)
    if not known.exchanged and own is not None:
        sides = (own, own)
    sides = _given_sides(source) or sides
    windows: Any = attention_config({"left_tokens": sides[0], "right_tokens": sides[1], **spec})
    plain = type(windows)(left_tokens=windows.left_tokens, right_tokens=windows.right_tokens).to_dict()
    for option, value in windows.to_dict().items():
        if value != plain[option]:
            raise InputError(
                f"{option}={show(value)} has no place in {name}, whose windows have left_tokens and right_tokens "
                "alone; leave it out"
            )
    if not known.exchanged and (windows.left_tokens, windows.right_tokens) != sides:
        raise InputError(
            f"left_tokens={windows.left_tokens} and right_tokens={windows.right_tokens} are not the windows of "
            f"{name}, which has {own} tokens to each side and keeps them; leave them out"
        )
    return windows


def _given_sides(source: Any) -> tuple[int, int] | None:
    """Returns the sides of the source's recorded windows; `None` if it has none.

    Raises:
        InputError: the recorded pattern is not a window.
    """
    recorded = getattr(source.config, "longspan_pattern", None)
    if recorded is None:
        return None
    band = parse(recorded).band()
    if band is None or band.stride != 1 or sys.maxsize in band:
        raise InputError(
            f"the source has the pattern {recorded!r}, which is more than windows; call longspan.use_attention(model, "
            f"{recorded!r}, max_tokens=…) instead"
        )
    return band.left, band.right


def _seen(windows: Any, own: int | None) -> AttentionConfig:
    """Returns the effective windows of a layer, intersected with its own window of `own` tokens to each side."""
    if own is None:
        return windows
    return replace(windows, left_tokens=min(windows.left_tokens, own), right_tokens=min(windows.right_tokens, own))


@torch.no_grad()
def _measure(source: Any, model: Any, windows: Any, report: LengthenReport) -> None:
    """Compares both models on a random input that the windows cover, and writes the result to the report.

    Raises:
        InputError: the outputs differ by more than rounding.
    """
    sides = windows.left_tokens, windows.right_tokens, *(_given_sides(source) or ())
    tokens = 1 + min(LONGEST - 1, report.tokens_before - 1, *sides)
    generator = torch.Generator().manual_seed(0)
    inputs = {"input_ids": random_ids(model, tokens, generator)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = random_ids(model, min(tokens, TARGET), generator)
    with in_float32(source) as before, in_float32(model) as after:
        compare(report, tokens, outputs(before, inputs), outputs(after, inputs))
