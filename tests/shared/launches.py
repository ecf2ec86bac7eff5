"""What one layer of every mechanism launches on a CUDA device that is not there, as `launches.json` holds it.

`python tests/shared/launches.py` counts anew, and writes the table.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from counted import Work
from fake_cuda import FEW, FakeCuda
from longspan.attention import MECHANISMS, Tokens
from longspan.attention.support import supports

TABLE = Path(__file__).parents[2] / "packages/longspan/tests/device/launches.json"
WIDTH, HEADS = 768, 12
LENGTHS = (4096, 16384)
FIELDS = ("operations", "waits", "peak")

Counts = dict[str, dict[str, int]]


def forms() -> Iterator[tuple[str, bool]]:
    """Every mechanism with its default options, looking both ways and back."""
    for name, kind in MECHANISMS.items():
        config = kind()
        yield from ((name, causal) for causal in (False, True) if (config.causal if causal else config.bidirectional))


def count(name: str, causal: bool, length: int, *, padded: bool, **changes: Any) -> Counts:
    """Launches, waits and the most bytes of one layer, forward alone and forward and backward, of one text: whole, or
    with a third of padding and the first token global. What is kept from call to call was made in earlier ones.

    PyTorch's evaluator of frames is on, under which a caller holds what it passes until the call returns, where Python
    would hand it over: once some compilation has failed in a process, PyTorch leaves it on.
    """
    config = MECHANISMS[name](**MECHANISMS[name]().defaults_for(length, {}) | changes)
    with torch.device("meta"):
        module = config.build(width=WIDTH, heads=HEADS, causal=causal)
    counts = {}
    with FakeCuda(values=False) as device:
        for weight in module.to_empty(device=device).parameters():
            if weight.numel() <= FEW:  # known, since such may decide about sizes
                torch.nn.init.zeros_(weight)
        place = torch.arange(length, device=device)[None]
        takes = padded and not causal and supports(config, "globals")
        tokens = Tokens(mask=place < length - length // 3, is_global=place == 0 if takes else None)
        tokens = tokens.with_slots() if padded else Tokens()
        hidden = torch.empty(1, length, WIDTH, device=device)
        forward = torch._dynamo.run(module.forward)
        for learns in (True, False, True, False):
            gc.collect()  # what earlier passes left behind must not end, and be counted, in this one
            gc.disable()
            try:
                with Work("cuda") as work, torch.set_grad_enabled(learns):
                    output = forward(hidden.detach().requires_grad_(learns), tokens)
                    if learns:
                        output.sum().backward()
            finally:
                gc.enable()
            counts["trained" if learns else "read"] = {field: getattr(work, field) for field in FIELDS}
            module.zero_grad()
            del output
    return counts


def table(length: int) -> dict[str, Counts]:
    """All counts at a length, by form and whether there is padding."""
    return {
        f"{name}{', causal' * causal}{', padded' * padded}": count(name, causal, length, padded=padded)
        for name, causal in forms()
        for padded in (False, True)
    }


def committed() -> dict[str, dict[str, Counts]]:
    return json.loads(TABLE.read_text(encoding="utf-8"))


def rewrite() -> None:
    counted = {str(length): table(length) for length in LENGTHS}
    lines = []
    for length, rows in counted.items():
        inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        lines.append(f'"{length}": {{\n{inner}\n}}')
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(rewrite())
