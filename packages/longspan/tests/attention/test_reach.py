"""Receptive fields against the gradients of real layers, against dense masks, and against numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from longspan.attention import (
    AttentionConfig,
    FullConfig,
    FusionConfig,
    LongformerConfig,
    PoolingformerConfig,
    Tokens,
)
from longspan.attention.layers import reach, receptive_field
from longspan.errors import InputError

WINDOW = LongformerConfig(left_tokens=3, right_tokens=2)
DILATED = LongformerConfig(left_tokens=2, right_tokens=2, dilation=(1, 3))
SHARED = PoolingformerConfig(left_tokens=2, right_tokens=1, pooled_left_tokens=9, pooled_right_tokens=7, init="normal")
PER_QUERY = replace(SHARED, windows="per_query")
EVEN = replace(SHARED, kernel=4, stride=3, pooling="mean")
FUSION = FusionConfig(left_tokens=3, right_tokens=3, pooled_left_tokens=9, pooled_right_tokens=9, init="normal")
STACKS = {
    "windows": [WINDOW, WINDOW, WINDOW],
    "dilated": [DILATED, WINDOW],
    "shared": [SHARED, SHARED],
    "per_query": [PER_QUERY, PER_QUERY],
    "even kernel": [EVEN],
    "upper half": [WINDOW, WINDOW, SHARED, SHARED],
    "fusion": [replace(FUSION, two_level=False), FUSION],
    "full on top": [WINDOW, FullConfig()],
}
LENGTH = 61


def by_gradients(layers: list[AttentionConfig], token: int, is_global: torch.Tensor | None = None) -> torch.Tensor:
    """The tokens whose input moves the output of `token`, in a stack of the real modules with residual connections."""
    torch.manual_seed(0)
    hidden = torch.randn(1, LENGTH, 4, dtype=torch.float64, requires_grad=True)
    tokens = Tokens(is_global=None if is_global is None else is_global[None])
    states = hidden
    for config in layers:
        states = states + config.build(width=4, heads=2).double()(states, tokens)
    states[0, token].sum().backward()
    assert hidden.grad is not None
    return hidden.grad[0].abs().sum(-1) > 0


@pytest.mark.parametrize("token", [0, 1, 29, 30, 31, 32, 60])
@pytest.mark.parametrize("name", STACKS)
def test_field_is_what_gradients_flow_through(name: str, token: int) -> None:
    layers = STACKS[name]
    field = receptive_field(layers, length=LENGTH, token=token)
    assert field.shape == (len(layers) + 1, LENGTH)
    assert field[0].nonzero().flatten().tolist() == [token]
    for count in range(1, len(layers) + 1):
        torch.testing.assert_close(field[count], by_gradients(layers[:count], token))


@pytest.mark.parametrize("token", [0, 7, 30])
def test_global_tokens_join_everything_in_two_layers(token: int) -> None:
    is_global = torch.arange(LENGTH) == 7
    layers = [WINDOW, SHARED, WINDOW]
    field = receptive_field(layers, length=LENGTH, token=token, is_global=is_global)
    for count in (1, 2, 3):
        torch.testing.assert_close(field[count], by_gradients(layers[:count], token, is_global))
    assert bool(field[1].all()) == (token == 7)
    assert bool(field[2].all())


def test_reach_of_windows_is_the_window_times_the_layers() -> None:
    assert reach([WINDOW] * 4, length=41, token=20) == [(0, 0), (3, 2), (6, 4), (9, 6), (12, 8)]
    assert reach([WINDOW] * 2, length=5, token=0) == [(0, 0), (0, 2), (0, 4)], "the ends of the text are the ends"


def test_reach_of_the_published_sizes() -> None:
    """A two-level layer reaches 128 + 512 on each side; shared pools lose up to 2, where kernels do not fit exactly."""
    each = replace(PoolingformerConfig(), windows="per_query")
    assert reach([each] * 3, length=4001, token=2000)[1:] == [(640, 640), (1280, 1280), (1920, 1920)]
    shared = reach([PoolingformerConfig()] * 3, length=4001, token=2000)
    assert shared[1:] == [(638, 638), (1278, 1278), (1918, 1918)]
    assert reach([PoolingformerConfig()], length=4001, token=2002)[1] == (640, 640)


@pytest.mark.parametrize(
    ("layers", "two_level", "whole"),
    [
        (12, range(6, 12), 6 * 128 + 6 * 640),
        (6, range(3, 6), 3 * 128 + 3 * 640),
        (24, range(15, 21), 18 * 128 + 6 * 640),
    ],
)
def test_reach_of_the_published_layouts(layers: int, two_level: range, whole: int) -> None:
    both = replace(PoolingformerConfig(), windows="per_query")
    stack = [both if layer in two_level else both.lengthening().first_level for layer in range(layers)]
    assert reach(stack, length=2 * whole + 11, token=whole + 5)[-1] == (whole, whole)


def test_no_layers_and_one_token() -> None:
    assert receptive_field([], length=3, token=1).tolist() == [[False, True, False]]
    assert receptive_field(["poolingformer", "full"], length=1, token=0).tolist() == [[True]] * 3


def test_mistakes_get_one_sentence() -> None:
    with pytest.raises(InputError, match="token=5 is not in a text of length=5; choose one of 0 to 4"):
        receptive_field(["longformer"], length=5, token=5)
    with pytest.raises(InputError, match="is_global"):
        receptive_field(["longformer"], length=5, token=0, is_global=torch.zeros(4, dtype=torch.bool))
    with pytest.raises(InputError, match="unknown"):
        receptive_field(["nothing"], length=5, token=0)
