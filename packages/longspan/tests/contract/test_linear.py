"""Linear means linear: no tensor of size T×T, memory and work that grow with the length."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from counted import Work, exponent
from longspan.attention import FullConfig

from .forms import WIDTH

SHORT, LONG = 2048, 32768
"""Lengths between which work is compared."""


def run(form, length: int, learns: bool = True) -> None:
    """One forward pass, and one backward where it learns, globals included."""
    tokens = form.tokens(length, "right", "first" if len(form.globals) > 1 else "none").with_slots()
    longer = form.config.defaults_for(length, {})
    module, hidden = form.build(torch.float32, **longer), torch.randn(2, length, WIDTH)
    with torch.set_grad_enabled(learns):
        output = module(hidden.requires_grad_(learns), tokens)
    if learns:
        output.sum().backward()


@pytest.mark.variant
@pytest.mark.parametrize("learns", [False, True])
def test_no_tensor_is_square_and_memory_grows_with_the_length(linear_form, learns, memory):
    """Where nothing learns, operators show what they do inside."""
    peaks = []
    for length in (2048, 8192):
        with memory() as made:
            run(linear_form, length, learns)
        assert made.largest < length * length
        peaks.append(made.peak)
    assert exponent(*peaks, times=4) <= 1.1


def process_memory(field: str) -> int:
    """Bytes of this process, as Linux counts them."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


@pytest.mark.variant
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads peak memory from Linux's /proc")
def test_the_process_stays_far_below_the_square_of_the_length(linear_form):
    """What operators hold inside while they learn: one T×T tensor of bytes would already break the bound."""
    run(linear_form, 64)
    Path("/proc/self/clear_refs").write_text("5")
    before = process_memory("VmRSS")
    run(linear_form, 20011)
    assert process_memory("VmHWM") - before < 20011**2 // 2


def test_work_that_grows_with_the_square_is_seen():
    """Full attention by the same measure, in its backward pass too; its projections are linear."""
    module, counted = FullConfig().build(width=WIDTH, heads=2), []
    for length in (1024, 4096):
        with Work() as work:
            module(torch.randn(1, length, WIDTH, requires_grad=True)).sum().backward()
        counted.append(work.flops)
    assert exponent(*counted, times=4) > 1.8


@pytest.mark.slow
def test_work_grows_with_the_length(linear_form):
    """Forwards and backwards, from 2048 to 32768 tokens. Which tiles of a length hold visible pairs is found in a first
    run and kept for the others, so the second run is counted."""
    short, long = Work(), Work()
    for work, length in ((short, SHORT), (long, LONG)):
        run(linear_form, length, learns=False)
        with work:
            run(linear_form, length)
    for kind in ("operations", "flops", "bytes"):
        assert exponent(getattr(short, kind), getattr(long, kind), times=LONG / SHORT) <= 1.1, kind
