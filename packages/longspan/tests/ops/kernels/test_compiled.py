"""Every kernel of Triton compiles for A100 and H100 without a GPU, and fits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[5] / "benchmarks/kernel_resources.py"
KERNELS = {
    "LDConv pooling": {"ldconv_forward", "ldconv_slopes", "ldconv_backward"},
    "causal linear": {"chunk_sums", "chunk_outputs", "chunk_feature_gradients", "chunk_value_gradients"},
    "pooled window": {"banded_forward", "banded_backward_queries", "banded_backward_keys"},
    "disentangled window": {
        "banded_forward", "banded_backward_queries", "banded_backward_keys", "banded_backward_tables",
    },
}  # fmt: skip
LEFT = {("disentangled window", name, 90, "float32"): 8 for name in ("banded_backward_queries", "banded_backward_keys")}
"""Bytes that still spill, two registers of each thread: float32 terms on an H100."""
SHARED = 64 << 10
"""Bytes of shared memory that a program may take: so that an A100 computes two at once."""


@pytest.mark.slow
@pytest.mark.skipif(not SCRIPT.is_file(), reason="runs in a checkout, not from an installed package")
def test_kernels_fit_into_registers_and_two_programs_beside_each_other() -> None:
    pytest.importorskip("triton", reason="needs the extra 'triton'")
    # In a process of its own: this one runs kernels in the interpreter, and the two exclude each other.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(SCRIPT), "--capability", "80", "90", "--call", *KERNELS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for capability in (80, 90):
        for call, kernels in KERNELS.items():
            own = [row for row in rows if (row["capability"], row["call"]) == (capability, call)]
            assert {row["kernel"] for row in own} == kernels
            assert {row["dtype"] for row in own} == {"bfloat16", "float32"}
    for row in rows:
        place = row["call"], row["kernel"], row["capability"], row["dtype"]
        assert row["spills"] <= LEFT.get(place, 0), row
        assert row["registers"] <= 255, row
        assert row["shared"] <= SHARED, row
