"""Sinusoidal positions: the published formula in loops, their size beside the tokens', and the other forms."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan import InputError, LongspanConfig, LongspanForConditionalGeneration, LongspanModel

SIZES: dict[str, Any] = {"vocab_size": 211, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 40}
SIZES |= {"position_embedding": "sinusoidal", "attention": "full", "dropout": 0.0}
PLACES = [0, 1, 2, 3, 59, 977, 30_011]


def waves(width: int, places: list[int] = PLACES, **options: Any) -> Tensor:
    """What a model adds to the tokens at these positions, `(P, E)`."""
    model = LongspanModel(LongspanConfig(hidden_size=width, **SIZES, **options))
    position: Any = model.encoder.embeddings.position
    return position(torch.tensor([places]))[0]


def check_waves(found: Tensor, base: float, amplitude: float) -> None:
    """Sine in channel 2i, cosine in channel 2i + 1, of p·base^(−2i/E). An angle is a product of float32: it is off by
    a few roundings of its size."""
    width = found.shape[1]
    for row, place in enumerate(PLACES):
        for channel in range(width):
            angle = place * base ** -((channel - channel % 2) / width)
            expected = amplitude * (math.sin(angle) if channel % 2 == 0 else math.cos(angle))
            assert abs(float(found[row, channel]) - expected) <= amplitude * (angle * 2**-21 + 1e-6)


@pytest.mark.parametrize("width", [1, 2, 9, 24])
@pytest.mark.parametrize("scaled", [True, False])
def test_they_are_the_published_formula(width: int, scaled: bool) -> None:
    """Vaswani et al. 2017, section 3.5. Amplitude 1 beside scaled tokens, else that which these have."""
    check_waves(waves(width, scale_embedding=scaled, init_std=0.3), 10_000.0, 1.0 if scaled else 0.3)


def test_they_stand_to_the_tokens_as_published() -> None:
    """Tokens of standard deviation 1 and sinusoids of root mean square 1/√2; unscaled, both times init_std."""
    width, ids = 256, torch.randint(3, 211, (1, 509))
    for options, unit in (({"scale_embedding": True, "init_std": 1 / 16}, 1.0), ({"init_std": 0.02}, 0.02)):
        embeddings: Any = LongspanModel(LongspanConfig(hidden_size=width, **SIZES, **options)).encoder.embeddings
        size = embeddings.of_tokens(ids).detach().square().mean().sqrt()
        torch.testing.assert_close(float(size), unit, rtol=0.02, atol=0)
        size = embeddings.position(torch.arange(509)[None]).square().mean().sqrt()
        torch.testing.assert_close(float(size), unit / math.sqrt(2), rtol=1e-5, atol=0)


def test_no_channel_is_silent() -> None:
    assert (waves(24, list(range(1, 2000))).std(0) > 1e-3 * 0.02).all()


@pytest.mark.slow
def test_a_period_is_the_longest_wavelength() -> None:
    """64 tokens: the base is 64/2π; the slowest channel of a wide model is all but back after 64 tokens."""
    check_waves(waves(24, position_period=64.0, scale_embedding=True), 64 / (2 * math.pi), 1.0)
    slowest = waves(4096, list(range(65)), position_period=64.0, scale_embedding=True)[:, -2:]
    torch.testing.assert_close(slowest[64], slowest[0], atol=0.01, rtol=0)
    assert (slowest[1:64] - slowest[0]).norm(dim=1).min() > 0.05
    for period in (2.5, 2 * math.pi):
        with pytest.raises(InputError, match=r"position_period is .*; it must be above 2π"):
            LongspanConfig(hidden_size=8, **SIZES, position_period=period)


def two_to_period(width: int, place: int, std: float, period: float) -> list[float]:
    """⌈E/2⌉ wavelengths from 2 to the period, at equal ratios; all sines before all cosines."""
    half = (width + 1) // 2
    steps = [number / max(half - 1, 1) for number in range(half)]
    angles = [2 * math.pi * place / (2 * (period / 2) ** step) for step in steps]
    both = [*map(math.sin, angles), *map(math.cos, angles)]
    return [math.sqrt(2) * std * value for value in both[:width]]


@pytest.mark.parametrize("width", [1, 9, 24])
@pytest.mark.parametrize("fields", [{}, {"position_period": 64.0}, {"scale_embedding": True}], ids=str)
def test_those_from_two_to_the_period_are_theirs(width: int, fields: dict[str, Any]) -> None:
    """The first channel is always 0 there, and a scaled embedding changes nothing."""
    places = list(range(200))
    found = waves(width, places, sinusoids="two_to_period", init_std=0.06, **fields)
    expected = [two_to_period(width, place, 0.06, fields.get("position_period", 10_000.0)) for place in places]
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=0)
    assert (found[:, 0].abs() < 1e-4).all()


@pytest.mark.parametrize("version", [None, "0.2.0"])
def test_a_file_that_leaves_them_out_has_the_defaults_whatever_wrote_it(version: str | None, tmp_path: Path) -> None:
    stored = {"model_type": "longspan", "hidden_size": 8, **SIZES, "longspan_version": version}
    (tmp_path / "config.json").write_text(json.dumps(stored), encoding="utf-8")
    config = LongspanConfig.from_pretrained(tmp_path)
    assert (config.sinusoids, config.position_period) == ("paper", None)


@pytest.mark.parametrize(
    ("signal", "table"), [("sinusoidal", []), ("none", ["decoder.embeddings.position.weight"])], ids=["signals", "none"]
)
def test_a_decoder_whose_stack_tells_places_has_no_table(signal: str, table: list[str]) -> None:
    stack = {"stack": "universal", "position_signal": signal}
    fields = {**SIZES, "hidden_size": 24, "position_embedding": "none", "decoder_layers": 1, "stack": stack}
    model = LongspanForConditionalGeneration(LongspanConfig(**fields))
    assert [name for name, _ in model.named_parameters() if ".position" in name] == table


@torch.no_grad()
def test_a_decoder_without_a_table_knows_the_order_and_writes_step_by_step() -> None:
    fields = {**SIZES, "hidden_size": 24, "position_embedding": "none", "decoder_layers": 2, "init_std": 0.2}
    model = LongspanForConditionalGeneration(LongspanConfig(**fields, stack="universal")).double().eval()
    ids, out = torch.randint(3, 211, (2, 13)), torch.randint(3, 211, (2, 11))
    whole = model(ids, decoder_input_ids=out).logits
    swapped = model(ids, decoder_input_ids=out[:, [1, 0, *range(2, 11)]]).logits
    assert (whole - swapped)[:, 2:].abs().max() > 1e-3
    step, steps = None, []
    for place in range(11):
        found = model(ids, decoder_input_ids=out[:, place : place + 1], cache=step, use_cache=True)
        step = found.cache
        steps.append(found.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole)
