"""Options for the programs of FlexAttention: which are tried on a GPU, and the table of those that were fastest.

A program has a forward and a backward part with options of their own. What spills registers, or needs more shared
memory than there is, is found without a GPU (`gpu.py --programs`, with the package `triton`) and not tried on one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from gpu_cells import Cell
from longspan.ops.attend import flex
from longspan.ops.attend.flex_options import PROGRAMS, Reads
from measure import add_run, finished

FORWARD = tuple(
    f"fwd_BLOCK_M={queries} fwd_BLOCK_N={keys} fwd_num_warps={warps} fwd_num_stages={stages}"
    for queries, keys, warps, stages in (
        *((128, 64, 8, 3), (64, 64, 4, 3), (128, 64, 4, 3), (64, 64, 4, 2), (128, 128, 8, 2), (128, 32, 8, 3)),
        *((64, 32, 4, 3), (128, 64, 8, 2), (128, 32, 4, 3), (128, 64, 4, 2), (64, 64, 8, 3), (64, 32, 4, 2)),
    )
)
BACKWARD = tuple(
    f"bwd_BLOCK_M1={narrow} bwd_BLOCK_N1={wide} bwd_BLOCK_M2={wide} bwd_BLOCK_N2={narrow} "
    f"bwd_num_warps={warps} bwd_num_stages={stages}"
    for narrow, wide, warps, stages in (
        *((64, 128, 8, 3), (64, 64, 4, 3), (64, 64, 4, 2), (32, 64, 4, 3), (32, 128, 4, 3), (64, 128, 8, 2)),
        *((64, 64, 8, 3), (32, 128, 8, 3), (32, 64, 4, 2)),
    )
)
"""What is tried, what is likely to be fast first."""
MOST_TRIED = 8
"""Candidates of a pattern in one direction."""
PATTERNS: dict[str, tuple[Reads, dict[str, Any]]] = {
    "bigbird": ("tables", {}),
    "longformer, padded": ("tables", {"padded": True}),
    "longformer": ("positions", {}),
    "reformer": ("buckets", {}),
    "fusion": ("products", {}),
}
"""What is tried, by the mechanism's name and options: what its programs read, and the fields of a `Cell`."""
DIRECTIONS = ("fwd", "bwd")
WIDTH = 64
"""Of the heads that are measured, those of a `Setting`."""
GAIN = 0.97
"""Other options must take less than this share of the time of ours, which runs differ by."""


def parsed(options: str) -> dict[str, Any]:
    """ "fwd_BLOCK_M=64 BACKEND=FLASH" → `{"fwd_BLOCK_M": 64, "BACKEND": "FLASH"}`"""
    pairs = (each.split("=") for each in options.split())
    return {name: int(value) if value.isdigit() else value for name, value in pairs}


def pattern_cell(name: str, **fields: Any) -> Cell:
    """A row of one of `PATTERNS`."""
    return Cell(side=name.partition(",")[0], **PATTERNS[name][1], **fields)


@contextmanager
def with_options(cell: Cell) -> Iterator[None]:
    """The programs of a row of `PATTERNS` with its options for one direction, or for both, instead of ours; other rows
    bring their options themselves.

    Raises:
        ArithmeticError: a program did not fit, and something else ran in its place.
    """
    plain = replace(cell, options="", traced=False)
    names = [name for name in PATTERNS if plain == pattern_cell(name, work=cell.work, tokens=cell.tokens)]
    if not cell.options or not names:
        yield
        return
    reads = PATTERNS[names[0]][0]
    rows = {
        (*row, reads): exchanged(PROGRAMS.get((*row, reads), ours), parsed(cell.options))
        for (*row, read), ours in PROGRAMS.items()
        if row[2] == WIDTH and read == "any"
    }
    with (
        mock.patch.dict(PROGRAMS, rows),
        mock.patch.object(flex, "_failed", set()),
        mock.patch.object(flex, "_unstaged", set()),
    ):
        yield
        if flex._failed or flex._unstaged:
            raise ArithmeticError("a program with these options does not fit, so no time is given")


def exchanged(ours: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Our options with those of a direction exchanged for others."""
    directions = {name[:4] for name in options}
    return {name: value for name, value in ours.items() if name[:4] not in directions} | dict(options)


# Without a GPU --------------------------------------------------------------------------------------------------------


def needs_of(name: str, options: str, capability: tuple[int, int]) -> dict[str, Any]:
    """What the programs of one pattern need with some options: the most registers, spilled bytes of a thread, and
    shared memory of a block; nothing where no program takes the options, as training has no program for products.
    `tests/shared` must be on Python's path."""
    import flex_programs
    from longspan.attention import MECHANISMS

    cell, backward = pattern_cell(name, work="forward", tokens=4096, options=options), options.startswith("bwd")
    with with_options(cell):
        config, given = MECHANISMS[cell.side](), PATTERNS[name][1]
        calls = flex_programs.recorded_calls(config, cell.tokens, capability, learns=backward, **given)
    calls = [call for call in calls if parsed(options).items() <= call.options.get("kernel_options", {}).items()]
    calls = [call for call in calls if call.learns or not backward]
    found = [
        flex_programs.resources(flex_programs.programs(call, capability, learns=backward)[-1], capability)
        for call in calls
    ]
    needs = {
        part: max((getattr(each, part) for each in found), default=0) for part in ("registers", "spilled", "shared")
    }
    fits = bool(found) and not needs["spilled"] and needs["shared"] <= flex_programs.SHARED[capability]
    return {"pattern": name, "options": options, "capability": list(capability), **needs, "fits": fits}


def write_needs(file: Path, capability: tuple[int, int]) -> None:
    """A row for each pattern and candidate that the file does not have."""
    done = {(row["pattern"], row["options"]) for row in finished(file)}
    for options, name in product((*FORWARD, *BACKWARD), PATTERNS):
        if (name, options) not in done:
            add_run(file, needs_of(name, options, capability))


def candidates(name: str, file: Path) -> tuple[list[str], list[str]]:
    """Forward and backward options to try for a pattern, ours first: those that are not known not to fit."""
    unfit = {row["options"] for row in finished(file) if row["pattern"] == name and not row["fits"]}
    given = ([each for each in options if each not in unfit] for options in (FORWARD, BACKWARD))
    return tuple(["", *options[:MOST_TRIED]] for options in given)  # pyright: ignore[reportReturnType]


# From what was measured -----------------------------------------------------------------------------------------------


def fastest(times: Mapping[str, Mapping[str, float]]) -> str:
    """The options with the least time, from the times of each pattern that shares a row of the table: the geometric
    mean of their shares of ours, among options that every pattern has run. Ours ("") where nothing gains."""
    common = set.intersection(*(set(own) for own in times.values())) if times else set()
    if "" not in common:
        return ""
    shares = {
        options: statistics.geometric_mean(own[options] / own[""] for own in times.values()) for options in common
    }
    best = min(shares, key=lambda options: (shares[options], options))
    return best if shares[best] < GAIN else ""


class Timed(NamedTuple):
    """A candidate that a device has run: forward alone, or in training, where only the backward part differs."""

    pattern: str
    direction: str
    options: str
    milliseconds: float


def measured_table(
    rows: Sequence[Timed], *, precision: str, generation: int
) -> dict[tuple[str, int, int, str], dict[str, int]]:
    """`PROGRAMS` with the fastest options of each direction, for what the patterns read."""
    table = {row: dict(options) for row, options in PROGRAMS.items()}
    for reads in dict.fromkeys(reads for reads, _ in PATTERNS.values()):
        row = precision, generation, WIDTH, reads
        ours = best = PROGRAMS[row if row in PROGRAMS else (*row[:-1], "any")]
        for direction in DIRECTIONS:
            times: dict[str, dict[str, float]] = {name: {} for name, (own, _) in PATTERNS.items() if own == reads}
            for each in rows:
                if each.direction == direction and each.pattern in times:
                    times[each.pattern][each.options] = each.milliseconds
            best = exchanged(best, parsed(fastest(times)))
        if best != ours:
            table[row] = best
    return dict(sorted(table.items()))


def source_of(table: Mapping[tuple[str, int, int, str], Mapping[str, int]]) -> str:
    """The table as it stands in `flex_options.py`, so that it can be exchanged there."""
    lines = ["PROGRAMS: dict[tuple[str, int, int, str], dict[str, int]] = {"]
    for (precision, generation, width, reads), options in table.items():
        key = f'("{precision}", {generation}, {width}, "{reads}")'
        pairs = [f'"{name}": {n}' for name, n in options.items()]
        line = f"    {key}: {{{', '.join(pairs)}}},"
        if len(line) > 120:
            line = "\n".join([f"    {key}: {{", *(f"        {pair}," for pair in pairs), "    },"])
        lines.append(line)
    return "\n".join([*lines, "}"])
