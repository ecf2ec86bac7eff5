"""Every mechanism on a CUDA device that is not there: it mixes no devices, and gives what it gives on the processor."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from closeness import check_outputs
from fake_cuda import FakeCuda
from longspan.attention import MECHANISMS, Attention, AttentionConfig, Tokens
from longspan.attention.support import supports

LENGTH, WIDTH, HEADS = 150, 32, 2
"""More tokens than what is computed at once where texts are short, and heads that FlexAttention takes."""
ULPS = 256
"""Units of rounding of the largest number: gradients of other paths, whose sums are of thousands of products."""
SMALL: dict[str, Any] = {"left_tokens": 9, "right_tokens": 8, "chunk_tokens": 32, "block_tokens": 16, "noise": 0.0}


def config_of(name: str) -> AttentionConfig:
    kind = MECHANISMS[name]
    known = {key: value for key, value in SMALL.items() if key in kind.__dataclass_fields__}
    return kind(**kind().defaults_for(LENGTH, {}) | known)


def cases(name: str) -> Iterator[tuple[Attention, Tokens]]:
    """The mechanism looking both ways and back, each with padding and global tokens, if it takes any, and without."""
    config = config_of(name)
    for causal in [each for each in (False, True) if (config.causal if each else config.bidirectional)]:
        module = config.build(width=WIDTH, heads=HEADS, causal=causal)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.2)
        mask, is_global = torch.ones(2, LENGTH, dtype=torch.bool), torch.zeros(2, LENGTH, dtype=torch.bool)
        mask[1, 93:], is_global[:, 0], is_global[0, 70] = False, True, True
        takes = supports(config, "globals", causal=causal)
        yield module, Tokens()
        yield module, Tokens(mask=mask, is_global=is_global if takes else None)


def run(module: Attention, hidden: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Outputs, and the gradients of the inputs and of all weights that have one, together: that of a key's bias is
    nothing but rounding."""
    hidden = hidden.detach().requires_grad_()
    output = module(hidden, tokens)
    output.square().sum().backward()
    grads = [each.grad for each in (hidden, *module.parameters()) if each.grad is not None]
    module.zero_grad()
    return output.detach().cpu(), torch.cat([each.cpu().flatten() for each in grads])


def on_device(tokens: Tokens, device: torch.device) -> Tokens:
    flags = {name: getattr(tokens, name) for name in ("mask", "is_global")}
    return replace(tokens, **{name: each.to(device) for name, each in flags.items() if each is not None})


@pytest.mark.parametrize("name", MECHANISMS)
def test_outputs_and_gradients_are_those_of_the_processor(name) -> None:
    """And autocast narrows the outputs, and breaks none."""
    for module, tokens in cases(name):
        hidden = torch.randn(2, LENGTH, WIDTH)
        expected = run(module, hidden, tokens)
        with FakeCuda() as device:
            there = on_device(tokens, device)
            given = run(module.to(device), hidden.to(device), there)
            with torch.autocast("cuda", dtype=torch.bfloat16), torch.no_grad():
                narrow = module(hidden.to(device), there)
            assert narrow.dtype == torch.bfloat16
            assert bool(narrow.isfinite().all())
            module.to("cpu")
        for one, other in zip(given, expected, strict=True):
            check_outputs(one, other, ulps=ULPS)


@pytest.mark.parametrize("name", ["longformer", "poolingformer", "bigbird", "sinkhorn", "linear", "performer"])
def test_bfloat16_errs_no_more_than_twice_the_processor(name) -> None:
    """Outputs of short and of longer texts, padded and with global tokens: what is read in bfloat16 is summed up in
    float32."""
    for module, tokens in cases(name):
        module, hidden = module.bfloat16().eval(), torch.randn(2, LENGTH, WIDTH).bfloat16()
        with torch.no_grad():
            exact = copy.deepcopy(module).double()(hidden.double(), tokens)
            host = module(hidden, tokens)
            with FakeCuda() as device:
                found = module.to(device)(hidden.to(device), on_device(tokens, device)).cpu()
                module.to("cpu")
        assert (found - exact).norm() <= 2 * (host - exact).norm(), name
