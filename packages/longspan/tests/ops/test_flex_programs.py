"""The programs of FlexAttention, compiled for GPUs that are not there: they fit, and spill nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from longspan.attention import MECHANISMS

pytest.importorskip("triton", reason="needs the package triton; `make programs` installs it beside the environment")

from flex_programs import SHARED, programs, recorded_calls, resources

pytestmark = [pytest.mark.slow, pytest.mark.variant, pytest.mark.filterwarnings("ignore")]  # of PyTorch and Triton

CALLS = {
    "longformer": ("longformer", {}),
    "longformer, padded": ("longformer", {"padded": True}),
    "longformer, 16 global tokens": ("longformer", {"globals_": 16}),
    "poolingformer, padded": ("poolingformer", {"padded": True}),
    "fusion": ("fusion", {}),
    "bigbird": ("bigbird", {}),
    "sparse": ("sparse", {}),
    "reformer": ("reformer", {}),
    "cluster": ("cluster", {}),
    "routing, padded": ("routing", {"padded": True}),
}
"""Name → mechanism, and options of `recorded_calls`."""
CASES = [
    *((name, 64) for name in CALLS if name != "longformer"),
    *product(("bigbird", "longformer"), (16, 32, 128, 256)),
    ("fusion", 128),
]
"""Names and widths of heads. `bigbird` reads tables, `longformer` positions alone: except in half precision before
Hopper, where FlashAttention serves it."""
DEVICES = [(9, 0), (8, 0)]
SPILLED = {("sparse", 64, torch.bfloat16, (9, 0)): 12}
"""Bytes of each thread with Triton 3.6, which PyTorch 2.11 brings, where options without spills have smaller tiles."""


@pytest.mark.parametrize("capability", DEVICES, ids=lambda capability: "sm_{}{}".format(*capability))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("name", "width"), CASES)
def test_no_program_spills(name, width, dtype, capability):
    mechanism, given = CALLS[name]
    options = {"heads": 768 // width, "dtype": dtype, **given}
    calls = recorded_calls(MECHANISMS[mechanism](), 4096, capability, learns=True, **options)
    compiled = [program for call in calls for program in programs(call, capability, learns=call.learns)]
    assert len(compiled) == sum(1 + call.learns for call in calls), "one forward program, and one backward if it learns"
    assert all(call.learns for call in calls[name == "fusion" :]), "gradients of its terms are tiles'"
    assert bool(calls) != (name == "longformer" and dtype == torch.bfloat16 and capability < (9, 0))
    allowed = SPILLED.get((name, width, dtype, capability), 0)
    for program in compiled:
        needs = resources(program, capability)
        assert needs.spilled <= allowed, (program.name, needs)
        assert needs.shared <= SHARED[capability], (program.name, needs)


def test_the_default_is_what_a_device_refused():
    """Of relative positions, because of its 376,832 bytes of shared memory: an H200 has 232,448."""
    (call, *_) = recorded_calls(MECHANISMS["fusion"](), 4096, (9, 0))
    options = {name: value for name, value in call.options.items() if name != "kernel_options"}
    (program,) = programs(replace(call, options=options), (9, 0))
    needs = resources(program, (9, 0))
    assert needs.shared == 376_832
    assert needs.spilled > 0
