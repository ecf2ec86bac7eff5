"""Weights divided between processes: the peak memory of one of them against what `longspan plan --shard` predicts.

    python benchmarks/sharded_memory.py

starts itself by torchrun on 1, 2 and 4 processes of one thread. The model is that of the recipe `small-mlm-window`,
made wider and deeper, so that weights take more than activations. Each process makes it, divides it and takes three
steps with AdamW; its peak is what it holds in the last one above what it held before the model was made. Losses are
compared first, of all numbers of processes. Writes `results/sharded-memory.md`.

    python benchmarks/sharded_memory.py phases

builds, trains, saves and loads a larger model in 4 processes, as `longspan train` does with
`optimisation.parallel.shard`, each of which may allocate less than the states of the model take (`RLIMIT_DATA`). Writes
`results/sharded-phases.md`.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from longspan.compare.machine import forget_peak, machine, resident
from longspan.models.fsdp import shard
from longspan.models.transformers_names import enable_checkpointing
from longspan.models.work import Choice
from longspan.planning.memory import memory_of
from longspan.planning.source import Planned, planned_recipe
from longspan.training.checkpoints import PARTS, Saving
from longspan.training.distributed_checkpoints import read_states, read_weights, write_joined, write_parts
from longspan.training.filling import fill_new, without_weights
from longspan.training.recipe_file import load_recipe
from measure import table, write_page
from plan import ALLOCATOR

TOKENS, STEPS = 1024, 3
SIZES = ["num_attention_heads=8", "num_hidden_layers=6"]
ARMS: dict[str, tuple[list[str], bool]] = {
    "width 512": (["hidden_size=512", "intermediate_size=2048", *SIZES], False),
    "width 512, checkpointing": (["hidden_size=512", "intermediate_size=2048", *SIZES], True),
    "width 768, vocabulary of 16,000": (["hidden_size=768", "intermediate_size=3072", *SIZES], False),
}
"""What changes in the recipe's model, and whether activations are computed twice."""
PHASES = ["hidden_size=768", "intermediate_size=3072", "num_attention_heads=12", "num_hidden_layers=12"]
PROCESSES, ROW = 4, 128
WORDS = {"width 768, vocabulary of 16,000": 16_000}


def planned_of(name: str) -> Planned:
    """The model of an arm."""
    changes = [f"model.new.{change}" for change in ARMS[name][0]]
    recipe = load_recipe("small-mlm-window", [*changes, f"tokenizer.train={WORDS.get(name, 4_000)}"])
    return planned_recipe(recipe)


def choice_of(name: str, processes: int) -> Choice:
    """A step of an arm."""
    return Choice(tokens=TOKENS, train=True, checkpointing=ARMS[name][1], processes=processes, shard=processes > 1)


def worker(name: str) -> None:
    """Measure one arm in this process; the one with the highest peak counts."""
    dist.init_process_group("gloo")
    count = dist.get_world_size()
    steps("width 512", 64, count)  # what libraries keep once they have run
    before = resident("VmRSS")
    loss, peak = steps(name, TOKENS, count)
    told = torch.tensor([float(peak - before), loss], dtype=torch.float64)
    gathered = [torch.zeros_like(told) for _ in range(count)]
    dist.all_gather(gathered, told)
    if dist.get_rank() == 0:
        peaks = [int(each[0]) for each in gathered]
        print("ROW " + json.dumps({"peaks": peaks, "loss": float(gathered[0][1])}), flush=True)
    dist.destroy_process_group()


def steps(name: str, tokens: int, processes: int) -> tuple[float, int]:
    """The loss of the last of some steps of a new model, and the highest memory of the process in it."""
    planned, choice = planned_of(name), choice_of(name, processes)
    torch.manual_seed(0)
    model = planned.model_class(planned.config).train()
    if choice.checkpointing:
        enable_checkpointing(model)
    if processes > 1:
        shard(model, torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(5, 4_000, (1, tokens), generator=torch.Generator().manual_seed(1))
    loss = 0.0
    for step in range(STEPS):
        if step == STEPS - 1:
            forget_peak()
        output = model(input_ids=ids, labels=ids)
        output.loss.backward()
        loss = float(output.loss)
        del output
        optimizer.step()
        optimizer.zero_grad()
    return loss, resident("VmHWM")


def phases(folder: Path, limit: int) -> None:
    """Goes through the phases of a training in this process, which may allocate `limit` bytes more than it has."""
    dist.init_process_group("gloo")
    steps("width 512", 64, PROCESSES)  # what libraries keep once they have run
    peaks: dict[str, int] = {}
    before = resident("VmRSS")
    most = resident("VmData") + limit
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    def measured_in(phase: str, act: Callable[[], Any]) -> Any:
        dist.barrier()
        forget_peak()
        result = act()
        peaks[phase] = resident("VmHWM") - before
        return result

    recipe = load_recipe("small-mlm-window", [*(f"model.new.{change}" for change in PHASES), "tokenizer.train=16000"])
    planned = planned_recipe(recipe)

    def drawn() -> Any:
        torch.manual_seed(0)
        return planned.model_class(planned.config)

    def built(fill: Callable[[Any], None]) -> Any:
        with without_weights():
            model = planned.model_class(planned.config).train()
        model.tie_weights()
        shard(model, torch.device("cpu"))
        fill(model)
        return model

    def trained(model: Any, optimizer: Any, count: int) -> float:
        ids = torch.randint(5, 16_000, (1, ROW), generator=torch.Generator().manual_seed(1))
        loss = torch.zeros(())
        for _ in range(count):
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    model = measured_in(
        "build: drawn by the first process, read by part", lambda: built(lambda to: fill_new(to, drawn, folder))
    )
    weights = sum(weight.numel() for weight in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    measured_in("two steps of AdamW", lambda: trained(model, optimizer, 2))
    first, second, saving = folder / "first", folder / "second", Saving(background=True)
    measured_in("save a checkpoint", lambda: write_parts(model, optimizer, first, Saving()))

    def saved_meanwhile() -> float:
        write_parts(model, optimizer, second, saving)
        loss = trained(model, optimizer, 1)
        saving.wait()
        return loss

    loss = measured_in("save one in the background, and a step", saved_meanwhile)
    del model, optimizer
    model = measured_in(
        "build, and read the weights of a checkpoint by part",
        lambda: built(lambda to: read_weights(to, second / PARTS)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    measured_in("read the states of the optimizer by part", lambda: read_states(model, optimizer, second))
    again = measured_in("a step", lambda: trained(model, optimizer, 1))
    join = (lambda: write_joined(second, folder, "5GB")) if dist.get_rank() == 0 else (lambda: None)
    measured_in("write the whole model, in the first process", join)
    told: list[Any] = [None] * PROCESSES
    dist.all_gather_object(told, peaks)
    if dist.get_rank() == 0:
        print("ROW " + json.dumps({"peaks": told, "weights": weights, "losses": [loss, again]}), flush=True)
    dist.destroy_process_group()


def measure_phases(limit: int = 1280 * 2**20) -> None:
    """Measures the phases, and writes their page."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        row = measured("phases", PROCESSES, folder, str(limit))
    assert row["losses"][0] == row["losses"][1], row["losses"]
    states = 16 * row["weights"]
    assert states > limit
    lines = []
    for phase in row["peaks"][0]:
        of_all = [each[phase] / 2**20 for each in row["peaks"]]
        lines.append([phase, f"{of_all[0]:,.0f}", f"{max(of_all[1:]):,.0f}"])
        print(*lines[-1], flush=True)
    text = (
        f"`python benchmarks/sharded_memory.py phases` on {machine()}, {PROCESSES} processes of one thread, gloo. A "
        f"model of {row['weights'] / 1e6:.0f} million weights (12 layers of width 768, vocabulary of 16,000), which "
        f"take {4 * row['weights'] / 2**20:,.0f} MiB in float32, {states / 2**20:,.0f} MiB with gradients and AdamW's "
        f"states. No process may allocate more than {limit / 2**20:,.0f} MiB above what it has at the beginning "
        "(`RLIMIT_DATA`). Peaks of resident memory in MiB, above that too, with mapped files. One row of "
        f"{ROW} tokens in each process. The step after loading has the loss of the step that was not interrupted, to "
        "the bit."
    )
    header = ["phase", "the first process", "most of the others"]
    write_page("sharded-phases", "Divided weights: the memory of each phase", [text, table(header, lines)])


def main() -> None:
    """Measure, and write the page."""
    lines = []
    for name in ARMS:
        losses = []
        for count in (1, 2, 4):
            row = measured(name, count)
            losses.append(row["loss"])
            assert abs(losses[-1] - losses[0]) < 1e-4 * losses[0], losses
            predicted, peak = memory_of(planned_of(name), choice_of(name, count)).peak, max(row["peaks"])
            cells = [f"{each / 2**20:,.0f}" for each in (predicted, peak)]
            lines.append([name, str(count), *cells, f"{100 * (predicted / peak - 1):+.0f} %"])
            print(*lines[-1], flush=True)
    text = (
        f"`python benchmarks/sharded_memory.py` on {machine()}, one thread in each process, gloo. The recipe "
        f"`small-mlm-window` with 6 layers, 1 row of {TOKENS:,} tokens in each process, AdamW, float32; the peak of a "
        "step of the process that needs most, above what it held before the model was made. The losses of all numbers "
        "of processes are the same to 1e-4 of them."
    )
    header = ["model", "processes", "MiB predicted", "measured", ""]
    write_page("sharded-memory", "Divided weights: the planner against measurements", [text, table(header, lines)])


def measured(name: str, count: int, *arguments: str) -> dict[str, Any]:
    """What so many processes tell."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    done = subprocess.run(
        [*command, str(Path(__file__)), name, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(next(line[4:] for line in done.stdout.splitlines() if line.startswith("ROW ")))


if __name__ == "__main__":
    if sys.argv[1:] == ["phases"]:
        measure_phases()
    elif sys.argv[1:2] == ["phases"]:
        phases(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:]:
        worker(sys.argv[1])
    else:
        main()
