"""What layers launch, followed at lengths that nobody computes here."""

from __future__ import annotations

import math

import pytest
import torch

from longspan.attention import MECHANISMS
from longspan.hardware import DEVICES
from longspan.planning.prediction import predicted_seconds, running_seconds
from tracing import layer_launches, layer_seconds

H100 = DEVICES["h100"]
WIDTH, HEADS, MILLION = 768, 12, 1 << 20


def test_full_attention_over_a_million_tokens_by_hand() -> None:
    """Four projections, and one kernel of 4·T²·E operations that moves four tensors."""
    launches = layer_launches(MECHANISMS["full"](), tokens=MILLION)
    *projections, output = [each for each in launches.kernels if each.kind == "plain"]
    (attention,) = [each for each in launches.kernels if each.kind == "attention"]
    assert len(launches.kernels) == 5
    assert launches.synchronisations == 0
    for each in (*projections, output):
        assert each.flops == 2 * MILLION * WIDTH**2
        assert each.dtype == "bfloat16"
        assert math.isclose(running_seconds(each, H100), each.flops / (0.6 * 989.4e12))
    assert attention.flops == 4 * MILLION**2 * WIDTH
    assert attention.bytes == pytest.approx(4 * MILLION * WIDTH * 2, rel=0.05)  # and a number for each query and head
    assert launches.seconds(H100) == pytest.approx(7.19 + 4 * 2.08e-3 + 2.4e-3, rel=0.01)


def test_flash_attention_within_a_window_is_a_kind_of_its_own() -> None:
    """On Hopper, FlexAttention serves heads of 64, and FlashAttention 2 those of 80."""
    config = MECHANISMS["longformer"](left_tokens=64, right_tokens=64)
    for width, kind in ((12 * 64, "flex"), (12 * 80, "window")):
        launches = layer_launches(config, tokens=4096, width=width, training=True)
        assert [each.kind for each in launches.kernels if each.kind != "plain"] == [kind] * 2


def test_gradients_take_more_launches_and_padding_is_followed() -> None:
    config = MECHANISMS["longformer"](left_tokens=64, right_tokens=64)
    forward = layer_launches(config, tokens=4096)
    training = layer_launches(config, tokens=4096, training=True)
    padded = layer_launches(config, tokens=4096, padded=True)
    assert len(forward.kernels) < len(training.kernels)
    assert 1.5 * forward.seconds(H100) < training.seconds(H100)
    assert forward.peak < training.peak
    assert padded.kernels != forward.kernels
    single = layer_launches(config, tokens=4096, dtype=torch.float32)
    assert predicted_seconds(single.kernels, H100) > predicted_seconds(forward.kernels, H100)


def test_linear_means_linear_on_a_device() -> None:
    """From 64 thousand tokens on, where launches no longer count."""
    for name, growth in (("longformer", 1.05), ("full", 2.0)):
        short, long = (layer_seconds(MECHANISMS[name](), H100, tokens=tokens) for tokens in (1 << 16, 1 << 18))
        assert math.log(long / short, 4) < growth
    assert math.log(long / short, 4) > 1.8
