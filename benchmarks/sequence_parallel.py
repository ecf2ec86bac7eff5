"""One document in several processes: bytes that are sent, memory of a process, and time.

    python benchmarks/sequence_parallel.py

starts itself by torchrun on 1, 2 and 4 processes of one thread; outputs are compared with those of one process first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from longspan.attention import Attention
from longspan.compare.machine import peak_memory
from longspan.models import LongspanConfig, LongspanModel
from longspan.models.sequence_parallel import divide_sequence, part_of, whole_rows
from longspan.ops.shards import Shards

TOKENS, LAYERS, WIDTH, HEADS, ROUNDS = 65_536, 2, 384, 6, 3
ARMS: dict[str, dict[str, Any]] = {
    "longformer, 128 to each side": {"mechanism": "longformer", "left_tokens": 128, "right_tokens": 128},
    "poolingformer": {"mechanism": "poolingformer"},
    "linear": {"mechanism": "linear"},
}
RESULT = Path(__file__).parent / "results" / "sequence-parallel.md"


def model_of(attention: dict[str, Any]) -> LongspanModel:
    """The same model in every process."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": WIDTH,
    }
    config = LongspanConfig(vocab_size=1000, attention=attention, position_embedding="sinusoidal", dropout=0.0, **sizes)
    return LongspanModel(config)


def predicted(model: LongspanModel, tokens: int, processes: int) -> int:
    """Bytes that the first of the middle processes, or the first one, sends in a forward pass, by the formula."""
    layer = next(each for each in model.modules() if isinstance(each, Attention))
    reach, rank = layer.config.reach(), processes // 2
    if processes == 1:
        return 0
    if reach.left is None or reach.right is None:  # sums of keys, in float32
        head_width = WIDTH // HEADS
        return LAYERS * 4 * (processes - 1) * HEADS * layer.config.feature_count(head_width) * (head_width + 1)
    shards = Shards(None, tuple(tokens // processes + (each < tokens % processes) for each in range(processes)))
    own, sent = shards.range_of(rank), 0
    for other in range(processes):
        low, high = shards.halo_of(other, reach.left, reach.right, reach.period)
        sent += 0 if other == rank else max(0, min(high, own[1]) - max(low, own[0]))
    return LAYERS * 4 * WIDTH * sent


def worker(name: str) -> None:
    """Measure one arm in this process; the middle one reports."""
    dist.init_process_group("gloo")
    count, rank = dist.get_world_size(), dist.get_rank()
    model = model_of(ARMS[name])
    ids = torch.randint(1000, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    short = {"input_ids": ids[:, :4096]}
    with torch.no_grad():
        expected = model(**short).last_hidden_state
    made: list[Shards] = []
    once = Shards.of

    def remembered(*arguments: Any) -> Shards:
        made.append(once(*arguments))
        return made[-1]

    Shards.of = remembered  # pyright: ignore[reportAttributeAccessIssue]
    divide_sequence(model)
    with torch.no_grad():
        difference = float((whole_rows(model(**part_of(short)).last_hidden_state) - expected).abs().max())
    assert difference < 1e-4, difference
    batch, seconds = part_of({"input_ids": ids}), []
    with torch.no_grad():
        model(**part_of(short))
        made.clear()
        with peak_memory("cpu") as peak:
            model(**batch)
        sent = sum(sum(each.sent.values()) for each in made[:1])
        for _ in range(ROUNDS):
            dist.barrier()
            begun = time.perf_counter()
            model(**batch)
            dist.barrier()
            seconds.append(time.perf_counter() - begun)
    if rank == count // 2:
        row = {"sent": sent, "predicted": predicted(model, TOKENS, count), "seconds": sorted(seconds)[ROUNDS // 2]}
        print("ROW " + json.dumps({**row, "peak": peak.bytes, "difference": difference}), flush=True)
    dist.destroy_process_group()


def main() -> None:
    rows = []
    for name in ARMS:
        for count in (1, 2, 4):
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
            done = subprocess.run(
                [*command, __file__, name],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            assert done.returncode == 0, done.stderr[-3000:]
            row = json.loads(next(line[4:] for line in done.stdout.splitlines() if line.startswith("ROW ")))
            rows.append((name, count, row))
            print(name, count, row, flush=True)
    (RESULT.with_suffix(".json")).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        worker(sys.argv[1])
    else:
        main()
