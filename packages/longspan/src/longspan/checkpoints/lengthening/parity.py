"""The report of `lengthen`, and the parity check: on a short input, with no new weight active, source and lengthened
model agree."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from longspan.attention import Attention, AttentionConfig
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanPreTrainedModel
from longspan.stacks import stack_config

KINDS = {
    "copied": "copied",
    "tiled": "tiled positions",
    "drawn": "positions of which the new are random",
    "from_local": "copies of local projections",
    "bucketed": "bucketed relative positions",
    "new": "new",
    "dropped": "left out",
}
"""Origin of a parameter → its name in the report."""
GLOBALS = {"none": "none", "first": "the first token", "question": "the question"}


@dataclass
class LengthenReport:
    """The origin of every parameter, and the difference of the lengthened model from its source on short inputs.

    Attributes:
        source: class of the source.
        target: class of the lengthened model.
        tokens_before: longest input of the source.
        tokens_after: longest input now.
        reserved_rows: kept rows of the position table that belong to no position.
        table: whether there is a table of absolute positions.
        new_positions: initialisation of its new rows, "copied" or "random".
        attention: mechanism of each encoder layer.
        global_tokens: default global tokens.
        parameters: number of parameters that were "copied", "tiled", "drawn" (a position table with random new rows),
            "from_local" (global projections copied from the local ones), "bucketed" (relative positions of global
            pairs, from others), "new" (initialised by the mechanism) or "dropped" (of the source, without a
                counterpart).
        parity_tokens: length of the random input on which both models were compared, with windows that cover it.
        parity_hidden: largest difference of the encoder's last states.
        parity_logits: largest difference of the logits; `None` for a model without a head.
        parity_tolerance: difference beyond which `lengthen` raises: float32 rounding at the size of the values.
        approximation: if layers now approximate their previous computation, the relative difference of the states on
            that input; the other numbers are then those of the exact computation with the same weights. `None` if
            nothing is approximated.
        parity_first_level: the comparison excluded second levels that are active initially (`init` other than
            "zero_value").
    """

    source: str
    target: str
    tokens_before: int
    tokens_after: int
    reserved_rows: int
    table: bool
    new_positions: str
    attention: tuple[AttentionConfig, ...]
    global_tokens: str | list[int]
    parameters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    parity_tokens: int = 0
    parity_hidden: float | None = None
    parity_logits: float | None = None
    parity_tolerance: float = 0.0
    parity_first_level: bool = False
    approximation: float | None = None

    def __str__(self) -> str:
        lines = {
            "model": f"{self.source} → {self.target}",
            "longest input": self._positions(),
            "attention": self._attention(),
            "global tokens": GLOBALS[self.global_tokens]
            if isinstance(self.global_tokens, str)
            else f"those with the ids {', '.join(map(str, self.global_tokens))}",
            "parameters": " · ".join(f"{n:,} {KINDS[kind]}" for kind, n in self.parameters.items() if n),
            "parity": self._parity(),
        }
        return "\n".join(f"{name:<14} {text}" for name, text in lines.items())

    def _positions(self) -> str:
        if self.tokens_after == self.tokens_before:
            return f"{self.tokens_after:,} tokens, as before"
        if not self.table:
            return f"{self.tokens_before:,} → {self.tokens_after:,} tokens (there is no table of absolute positions)"
        reserved = f"; {self.reserved_rows} reserved rows kept" if self.reserved_rows else ""
        how = f"position rows repeated {self.tokens_after / self.tokens_before:.4g} times"
        how = "new position rows drawn at random" if self.new_positions == "random" else how
        return f"{self.tokens_before:,} → {self.tokens_after:,} tokens ({how}{reserved})"

    def _attention(self) -> str:
        groups, first = [], 0
        for config, members in groupby(self.attention):
            last = first + len(list(members)) - 1
            span = f"layer {first}" if first == last else f"layers {first}–{last}"
            groups.append(f"{span}: {config.describe()}")
            first = last + 1
        return ("\n" + " " * 15).join(groups)

    def _parity(self) -> str:
        if self.parity_hidden is None:
            return "not compared"
        parts = [f"states {self.parity_hidden:.1e}"]
        if self.parity_logits is not None:
            parts.append(f"logits {self.parity_logits:.1e}")
        level = ", first level only" if self.parity_first_level else ""
        if self.approximation is not None:
            level += f", computed exactly; as approximated, states differ by {self.approximation:.0%} of their size"
        return (
            f"equal on {self.parity_tokens} random tokens{level}: largest difference of {', '.join(parts)} "
            f"(allowed {self.parity_tolerance:.1e})"
        )


LONGEST = 64
"""Tokens of the random input, if the windows allow."""
READS_MORE = ("LongspanForSentenceScoring", "LongspanForNaturalQuestions")
"""Classes whose heads require sentences or passages; only their encoders are compared."""
ALLOWED = 1e-4
"""Largest relative difference explained by float32 rounding in deep models; mistakes are far larger."""


@torch.no_grad()
def measure_parity(
    source: PreTrainedModel, base: LongspanPreTrainedModel, model: LongspanPreTrainedModel, report: LengthenReport
) -> None:
    """Compares source and lengthened model on a random input that every window covers, and writes the result to the
    report.

    Args:
        source: the model passed by the user.
        base: the same in Longspan's classes (or the source itself).
        model: the lengthened model; not modified.
        report: receives the numbers.

    Raises:
        InputError: the outputs differ by more than rounding.
    """
    tokens = _comparable_tokens(base.config, model.config)
    inputs = _random_inputs(model, tokens)
    with in_float32(source) as before, in_float32(model) as after:
        reference = outputs(before, inputs)
        if any(_is_approximate(*pair) for pair in _pairs(base.config, model.config)):
            exact, approximated = reference["hidden"], outputs(after, inputs)["hidden"]
            # The norm of the difference, relative to that of the reference.
            report.approximation = float((approximated.to(exact.device) - exact).norm() / exact.norm())
        with _probing(after, base, tokens) as muted:
            changed = outputs(after, inputs)
    report.parity_first_level = muted
    compare(report, tokens, reference, changed)


def compare(report: LengthenReport, tokens: int, reference: dict[str, Tensor], changed: dict[str, Tensor]) -> None:
    """Writes to the report the differences of `outputs` on `tokens` tokens from those of the source.

    Raises:
        InputError: they differ by more than rounding.
    """
    report.parity_tokens = tokens
    scale = max(1.0, *(float(tensor.abs().max()) for tensor in reference.values()))
    report.parity_tolerance = ALLOWED * scale
    differences = {name: _difference(tensor, changed[name]) for name, tensor in reference.items() if name in changed}
    report.parity_hidden = differences.pop("hidden")
    report.parity_logits = max(differences.values()) if differences else None
    worst = max(report.parity_hidden, report.parity_logits or 0.0)
    if not worst <= report.parity_tolerance:
        raise InputError(
            f"attention={report.attention[-1].mechanism!r} does not keep the source's outputs: on {tokens} tokens they "
            f"differ by {worst:.1e} (allowed {report.parity_tolerance:.1e}); keep the mechanism and the trained "
            "weights that the source already has"
        )


def _comparable_tokens(before: LongspanConfig, after: LongspanConfig) -> int:
    """Returns the longest input that every changed layer of the source covers, and its successor can be widened to
    cover: there, windows of any width are equal. Unchanged layers set no limit."""
    changed = [(old, new) for old, new in _pairs(before, after) if old != new]
    tokens = min(before.max_position_embeddings, LONGEST)
    while tokens > 1 and not all(
        old.lengthening(tokens).covers and new.lengthening(tokens).widened.lengthening(tokens).covers
        for old, new in changed
    ):
        tokens -= 1
    return tokens


def _pairs(before: LongspanConfig, after: LongspanConfig) -> list[tuple[AttentionConfig, AttentionConfig]]:
    layers = range(before.num_hidden_layers)
    return [(before.layer_attention(layer), after.layer_attention(layer)) for layer in layers]


def _is_approximate(old: AttentionConfig, new: AttentionConfig) -> bool:
    """Whether a layer now approximates what it computed exactly before."""
    return old.lengthening().exact == old and new.lengthening().exact != new


def _random_inputs(model: LongspanPreTrainedModel, tokens: int) -> dict[str, Tensor]:
    config = model.config
    generator = torch.Generator().manual_seed(0)
    length = min(tokens, config.max_decoder_position_embeddings or tokens, 8)
    names = {"input_ids": tokens} | ({"decoder_input_ids": length} if config.decoder_layers else {})
    inputs = {name: random_ids(model, count, generator) for name, count in names.items()}
    if stack_config(config.stack).reads().importance:
        inputs["importance"] = torch.rand(1, tokens, generator=generator).to(model.device)
    return inputs


def random_ids(model: PreTrainedModel, count: int, generator: torch.Generator) -> Tensor:
    """Returns `(1, count)` random tokens without padding, which would have special positions."""
    config: Any = model.config
    ids = torch.randint(config.vocab_size, (1, count), generator=generator)
    if config.pad_token_id is not None and config.vocab_size > 1:
        ids[ids == config.pad_token_id] = (config.pad_token_id + 1) % config.vocab_size
    return ids.to(model.device)


def outputs(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the encoder states as `hidden`, and the logits of the head. No token is global on either side."""
    if "global_attention_mask" in inspect.signature(model.forward).parameters:
        inputs = inputs | {"global_attention_mask": torch.zeros_like(inputs["input_ids"])}
    if type(model).__name__.endswith("MultipleChoice"):  # (B, C, T), with a single choice
        inputs = {name: value[:, None] for name, value in inputs.items()}
    run: Any = model.base_model if type(model).__name__ in READS_MORE else model
    output: Any = run(**inputs, output_hidden_states=True, return_dict=True)
    hidden = output.encoder_last_hidden_state if "decoder_input_ids" in inputs else output.hidden_states[-1]
    tensors = {"hidden": hidden, "logits": output.get("prediction_logits")}
    tensors |= {name: output[name] for name in ("logits", "start_logits", "end_logits") if name in output}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _difference(left: Tensor, right: Tensor) -> float:
    return float((left - right.to(left.device)).abs().max()) if left.numel() else 0.0


@contextmanager
def in_float32(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """Yields the model in evaluation mode and float32, without half-precision rounding."""
    training = model.training
    half = any(parameter.dtype != torch.float32 for parameter in model.parameters())
    try:
        yield (copy.deepcopy(model).float() if half else model).eval()
    finally:
        model.train(training)


@contextmanager
def _probing(model: nn.Module, base: LongspanPreTrainedModel, tokens: int) -> Iterator[bool]:
    """Widens windows to cover `tokens` tokens, removes new second levels that are active initially, and replaces
    approximations by the exact mechanism; yields whether there were such levels."""
    before = [base.config.layer_attention(layer) for layer in range(base.config.num_hidden_layers)]
    replaced: list[tuple[nn.Module, Attention]] = []
    muted = False
    for name, layer in model.named_modules():
        place = re.search(r"(?:^|\.)encoder\.layers\.(\d+)$", name)
        attention: Any = getattr(layer, "attention", None)
        if place is None or attention.config == before[int(place[1])]:
            continue
        config, old = attention.config, before[int(place[1])]
        active = config.lengthening().starts_active and old.lengthening().first_level == old
        muted = muted or active
        config = config.lengthening().first_level if active else config
        config = config.lengthening().exact if _is_approximate(old, config) else config
        config = config.lengthening(tokens).widened
        if config != attention.config:
            replaced.append((layer, attention))
            layer.attention = _sharing(attention, config)
    try:
        yield muted
    finally:
        for layer, attention in replaced:
            layer.attention = attention


def _sharing(attention: Attention, config: AttentionConfig) -> Attention:
    """Returns another mechanism with the same parameters; those that it lacks are dropped."""
    other = config.build(width=attention.width, heads=attention.heads)
    if config.shared_tables() is not None:
        other.share_positions()
    state = attention.state_dict()
    other.load_state_dict({name: state[name] for name in other.state_dict()}, assign=True)
    return other.eval()
