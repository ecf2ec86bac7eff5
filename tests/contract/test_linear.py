"""Linear means linear: no tensor of size T×T, memory and time that grow with the length."""

from __future__ import annotations

import ctypes
import math
import re
import sys
import time
from pathlib import Path

import pytest
import torch

from .forms import WIDTH

SHORT, LONG, TURNS = 4096, 65536, 60
"""Lengths between which time is compared, and how many turns a busy machine is given."""


def run(form, length: int, learns: bool = True) -> None:
    """One forward pass, and one backward where it learns, globals included."""
    tokens = form.tokens(length, "right", "first" if len(form.globals) > 1 else "none").with_slots()
    longer = form.config.defaults_for(length, {})
    module, hidden = form.build(torch.float32, **longer), torch.randn(2, length, WIDTH)
    with torch.set_grad_enabled(learns):
        output = module(hidden.requires_grad_(learns), tokens)
    if learns:
        output.sum().backward()


def exponent(small: float, large: float, times: float) -> float:
    return math.log(large / small) / math.log(times)


@pytest.mark.parametrize("learns", [False, True])
def test_no_tensor_is_square_and_memory_grows_with_the_length(linear_form, learns, memory):
    """Where nothing learns, operators show what they do inside."""
    peaks = []
    for length in (4096, 16384):
        with memory() as made:
            run(linear_form, length, learns)
        assert made.largest < length * length
        peaks.append(made.peak)
    assert exponent(*peaks, times=4) <= 1.1


def taken(form, length: int) -> float:
    """Seconds of processor time of one run."""
    start = time.process_time()
    run(form, length)
    return time.process_time() - start


def process_memory(field: str) -> int:
    """Bytes of this process, as Linux counts them."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads peak memory from Linux's /proc")
def test_the_process_stays_far_below_the_square_of_the_length(linear_form):
    """What operators hold inside while they learn: one T×T tensor of bytes would already break the bound."""
    run(linear_form, 64)
    Path("/proc/self/clear_refs").write_text("5")
    before = process_memory("VmRSS")
    run(linear_form, 20011)
    assert process_memory("VmHWM") - before < 20011**2 // 2


@pytest.fixture
def no_tiny_numbers():
    """Numbers below 10⁻³⁸ count as 0. The processor takes a hundred times as long for one, and how many there are is a
    matter of the weights: sums over more tokens are larger, and a softmax of large scores is full of them."""
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


@pytest.fixture
def kept_pages():
    """Freed memory stays with the process. By default the C library hands large pieces back and small ones not, by a
    bound that moves with what ran before: every page then costs the long run anew, which doubles its time, and the
    short run nothing."""
    if sys.platform != "linux":
        yield
        return
    library = ctypes.CDLL(None)
    trim, threshold, pieces = -1, -3, -4  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX of malloc.h
    for option, value in ((trim, 2**31 - 1), (pieces, 0)):
        assert library.mallopt(option, value) == 1
    yield
    for option, value in ((trim, 2**26), (threshold, 2**25), (pieces, 65536)):  # where the moving bound ends
        assert library.mallopt(option, value) == 1
    library.malloc_trim(0)


@pytest.mark.slow
def test_time_grows_with_the_length(linear_form, no_tiny_numbers, kept_pages):
    """Processor time, the best of runs that take turns until the bound holds: company can slow a run and never speed it
    up, so of a form that is linear some turn shows it, and of one that is not none does."""
    seconds = {SHORT: math.inf, LONG: math.inf}
    run(linear_form, SHORT)
    for _ in range(TURNS):
        # The short one as often as takes about as long: in each of its runs company is as likely.
        for length, times in ((SHORT, 8), (LONG, 1)):
            seconds[length] = min(seconds[length], *(taken(linear_form, length) for _ in range(times)))
        if exponent(*seconds.values(), times=LONG / SHORT) <= 1.1:
            return
    pytest.fail(f"{exponent(*seconds.values(), times=LONG / SHORT):.3f} > 1.1 after {TURNS} turns")
