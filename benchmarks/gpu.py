"""A quarter of an hour with a GPU: `python benchmarks/gpu.py [--budget 540] [--from SECTION] [--only SIDE]`.

What the device is and can do; profiles of what was slower than predicted; options for FlexAttention's programs;
windows by every kernel there is; one product for queries, keys and values; training steps of 12 layers; decoding in a
CUDA graph; and then, for who has an hour, every mechanism at every length. `SECTIONS` has them in this order, and their
time. Before a section is timed, eight processes compile its programs.

Each row is written as soon as it is measured, into `results/gpu.jsonl`; a call ends when its `--budget` of seconds is
spent, and the next one goes on where it ended, or at `--from`. Programs and traces stay in `--keep`. Beside what is
measured stands what is predicted from launches on a simulated GPU, from `results/gpu-predicted.jsonl`, which
`--predict` writes on any machine, with a page of it; what is predicted to take longer than `LONGEST` is left out.
`--programs` compiles the options that are tried, also without a GPU. `--page` writes `results/gpu.md`, and `--table`
prints `PROGRAMS` of `flex_options.py` with the fastest options. `--device cpu` runs the same on a processor, `--dry`
all of it in small sizes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from gpu_cells import Cell, Setting, words_of
from gpu_measures import PASSES, compile_once, compiles, free, is_cuda, measured
from gpu_models import DECODING, STEPS, WRITERS
from gpu_sides import CORES, RATES, WINDOWS, layer_of
from gpu_tiles import DIRECTIONS, PATTERNS, Timed, candidates, measured_table, pattern_cell, source_of, write_needs
from longspan.attention import MECHANISMS
from longspan.compare.machine import machine
from measure import RESULTS, add_run, finished, table, write_page

CHECKED = 2048
"""Tokens on which the device is compared with the processor."""
LONGEST = 5.0
"""Seconds that one run may be predicted to take."""
MOST_FOLLOWED = 65_536
"""Tokens up to which launches are followed for a prediction."""
LOST = ("CUDA error", "illegal memory access", "AcceleratorError")
"""What the reason of a row says after which a process cannot use the device any more."""
METHOD = 2
"""The way of measuring: rows of another are measured again. In the first, training had a sum of our own in it."""
SHOWN_KERNELS = 5
"""Of a profile, on the page; rows have more."""
COMPILERS = 8
"""Processes that compile at once."""
NEEDS = RESULTS / "gpu-programs.jsonl"
"""What the programs of `PATTERNS` need with each candidate's options, compiled without a GPU."""


class DeviceLostError(RuntimeError):
    """The process cannot use the device any more; another one can."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the quarter of an hour.

    Attributes:
        title: what it is about.
        seconds: its share; what is left is measured in a later call.
        cells: its rows, those that tell most first.
    """

    title: str
    seconds: float
    cells: Callable[[Setting], list[Cell]]


FULL = ("sdpa", "full", "sdpa-flash", "sdpa-cudnn")


def device_cells(setting: Setting) -> list[Cell]:
    rates = [Cell(side=name, work="rate", tokens=setting.square) for name in RATES]
    full = [
        Cell(side=side, work=work, tokens=setting.long, traced=True) for side in ("sdpa", "full") for work in PASSES
    ]
    return [Cell(side="versions", work="device", tokens=0), *rates, *full]


def trace_cells(setting: Setting) -> list[Cell]:
    forms = [{}, {"padded": True}, {"global_tokens": GLOBAL_TOKENS}]
    rows = [{"side": side} for side in ("bigbird", "reformer")] + [{"side": "longformer", **form} for form in forms]
    return [Cell(work=work, tokens=setting.long, traced=True, **row) for row, work in product(rows, PASSES)]


def tile_cells(setting: Setting) -> list[Cell]:
    """All patterns with the first candidate, then all with the second, …"""
    rows = [
        (place, pattern_cell(name, work=work, tokens=setting.long, options=options))
        for name in PATTERNS
        for work, given in zip(PASSES, candidates(name, NEEDS), strict=True)
        for place, options in enumerate(given)
    ]
    return [cell for _, cell in sorted(rows, key=lambda row: row[0])]


def window_cells(setting: Setting) -> list[Cell]:
    """Without projections, where each is compared with ours, then layers with their projections; profiles have the
    names of the kernels."""
    sides: list[dict[str, Any]] = [{"side": name} for name in WINDOWS]
    sides += [{"side": "longformer", "form": "bare"}, {"side": "flex-window", "options": "BACKEND=FLASH"}]
    sides += [{"side": "longformer"}]
    given = product((setting.side, 2 * setting.side), sides, PASSES)
    return [Cell(work=work, tokens=setting.long, window=window, traced=True, **side) for window, side, work in given]


def product_cells(setting: Setting) -> list[Cell]:
    given = product(("poolingformer", "linear"), ("", "joined"), (setting.middle, setting.long), (False, True))
    return [
        Cell(side=side, work="training", tokens=tokens, form=form, compiled=compiled)
        for side, form, tokens, compiled in given
    ]


def step_cells(setting: Setting) -> list[Cell]:
    names = ("model-longformer", "hf-model-longformer", "model-led", "hf-model-led", "model-full")
    return [
        Cell(side=name, work="step", tokens=setting.middle, compiled=compiled)
        for compiled, name in product((False, True), names)
    ]


def decoding_cells(setting: Setting) -> list[Cell]:
    given = product((setting.middle, setting.long), WRITERS, DECODING)
    return [Cell(side=name, work=work, tokens=tokens) for tokens, name, work in given]


def every_mechanism(setting: Setting) -> list[Cell]:
    """Comparisons with the processor, then rows with few options, then short ones first."""
    lengths = setting.lengths
    rows: list[Cell] = []
    forms = [(name, False) for name, kind in MECHANISMS.items() if kind.bidirectional]
    forms += [(name, True) for name, kind in MECHANISMS.items() if kind.causal]
    for (name, causal), tokens, padded, compiled in product(forms, lengths, (False, True), (False, True)):
        given = {"side": name, "tokens": tokens, "causal": causal, "padded": padded, "compiled": compiled}
        rows.append(Cell(work="forward", **given))
        rows += [Cell(work="training", dropout=dropout, **given) for dropout in (0.0, 0.1)]
    rows += [Cell(side=name, work=work, tokens=tokens) for name, work, tokens in product(CORES, PASSES, lengths)]
    rows += [Cell(side=name, work="step", tokens=tokens) for name, tokens in product(STEPS, lengths[:3])]
    rows += [
        Cell(side=name, work=work, tokens=tokens)
        for name, work, tokens in product(WRITERS, ("prefill", "decode"), lengths[:3])
    ]
    rows += [
        Cell(side=name, work=work, tokens=tokens, global_tokens=GLOBAL_TOKENS)
        for name, work, tokens in product(WITH_GLOBALS, PASSES, lengths)
    ]
    checks = [Cell(side=name, work="check", tokens=min(CHECKED, lengths[0]), causal=causal) for name, causal in forms]
    return checks + sorted(rows, key=_importance)


WITH_GLOBALS, GLOBAL_TOKENS = ("longformer", "bigbird"), 16
SECTIONS = {
    "device": Section(title="what the device can do", seconds=60, cells=device_cells),
    "traces": Section(title="profiles, with registers and spills", seconds=160, cells=trace_cells),
    "tiles": Section(title="options for FlexAttention's programs", seconds=200, cells=tile_cells),
    "windows": Section(title="windows by every kernel", seconds=120, cells=window_cells),
    "products": Section(title="queries, keys and values by one product", seconds=100, cells=product_cells),
    "steps": Section(title="training steps of whole models", seconds=120, cells=step_cells),
    "decoding": Section(title="decoding in a CUDA graph", seconds=120, cells=decoding_cells),
    "mechanisms": Section(title="every mechanism", seconds=3600, cells=every_mechanism),
}
"""In the order in which they are measured; all but the last take a quarter of an hour."""


def _importance(cell: Cell) -> tuple[Any, ...]:
    """Lower first."""
    options = cell.padded + bool(cell.dropout) + 2 * cell.compiled + (cell.causal and cell.side in MECHANISMS)
    return options + 2 * (cell.tokens > 65_536), cell.tokens


# Predicting -----------------------------------------------------------------------------------------------------------


def read_predictions(file: Path, device: str | None) -> dict[tuple[Any, ...], float]:
    """Cell → predicted milliseconds on a device."""
    rows = [row for row in finished(file) if device in row["milliseconds"]]
    return {Cell(**row["cell"]).key: row["milliseconds"][device] for row in rows}


def with_tests() -> None:
    """Let the simulated GPU of the tests be imported."""
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "shared"))


def predict(rows: Iterable[Cell], file: Path, setting: Setting, *, budget: float) -> None:
    """Follow layers of mechanisms that the file does not have, on a device that is not there; a row for each, with
    milliseconds of every device that is known. What is compiled is not predicted, nor what nobody can follow."""
    from longspan.hardware import DEVICES

    with_tests()
    from tracing import UnknownNumbers, module_launches

    done, began = {Cell(**row["cell"]).key for row in finished(file)}, time.perf_counter()
    for cell in rows:
        if cell.key in done or cell.side not in MECHANISMS or cell.work not in PASSES:
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


def missing(rows: Iterable[Cell], file: Path) -> list[Cell]:
    """The cells that the file does not have by this way of measuring, each once."""
    done = {Cell(**row["cell"]) for row in finished(file) if row.get("method") == METHOD}
    return [cell for cell in dict.fromkeys(rows) if cell not in done]


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
    """Measure what is not in the file yet until the budget is spent; how many rows are left.

    Raises:
        DeviceLostError: after the row that lost it.
    """
    left, began = missing(rows, file), clock()
    for number, cell in enumerate(left):
        if clock() - began > budget:
            return len(left) - number
        predicted = predictions.get(replace(cell, traced=False).key)
        if predicted is not None and predicted > 1e3 * LONGEST:
            row: dict[str, Any] = {"status": "left out", "reason": f"predicted to take {predicted / 1e3:,.0f} s"}
        else:
            row = measured(cell, setting)
        row |= {"predicted": predicted, "method": METHOD, "machine": machine("cuda" if is_cuda(setting) else "cpu")}
        add_run(file, {"cell": asdict(cell), **row})
        say(f"{words_of(cell)}: {result_of(row)}")
        if any(words in row.get("reason", "") for words in LOST):
            raise DeviceLostError("the device is lost to this process; call again to go on behind this row")
        if is_cuda(setting):
            free(compiled=compiles(cell))
    return 0


def run_sections(
    sections: Sequence[tuple[Section, list[Cell]]],
    file: Path,
    setting: Setting,
    *,
    budget: float,
    predictions: dict[tuple[Any, ...], float],
    compilers: Any = None,
    say: Callable[[str], None] = print,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Measure section after section, each for its share of the budget; how many rows are left.

    Args:
        compilers: a pool of processes that compile what a section times; for two thirds of its time at most.
    """
    began = clock()
    for section, rows in sections:
        cells, begin = missing(rows, file), clock()
        seconds = min(section.seconds, budget - (begin - began))
        if not cells or seconds <= 0:
            continue
        say(f"{section.title}: {len(cells)} rows in {seconds:.0f} s")
        if compilers is not None:
            tasks = [(cell, setting, time.time() + seconds / 2) for cell in cells if compiles(cell)]
            compilers.map_async(compile_once, tasks, chunksize=1).wait(seconds * 2 / 3)
        remaining = seconds - (clock() - begin)
        try:
            run_cells(cells, file, setting, budget=remaining, predictions=predictions, say=say, clock=clock)
        except DeviceLostError as error:
            say(str(error))
            break
    return len(missing([cell for _, rows in sections for cell in rows], file))


def result_of(row: dict[str, Any]) -> str:
    """ "3.21 ms (predicted 2.9)" """
    if "per_second" in row:
        return f"{row['per_second'] / 1e12:.3g} × 10¹² per second"
    if "milliseconds" in row:
        beside = "" if row.get("predicted") is None else f" (predicted {row['predicted']:.3g})"
        return f"{row['milliseconds']:.3g} ms{beside}"
    if "versions" in row:
        return ", ".join(f"{name} {value}" for name, value in row["versions"].items())
    if "forward" in row:
        return f"differs by {row['forward']['largest']:.2g}, in gradients by {row['training']['largest']:.2g}"
    return f"{row['status']}: {row['reason']}"


# The page -------------------------------------------------------------------------------------------------------------


def page(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Tables: a line for each side and its options, a column for each length; then FlexAttention's options, and the
    kernels of profiles."""
    parts = [f"{rows[0]['machine']}. Milliseconds of one run, predicted in brackets."] if rows else ["Nothing yet."]
    for work in ("device", "rate", "check", *PASSES, "step", "prefill", *DECODING):
        chosen = [(Cell(**row["cell"]), row) for row in rows if row["cell"]["work"] == work]
        chosen = [(cell, row) for cell, row in chosen if not cell.options or cell.side not in MECHANISMS]
        if not chosen:
            continue
        lengths = sorted({cell.tokens for cell, _ in chosen})
        lines: dict[str, dict[int, str]] = {}
        for cell, row in chosen:
            name = words_of(cell).replace(f", {cell.work}, {cell.tokens:,} tokens", "")
            lines.setdefault(name, {})[cell.tokens] = result_of(row).replace("(predicted ", "(")
        cells_of = [[name, *(line.get(length, "") for length in lengths)] for name, line in lines.items()]
        parts += [f"## {work}", table(["side", *(f"{length:,}" for length in lengths)], cells_of)]
    options = sorted(tiles_timed(rows, Setting().long), key=lambda each: (each.pattern, each.direction, each[3]))
    if options:
        lines_of = [[*each[:2], each.options or "ours", f"{each.milliseconds:.3g}"] for each in options]
        parts += ["## options of FlexAttention", table(["pattern", "part", "options", "milliseconds"], lines_of)]
    names = ("kernel", "runs", "milliseconds", "registers", "shared", "spilled")
    kernels = [
        [words_of(Cell(**row["cell"])), *(_shown(kernel[name]) for name in names)]
        for row in rows
        for kernel in row.get("kernels", [])[:SHOWN_KERNELS]
    ]
    return [*parts, "## kernels", table(["profile of", *names], kernels)] if kernels else parts


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)[:80].replace("|", "/")


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
    device="cpu", dtype=torch.float32, width=32, heads=2, layers=2, vocabulary=128, written=3,
    side=8, block=4, lengths=(64,), long=64, middle=64, square=32, seconds=0.0, runs=1, compiler="eager",
)  # fmt: skip


def tiles_timed(rows: Iterable[dict[str, Any]], tokens: int) -> list[Timed]:
    """What rows say of candidates, and of our own options (""), by pattern and direction."""
    rows = [row for row in rows if row.get("method") == METHOD and "milliseconds" in row]
    times = {Cell(**row["cell"]): row["milliseconds"] for row in rows}
    found = []
    for name, (direction, work) in product(PATTERNS, zip(DIRECTIONS, PASSES, strict=True)):
        plain = pattern_cell(name, work=work, tokens=tokens)
        own = {cell.options: each for cell, each in times.items() if replace(cell, options="") == plain}
        found += [Timed(name, direction, options, milliseconds) for options, milliseconds in own.items()]
    return found


def print_table(rows: Sequence[dict[str, Any]]) -> int:
    """Print `PROGRAMS` with what is fastest on the device of the rows."""
    majors = [row["versions"]["major"] for row in rows if "major" in row.get("versions", {})]
    if not majors:
        print("--table needs measurements, and the file of --output has none of a GPU; run this script on one")
        return 2
    timed = tiles_timed(rows, Setting().long)
    print(source_of(measured_table(timed, precision="half", generation=9 if majors[-1] >= 9 else 8)))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=540, help="seconds after which no further row begins")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--from", dest="first", choices=[*SECTIONS], default="device", help="the section to begin with")
    parser.add_argument("--only", help="rows of this side alone")
    parser.add_argument("--output", type=Path, default=RESULTS / "gpu.jsonl")
    parser.add_argument("--predicted", type=Path, default=RESULTS / "gpu-predicted.jsonl")
    parser.add_argument("--keep", type=Path, default=Setting().keep, help="folder for programs and traces")
    parser.add_argument("--compilers", type=int, default=COMPILERS, help="processes that compile at once; 0 for none")
    parser.add_argument("--dry", action="store_true", help="small sizes and few lengths")
    parser.add_argument("--predict", action="store_true", help="write predictions, on any machine, and nothing else")
    parser.add_argument("--programs", action="store_true", help="compile the options to try, and nothing else")
    parser.add_argument("--page", action="store_true", help="write the page from what is measured, and nothing else")
    parser.add_argument("--table", action="store_true", help="print the table of options, and nothing else")
    options = parser.parse_args(arguments)
    if options.page:
        print(write_page("gpu", "Every mechanism on a GPU", page(finished(options.output))))
        return 0
    if options.table:
        return print_table(finished(options.output))
    if options.programs:
        with_tests()
        write_needs(NEEDS, (9, 0))
        return 0
    if options.predict:
        rows = [row for row in every_mechanism(Setting()) if options.only in (None, row.side)]
        predict(rows, options.predicted, Setting(), budget=options.budget)
        parts = predicted_page(finished(options.predicted))
        print(write_page("gpu-predicted", "Every mechanism on a GPU, predicted", parts, how="Predicted"))
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"--device is 'cuda', and torch {torch.__version__} sees none; give --device cpu, or --dry with it")
        return 2
    keep = options.keep.absolute()
    os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"] = str(keep / "inductor"), str(keep / "triton")
    setting = replace(DRY if options.dry else Setting(), device=options.device, keep=keep)
    names = list(SECTIONS)
    sections = [
        (section, [cell for cell in section.cells(setting) if options.only in (None, cell.side)])
        for section in map(SECTIONS.__getitem__, names[names.index(options.first) :])
    ]
    given = {"budget": options.budget, "predictions": read_predictions(options.predicted, device_here())}
    if options.compilers:
        with multiprocessing.get_context("spawn").Pool(options.compilers) as compilers:  # ends them at the end
            left = run_sections(sections, options.output, setting, compilers=compilers, **given)
    else:
        left = run_sections(sections, options.output, setting, **given)
    print(f"{left:,} rows are left; call again" if left else "all rows are measured")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
