"""One document in several processes: bytes that are sent, memory of a process, and time.

    python benchmarks/sequence_parallel.py          # measures, and writes the page
    python benchmarks/sequence_parallel.py more     # counts bytes of what was not measured yet, without its time
    python benchmarks/sequence_parallel.py page     # writes the page anew from what was measured

starts itself by torchrun on 1, 2 and 4 processes of one thread; outputs are compared with those of one process first.
The page ends with what the formula and the predictor of `longspan plan` say of 16 million tokens on 64 GPUs.
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

sys.path.append(str(Path(__file__).parents[1] / "tests" / "shared"))

from longspan.attention import Attention
from longspan.compare.machine import peak_memory
from longspan.hardware import device_of
from longspan.models import LongspanConfig, LongspanModel
from longspan.models.sequence_parallel import divide_sequence, part_of, whole_rows
from longspan.models.work import Choice
from longspan.ops.shards import Shards, ring
from longspan.planning.memory import halo_of, memory_of
from longspan.planning.plan import block_of
from longspan.planning.prediction import BANDWIDTH_SHARE
from longspan.planning.processes import LINK, sent_for_globals
from longspan.planning.source import Planned
from tracing import module_launches

TOKENS, LAYERS, WIDTH, HEADS, ROUNDS = 65_536, 2, 384, 6, 3
ARMS: dict[str, dict[str, Any]] = {
    "longformer, 128 to each side": {"mechanism": "longformer", "left_tokens": 128, "right_tokens": 128},
    "poolingformer": {"mechanism": "poolingformer"},
    "linear": {"mechanism": "linear"},
    "poolingformer, a global token": {"mechanism": "poolingformer"},
    "fusion, a global token": {"mechanism": "fusion"},
}
WITH_GLOBAL = {"poolingformer, a global token", "fusion, a global token"}
"""Arms whose first token is global."""
STACKS = {"the stack star": "star"}
"""Arms of stacks that bring their own attention."""
FAR, GPUS = 1 << 24, 64
RESULT = Path(__file__).parent / "results" / "sequence-parallel.md"


def config_of(
    attention: dict[str, Any], layers: int = LAYERS, width: int = WIDTH, heads: int = HEADS
) -> LongspanConfig:
    """An encoder whose positions have no end; its inner layer is as wide as its states, but for models of full size."""
    return LongspanConfig(
        vocab_size=1000,
        attention=attention,
        position_embedding="sinusoidal",
        dropout=0.0,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=width if width == WIDTH else 4 * width,
    )


def model_of(name: str) -> LongspanModel:
    """The same model in every process."""
    torch.manual_seed(0)
    if name in STACKS:
        return LongspanModel(
            LongspanConfig(
                vocab_size=1000,
                stack={"stack": STACKS[name]},
                position_embedding="sinusoidal",
                dropout=0.0,
                hidden_size=WIDTH,
                num_hidden_layers=LAYERS,
                num_attention_heads=HEADS,
            )
        )
    config = config_of(ARMS[name])
    config.global_tokens = "first" if name in WITH_GLOBAL else "none"
    return LongspanModel(config)


def predicted(model: LongspanModel, name: str, processes: int) -> int:
    """Bytes that a process in the middle sends in a forward pass of a model, by the formula."""
    if processes == 1:
        return 0
    if name in STACKS:  # besides its layers: where padding ends, the mean that a relay begins with, and the summary
        each = model.encoder.stack.sent(width=WIDTH, heads=HEADS, processes=processes, number=4)
        once = min(2, processes - 1) + ring(4 * WIDTH, processes) + (processes - 1) * 4 * WIDTH
        return LAYERS * each + once
    layer = next(each for each in model.modules() if isinstance(each, Attention))
    beside = sent_for_globals(1, processes=processes, width=WIDTH, heads=HEADS, number=4) if name in WITH_GLOBAL else 0
    return LAYERS * (sent_by(layer, TOKENS, processes, WIDTH, HEADS, 4) + beside)


def sent_by(layer: Attention, tokens: int, processes: int, width: int, heads: int, number: int) -> int:
    """Bytes that a process in the middle sends in the forward pass of a layer, by the formula; `number` is the size of
    one of its states."""
    reach, rank = layer.config.reach(), processes // 2
    if processes == 1:
        return 0
    if reach.left is None or reach.right is None:  # sums of keys, in float32
        head_width = width // heads
        features = layer.config.feature_count(head_width)  # pyright: ignore[reportAttributeAccessIssue]
        return 4 * (processes - 1) * heads * features * (head_width + 1)
    shards = Shards(None, tuple(tokens // processes + (each < tokens % processes) for each in range(processes)))
    own, sent = shards.range_of(rank), 0
    for other in range(processes):
        low, high = shards.halo_of(other, reach.left, reach.right, reach.period)
        sent += 0 if other == rank else max(0, min(high, own[1]) - max(low, own[0]))
    return number * width * sent


def worker(name: str, rounds: int) -> None:
    """Measure one arm in this process, in no round without its time; the middle one reports."""
    dist.init_process_group("gloo")
    count, rank = dist.get_world_size(), dist.get_rank()
    model = model_of(name)
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
        for _ in range(rounds):
            dist.barrier()
            begun = time.perf_counter()
            model(**batch)
            dist.barrier()
            seconds.append(time.perf_counter() - begun)
    if rank == count // 2:
        row = {
            "sent": sent,
            "predicted": predicted(model, name, count),
            "seconds": sorted(seconds)[rounds // 2] if rounds else None,
        }
        print("ROW " + json.dumps({**row, "peak": peak.bytes, "difference": difference}), flush=True)
    dist.destroy_process_group()


def extrapolated(name: str) -> list[str]:
    """A row of the table of predictions: bytes, times and memory of a layer on one of many GPUs."""
    config = config_of(ARMS[name], layers=12, width=768, heads=12)
    spec = config.layer_attention(0)
    block, device = block_of(config, spec, train=True), device_of("h100")
    part, halo = FAR // GPUS, halo_of(spec)
    sent = sent_by(block.attention, FAR, GPUS, 768, 12, 2)
    sent += sent_for_globals(1, processes=GPUS, width=768, heads=12, number=2) if name in WITH_GLOBAL else 0
    both = module_launches(block, tokens=part + halo, width=768, training=True, in_model=True).seconds(device)
    planned = Planned(name=name, config=config, model_class=LongspanModel)
    memory = memory_of(planned, Choice(tokens=part + halo, train=True, precision="bfloat16", checkpointing=True)).peak
    return [
        name,
        f"{sent / 1e6:.2f} MB",
        f"{2e3 * sent / (LINK * BANDWIDTH_SHARE):.3f} ms",
        f"{1e3 * both:.1f} ms",
        f"{100 * 2 * sent / (LINK * BANDWIDTH_SHARE) / both:.2f} %",
        f"{memory / 2**30:.1f} GiB",
    ]


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])


def page(rows: list[Any]) -> str:
    """What was measured, and what is predicted."""
    measured = [
        [
            name,
            str(count),
            f"{row['sent']:,}",
            f"{row['predicted']:,}",
            "–" if row["seconds"] is None else f"{row['seconds']:.2f} s",
            f"{row['peak'] / 2**20:.0f} MiB",
            f"{row['difference']:.1e}",
        ]
        for name, count, row in rows
    ]
    heads = ["attention", "processes", "bytes sent", "by the formula", "forward", "peak of a process", "off by"]
    far = ["attention", "sent in forward", "sending, both ways", "computing, both ways", "share", "memory of a GPU"]
    return f"""# One document in several processes

One row of {TOKENS:,} tokens, an encoder of {LAYERS} layers with {HEADS} heads in {WIDTH} numbers, float32, each
process with one thread, on one machine with two cores (four processes share them, so they save memory and hardly
time). Bytes are those that a process in the middle sends in the forward pass; the formula is that of the
[guide](../../packages/longspan/docs/guides/sequence-parallel.md). Outputs are compared with one process first (at 4,096
tokens, largest distance in the last column); peaks are bytes beyond those before the pass. Where no time stands, bytes
were counted on a machine that was busy.

{table(heads, measured)}

## {FAR:,} tokens on {GPUS} GPUs: predicted

**Nothing below was measured.** One layer of an encoder of 12 in base size (768 numbers, 12 heads, 3,072 inside) in
bfloat16 on an H100, of whose tokens each GPU has {FAR // GPUS:,}; forward and backward, computing from launches,
bytes and FLOPs as `longspan plan` has it, sending at {100 * BANDWIDTH_SHARE:.0f} % of {LINK / 1e9:.0f} GB/s, a link
of 400 Gbit/s for each GPU, and not hidden behind computing. Memory is that of training with checkpointing, weights
and the optimizer's states whole in each GPU.

{table(far, [extrapolated(name) for name in ARMS])}

What a window sends does not depend on the length or on the number of GPUs, so its share falls as parts grow. The sums
of `linear` go to every other process and are `P − 1` times as many.
"""


def main() -> None:
    """Measure, unless there is only a page to write."""
    kept = RESULT.with_suffix(".json")
    if sys.argv[1:] != ["page"]:
        known = json.loads(kept.read_text(encoding="utf-8")) if sys.argv[1:] == ["more"] else []
        names = [name for name in (*ARMS, *STACKS) if name not in {row[0] for row in known}]
        rows = known + measured_rows(names, 0 if known else ROUNDS)
        kept.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    RESULT.write_text(page(json.loads(kept.read_text(encoding="utf-8"))), encoding="utf-8")
    print(RESULT.read_text(encoding="utf-8"))


def measured_rows(names: list[str], rounds: int) -> list[Any]:
    """Name of the attention, number of processes and what one of them measured, for each."""
    rows = []
    for name in names:
        for count in (1, 2, 4):
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
            done = subprocess.run(
                [*command, __file__, name, str(rounds)],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            assert done.returncode == 0, done.stderr[-3000:]
            row = json.loads(next(line[4:] for line in done.stdout.splitlines() if line.startswith("ROW ")))
            rows.append((name, count, row))
            print(name, count, row, flush=True)
    return rows


if __name__ == "__main__":
    if sys.argv[1:] in ([], ["more"], ["page"]):
        main()
    else:
        worker(sys.argv[1], int(sys.argv[2]))
