"""The first hour with a GPU: `python benchmarks/gpu.py [--budget 540] [--only NAME]`.

Every mechanism forward and in training, 4,096 to a million tokens, with padding, dropout and `torch.compile`; full
attention by PyTorch with each of its kernels; FlashAttention's window, FlexAttention's, transformers' Longformer, LED
and BigBird; training steps of 12 layers, prefill and decoding. First come the programs that have changed since they
were last timed, at 65,536 tokens, then each mechanism is compared with the processor.

Each row is written as soon as it is measured, into `results/gpu.jsonl`; a call ends when its `--budget` of seconds is
spent, and the next one goes on where it ended. Beside what is measured stands what is predicted from launches on a
simulated GPU, from `results/gpu-predicted.jsonl`, which `--predict` writes on any machine, with a page of it; what is
predicted to take longer than `LONGEST` is left out. `--page` writes `results/gpu.md` from both. `--device cpu` runs the
same on a processor, `--dry` all of it in small sizes.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from gpu_sides import AGREEING, CORES, STEPS, WRITERS, Cell, Run, Setting, build, layer_of
from longspan.attention import MECHANISMS
from longspan.compare.machine import machine, peak_memory
from longspan.errors import InputError, is_out_of_memory, last_line
from measure import RESULTS, add_run, finished, table, write_page

LENGTHS = (4096, 16_384, 65_536, 262_144, 1_048_576)
CHECKED = 2048
"""Tokens on which the device is compared with the processor."""
LONGEST = 5.0
"""Seconds that one run may be predicted to take."""
MOST_FOLLOWED = 65_536
"""Tokens up to which launches are followed for a prediction."""
MOST_RUNS = 50
"""Of a cell."""
LOST = ("CUDA error", "illegal memory access", "AcceleratorError")
"""What the reason of a row says after which a process cannot use the device any more."""
TOLERANCE = 6e-2
"""Of outputs in bfloat16, as a share of the largest."""


def cells(lengths: Sequence[int]) -> list[Cell]:
    """All rows, those that tell most first: `URGENT` ones, then comparisons with the processor, then those with few
    options, then short ones."""
    rows: list[Cell] = []
    forms = [(name, False) for name, kind in MECHANISMS.items() if kind.bidirectional]
    forms += [(name, True) for name, kind in MECHANISMS.items() if kind.causal]
    for (name, causal), tokens, padded, compiled in product(forms, lengths, (False, True), (False, True)):
        given = {"side": name, "tokens": tokens, "causal": causal, "padded": padded, "compiled": compiled}
        rows.append(Cell(work="forward", **given))
        rows += [Cell(work="training", dropout=dropout, **given) for dropout in (0.0, 0.1)]
    rows += [Cell(side=name, work=work, tokens=tokens) for name, work, tokens in product(CORES, WORKS, lengths)]
    rows += [Cell(side=name, work="step", tokens=tokens) for name, tokens in product(STEPS, lengths[:3])]
    rows += [
        Cell(side=name, work=work, tokens=tokens)
        for name, work, tokens in product(WRITERS, ("prefill", "decode"), lengths[:3])
    ]
    rows += [
        Cell(side=name, work=work, tokens=tokens, global_tokens=GLOBAL_TOKENS)
        for name, work, tokens in product(WITH_GLOBALS, WORKS, lengths)
    ]
    checks = [Cell(side=name, work="check", tokens=min(CHECKED, lengths[0]), causal=causal) for name, causal in forms]
    urgent = [
        cell
        for name in URGENT
        for cell in rows
        if (cell.side == name and cell.work in WORKS and cell.tokens == MOST_FOLLOWED)
        and not (cell.causal or cell.compiled or cell.dropout)
    ]
    return urgent + checks + sorted((cell for cell in rows if cell not in urgent), key=_importance)


WORKS = ("forward", "training")
URGENT = (
    *("longformer", "bigbird", "reformer", "fusion", "poolingformer", "linear", "sdpa", "window", "flash-window"),
    *("flex-window", "sparse", "routing"),
)
"""What is measured before everything else, at 65,536 tokens: programs that have changed since they were last timed, and
what they are compared with."""
WITH_GLOBALS, GLOBAL_TOKENS = ("longformer", "bigbird"), 16


def _importance(cell: Cell) -> tuple[Any, ...]:
    """Lower first."""
    options = cell.padded + bool(cell.dropout) + 2 * cell.compiled + (cell.causal and cell.side in MECHANISMS)
    return options + 2 * (cell.tokens > 65_536), cell.tokens


# Measuring ------------------------------------------------------------------------------------------------------------


def measured(cell: Cell, setting: Setting) -> dict[str, Any]:
    """What is written of a cell, whatever happens in it."""
    started = time.perf_counter()
    try:
        numbers = compared(cell, setting) if cell.work == "check" else timed(build(cell, setting), setting)
        if cell.side in AGREEING:
            numbers |= agreement(cell, setting)
        if cell.side == "sdpa":
            numbers["backend"] = chosen_backend(cell, setting)
        row = {"status": "done", **numbers}
    except InputError as error:
        row = {"status": "refused", "reason": str(error)}
    except Exception as error:  # noqa: BLE001 a side that breaks is a row with its reason
        reason = "out of memory" if is_out_of_memory(error) else f"{type(error).__name__}: {last_line(error)}"
        row = {"status": "failed", "reason": reason}
    if cell.work == "decode" and "milliseconds" in row:
        row["milliseconds"] /= setting.written
    return row | {"took": round(time.perf_counter() - started, 2)}


def timed(run: Run, setting: Setting) -> dict[str, Any]:
    """Milliseconds: the median of some runs behind two that compile, choose kernels and warm up."""
    first, second = one_run(run, setting), one_run(run, setting)
    count = min(max(int(setting.seconds / max(second, 1e-6)), setting.runs), MOST_RUNS)
    with peak_memory("cuda" if _is_cuda(setting) else "cpu") as peak:
        seconds = [one_run(run, setting) for _ in range(count)]
    return {
        "milliseconds": 1e3 * statistics.median(seconds),
        "least": 1e3 * min(seconds),
        "runs": count,
        "first_seconds": round(first, 3),
        "peak_bytes": peak.bytes,
    }


def one_run(run: Run, setting: Setting) -> float:
    """Seconds from an idle device to an idle device."""
    if not _is_cuda(setting):
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def _is_cuda(setting: Setting) -> bool:
    return setting.device == "cuda"


def compared(cell: Cell, setting: Setting) -> dict[str, Any]:
    """How far outputs and gradients of a mechanism in float32 are from those of the processor, as shares of the
    largest. Where states choose what is seen, rounding may choose otherwise for a few tokens: the median says more."""
    numbers: dict[str, Any] = {}
    for work in WORKS:
        one = replace(cell, work=work)
        host, here = (
            build(one, replace(setting, device=device, dtype=torch.float32))() for device in ("cpu", setting.device)
        )
        apart = (here.detach().cpu() - host).abs() / host.abs().max().clamp(min=1e-9)
        numbers[work] = {"largest": float(apart.max()), "median": float(apart.median())}
    return numbers


def agreement(cell: Cell, setting: Setting) -> dict[str, Any]:
    """How far a side is from our operator, which computes the same.

    Raises:
        ArithmeticError: too far for its time to mean anything.
    """
    one = replace(cell, compiled=False)
    ours, theirs = (build(replace(one, side=side), setting)().detach().float() for side in ("window", cell.side))
    apart = float((ours - theirs).abs().max() / ours.abs().max())
    if apart > TOLERANCE:
        raise ArithmeticError(f"it differs from our window by {apart:.3g} of the largest number, so no time is given")
    return {"differs": apart}


def chosen_backend(cell: Cell, setting: Setting) -> str:
    """Which of its kernels PyTorch chooses for full attention."""
    from torch.nn.attention import SDPBackend

    heads = torch.empty(
        1, setting.heads, cell.tokens, setting.width // setting.heads, dtype=setting.dtype, device=setting.device
    )
    return SDPBackend(torch._fused_sdp_choice(heads, heads, heads)).name.lower()


# Predicting -----------------------------------------------------------------------------------------------------------


def read_predictions(file: Path, device: str | None) -> dict[tuple[Any, ...], float]:
    """Cell → predicted milliseconds on a device."""
    rows = [row for row in finished(file) if device in row["milliseconds"]]
    return {Cell(**row["cell"]).key: row["milliseconds"][device] for row in rows}


def predict(rows: Iterable[Cell], file: Path, setting: Setting, *, budget: float) -> None:
    """Follow layers of mechanisms that the file does not have, on a device that is not there; a row for each, with
    milliseconds of every device that is known. What is compiled is not predicted, nor what nobody can follow."""
    from longspan.hardware import DEVICES

    sys.path.append(str(Path(__file__).parents[1] / "tests" / "shared"))
    from tracing import UnknownNumbers, module_launches

    done, began = {Cell(**row["cell"]).key for row in finished(file)}, time.perf_counter()
    for cell in rows:
        if cell.key in done or cell.side not in MECHANISMS or cell.work not in WORKS:
            continue
        if cell.compiled or cell.global_tokens:
            continue
        if cell.tokens > MOST_FOLLOWED or time.perf_counter() - began > budget:
            continue
        sizes = {"tokens": cell.tokens, "width": setting.width, "dtype": setting.dtype}
        try:
            layer = layer_of(cell, replace(setting, device="cpu", dtype=torch.float32))
            launches = module_launches(layer, **sizes, training=cell.work == "training", padded=cell.padded)
        except UnknownNumbers:
            continue
        milliseconds = {name: round(1e3 * launches.seconds(device), 4) for name, device in DEVICES.items()}
        row = {"cell": asdict(cell), "how": "predicted", "milliseconds": milliseconds}
        add_run(file, row | {"launches": len(launches.kernels), "waits": launches.synchronisations})


def device_here() -> str | None:
    """Which of the devices in the table this machine has."""
    from longspan.hardware import DEVICES

    name = torch.cuda.get_device_name().lower().replace(" ", "") if torch.cuda.is_available() else ""
    return next((each for each in DEVICES if each in name), None)


# Running --------------------------------------------------------------------------------------------------------------


def run_cells(
    rows: Iterable[Cell],
    file: Path,
    setting: Setting,
    *,
    budget: float,
    predictions: dict[tuple[Any, ...], float],
    say: Callable[[str], None] = print,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Measure what is not in the file yet until the budget is spent; how many rows are left."""
    done = {Cell(**row["cell"]).key for row in finished(file)}
    left, began = [cell for cell in rows if cell.key not in done], clock()
    for number, cell in enumerate(left):
        if clock() - began > budget:
            return len(left) - number
        predicted = predictions.get(cell.key)
        if predicted is not None and predicted > 1e3 * LONGEST:
            row: dict[str, Any] = {"status": "left out", "reason": f"predicted to take {predicted / 1e3:,.0f} s"}
        else:
            row = measured(cell, setting)
        row["predicted"] = predicted
        add_run(file, {"cell": asdict(cell), **row, "machine": machine("cuda" if _is_cuda(setting) else "cpu")})
        say(f"{words_of(cell)}: {result_of(row)}")
        if any(words in row.get("reason", "") for words in LOST):
            say("the device is lost to this process; call again to go on behind this row")
            return len(left) - number - 1
        if _is_cuda(setting):
            free(compiled=cell.compiled)
    return 0


def free(*, compiled: bool) -> None:
    """Give back what a cell held on CUDA; compiled layers too, but not the programs that the next cells share."""
    gc.collect()
    if compiled:
        torch.compiler.reset()
    torch.cuda.empty_cache()


def words_of(cell: Cell) -> str:
    """ "longformer, training, 65,536 tokens, padded" """
    options = [word for word in ("causal", "padded", "compiled") if getattr(cell, word)]
    options += [f"dropout {cell.dropout}"] if cell.dropout else []
    options += [f"{cell.global_tokens} global tokens"] if cell.global_tokens else []
    return ", ".join([cell.side, cell.work, f"{cell.tokens:,} tokens", *options])


def result_of(row: dict[str, Any]) -> str:
    """ "3.21 ms (predicted 2.9)" """
    if "milliseconds" in row:
        beside = "" if row.get("predicted") is None else f" (predicted {row['predicted']:.3g})"
        return f"{row['milliseconds']:.3g} ms{beside}"
    if "forward" in row:
        return f"differs by {row['forward']['largest']:.2g}, in gradients by {row['training']['largest']:.2g}"
    return f"{row['status']}: {row['reason']}"


# The page -------------------------------------------------------------------------------------------------------------


def page(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Tables: a line for each side and its options, a column for each length."""
    parts = [f"{rows[0]['machine']}. Milliseconds of one run, predicted in brackets."] if rows else ["Nothing yet."]
    for work in ("check", *WORKS, "step", "prefill", "decode"):
        chosen = [row for row in rows if row["cell"]["work"] == work]
        if not chosen:
            continue
        lengths = sorted({row["cell"]["tokens"] for row in chosen})
        lines: dict[str, dict[int, str]] = {}
        for row in chosen:
            cell = Cell(**row["cell"])
            name = words_of(cell).replace(f", {cell.work}, {cell.tokens:,} tokens", "")
            lines.setdefault(name, {})[cell.tokens] = result_of(row).replace("(predicted ", "(")
        cells_of = [[name, *(line.get(length, "") for length in lengths)] for name, line in lines.items()]
        parts += [f"## {work}", table(["side", *(f"{length:,}" for length in lengths)], cells_of)]
    return parts


def predicted_page(rows: Sequence[dict[str, Any]], device: str = "h100") -> list[str]:
    """The same of predictions for one device."""
    from longspan.hardware import DEVICES

    said = (
        "**Nothing on this page was measured.** Milliseconds of a layer by itself, bfloat16, 12 heads of 64, one row, "
        f"on one {DEVICES[device].name}, from its launches, bytes and FLOPs (`longspan.planning`). The file has more "
        "devices."
    )
    own = [row | {"milliseconds": row["milliseconds"][device], "machine": device} for row in rows]
    return [said, *page(own)[1:]]


DRY = Setting(
    device="cpu", dtype=torch.float32, width=32, heads=2, layers=2, vocabulary=128, written=2,
    side=8, block=4, seconds=0.0, runs=1,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=540, help="seconds after which no further row begins")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", help="rows of this side alone")
    parser.add_argument("--output", type=Path, default=RESULTS / "gpu.jsonl")
    parser.add_argument("--predicted", type=Path, default=RESULTS / "gpu-predicted.jsonl")
    parser.add_argument("--dry", action="store_true", help="small sizes, few lengths, nothing compiled")
    parser.add_argument("--predict", action="store_true", help="write predictions, on any machine, and nothing else")
    parser.add_argument("--page", action="store_true", help="write the page from what is measured, and nothing else")
    options = parser.parse_args(arguments)
    if options.page:
        print(write_page("gpu", "Every mechanism on a GPU", page(finished(options.output))))
        return 0
    if options.predict:
        rows = [row for row in cells(LENGTHS) if options.only in (None, row.side)]
        predict(rows, options.predicted, Setting(), budget=options.budget)
        parts = predicted_page(finished(options.predicted))
        print(write_page("gpu-predicted", "Every mechanism on a GPU, predicted", parts, how="Predicted"))
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"--device is 'cuda', and torch {torch.__version__} sees none; give --device cpu, or --dry with it")
        return 2
    setting = replace(DRY, device=options.device) if options.dry else Setting(device=options.device)
    rows = cells((64,) if options.dry else LENGTHS)
    rows = [row for row in rows if options.only in (None, row.side) and not (options.dry and row.compiled)]
    predictions = read_predictions(options.predicted, device_here())
    left = run_cells(rows, options.output, setting, budget=options.budget, predictions=predictions)
    print(f"{left:,} rows are left; call again" if left else "all rows are measured")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
