"""Settings of a comparison, validated before anything runs; its cells and their results.

A cell is a mechanism measured at one length, or trained with one seed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from longspan.attention import MECHANISMS
from longspan.compare.probes import PROBES
from longspan.compare.skeleton import Skeleton, config_of, kind_of
from longspan.errors import InputError
from longspan.files import write_whole
from longspan.imports import load_plugins
from longspan.plain_yaml import read_yaml
from longspan.settings import BatchSize, Count, Range, Whole, check, entry, from_plain, show, show_key, to_plain
from longspan.stacks import STACKS, stack_config

Kind = Literal["speed", "quality"]
Status = Literal["done", "refused", "failed", "left out"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Everything that determines a cell's result, except the machine.

    Attributes:
        kind: "speed" measures tokens per second and memory, "quality" trains and scores.
        task: name of the probe.
        mechanism: name of the mechanism, or of a stack with its own attention.
        options: of the mechanism.
        label: its name in the comparison; the default is the mechanism's name.
        tokens: of a row.
        rows: in a batch.
        skeleton: the model around the attention.
        device: "cpu" or "cuda".
        seed: of weights and training rows.
        steps: optimizer steps; 0 if nothing is trained.
        learning_rate: of AdamW, after a warm-up of a tenth of the steps; it then decreases to 0.
        held_out: number of rows that are scored.
    """

    kind: Kind
    task: str
    mechanism: str
    options: dict[str, Any] = field(default_factory=dict)
    tokens: Count
    rows: Count
    skeleton: Skeleton = field(default_factory=Skeleton)
    device: str = "cpu"
    seed: Whole = 0
    steps: Whole = 0
    learning_rate: float = 3e-3
    held_out: Whole = 0
    label: str = ""

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "label", self.label or self.mechanism)

    @property
    def name(self) -> str:
        """The name of its files, which is unique in the comparison."""
        what = f"{self.tokens}x{self.rows}" if self.kind == "speed" else f"seed{self.seed}"
        return f"{self.label}-{self.kind}-{what}"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a cell.

    Attributes:
        cell: the cell.
        status: "done"; "refused" by the mechanism; "failed"; "left out" for lack of time.
        reason: for all but "done", a short sentence.
        seconds: of work, without starting the process.
        wall: seconds including the start.
        numbers: measurements: `parameters`, `train_tokens_per_second`, `score`, …
        words: descriptions: `form`, `mechanism`, `machine`.
        by_distance: upper end of a range of distances → correct answers, and answers.
    """

    cell: Cell
    status: Status
    reason: str = ""
    seconds: float = 0.0
    wall: float = 0.0
    numbers: dict[str, Any] = field(default_factory=dict)
    words: dict[str, Any] = field(default_factory=dict)
    by_distance: dict[str, Any] = field(default_factory=dict)


def write_result(result: Result, file: Path) -> None:
    """Write a result atomically."""
    write_whole({file: json.dumps(to_plain(result), indent=1)})


def read_result(file: Path) -> Result | None:
    """Read the result in a file; returns `None` if there is none, or it has another format."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return from_plain(Result, data) if isinstance(data, Mapping) else None
    except (OSError, ValueError):  # missing, damaged, or of another version: the cell is run again
        return None


Steps = Annotated[int, Range(1, 100_000_000)]
Seeds = Annotated[int, Range(1, 1000)]
BUDGET = 300.0
"""Seconds, if neither a budget nor a number of steps is specified."""
LENGTHS = (512, 2048, 8192)
"""Default lengths at which speed and memory are measured besides the task's own."""
MOST_TOKENS = 2**24
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TIME = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")
_SECONDS = (3600, 60, 1)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One comparison: several mechanisms on one task.

    Attributes:
        mechanisms: names of mechanisms, or of stacks with their own attention; empty means all. `LABEL:NAME` compares
            one under a label, so that it can occur several times with different options.
        options: label, or name if there is none → options that differ from the defaults.
        task: name of the probe.
        tokens: length of the task's rows.
        lengths: at which speed and memory are measured, besides the task's own.
        seeds: number of trainings of each mechanism: seeds 1, 2, …
        steps: optimizer steps, the same for all; `None` lets the budget decide.
        budget: seconds for the whole comparison; `None` with `steps` is unlimited.
        rows: in a batch of training.
        learning_rate: of AdamW.
        held_out: number of rows that are scored.
        skeleton: the model around the attention.
        device: "cpu" or "cuda"; empty uses CUDA if it is available.
    """

    mechanisms: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    task: str = "recall"
    tokens: Annotated[int, Range(1, MOST_TOKENS)] = 1024
    lengths: tuple[Annotated[int, Range(1, MOST_TOKENS)], ...] = LENGTHS
    seeds: Seeds = 1
    steps: Steps | None = None
    budget: Annotated[float, Range(1, 1e8)] | None = None
    rows: BatchSize = 4
    learning_rate: Annotated[float, Range(above=0, maximum=10)] = 3e-3
    held_out: Count = 128
    skeleton: Skeleton = field(default_factory=Skeleton)
    device: Literal["", "cpu", "cuda"] = ""

    def __post_init__(self) -> None:
        """Set the defaults of mechanisms, budget and device, and validate all settings.

        Raises:
            InputError: a setting is unknown or out of range, or there are too few tokens for the task.
        """
        load_plugins()
        check(self)
        entry(PROBES, self.task, "task")(self.tokens)
        stack_config(self.skeleton.stack)
        import torch

        has = torch.cuda.is_available()
        if self.device == "cuda" and not has:
            raise InputError("device is 'cuda', but torch sees no CUDA device here; leave it out, or choose 'cpu'")
        object.__setattr__(self, "device", self.device or ("cuda" if has else "cpu"))
        if self.steps is not None and self.budget is not None:
            raise InputError("steps and budget both set the length of training; give one of them")
        if self.steps is None and self.budget is None:
            object.__setattr__(self, "budget", BUDGET)
        object.__setattr__(self, "mechanisms", tuple(dict.fromkeys(self.mechanisms)) or comparable())
        labels = self.labels
        for label, options in self.options.items():
            if label not in labels:
                raise InputError(
                    f"options are given for {show(label)}, which is not compared; name it in mechanisms too"
                )
            if not isinstance(options, Mapping) or "mechanism" in options:
                raise InputError(
                    f"options of {show(label)} are {show(options)}; give a mapping of options alone, and another "
                    "mechanism in mechanisms, as LABEL:NAME"
                )
            config_of({"mechanism": labels[label], **options})

    @cached_property
    def labels(self) -> dict[str, str]:
        """Label → mechanism, of all that are compared."""
        return labels_of(self.mechanisms)

    def curve_lengths(self) -> list[int]:
        """The lengths of the curves of speed and memory, increasing, as long as the task has rows of them."""
        least = PROBES[self.task].least
        return sorted({length for length in (*self.lengths, self.tokens) if length >= least})

    def speed(self, label: str, tokens: int, rows: int) -> Cell:
        """Returns the cell that measures a label at a length."""
        return Cell(kind="speed", tokens=tokens, rows=rows, **self._shared(label))

    def quality(self, label: str, seed: int, steps: int) -> Cell:
        """Returns the cell that trains and scores a label with one seed and number of steps."""
        return Cell(
            kind="quality",
            tokens=self.tokens,
            rows=self.rows,
            seed=seed,
            steps=steps,
            learning_rate=self.learning_rate,
            held_out=self.held_out,
            **self._shared(label),
        )

    def _shared(self, label: str) -> dict[str, Any]:
        return {
            "task": self.task,
            "mechanism": self.labels[label],
            "label": label,
            "options": self.options.get(label, {}),
            "skeleton": self.skeleton,
            "device": self.device,
        }


def seconds_of(budget: str) -> float:
    """Parse `"5m"`, `"90s"`, `"1h30m"` or a number of seconds.

    Raises:
        InputError: the format is invalid, or the time is 0.
    """
    match = _TIME.fullmatch(budget.strip().lower())
    parts = [float(part) if part else 0.0 for part in match.groups()] if match else []
    seconds = sum(part * unit for part, unit in zip(parts, _SECONDS, strict=False))
    if not 1 <= seconds <= 1e8:
        raise InputError(f"budget is {show(budget)}; give a time such as 90s, 5m or 1h30m")
    return seconds


def comparable() -> tuple[str, ...]:
    """Returns the default mechanisms: all mechanisms, and stacks with their own attention."""
    return (*MECHANISMS, *(name for name, kind in STACKS.items() if kind.own_attention is not None))


def labels_of(mechanisms: Iterable[str]) -> dict[str, str]:
    """Parse `("full", "near:longformer")` to label → mechanism; the default label is the name.

    Raises:
        InputError: a mechanism is unknown; a label cannot be a file name, occurs twice, or is the name of another
            mechanism.
    """
    labels: dict[str, str] = {}
    for text in mechanisms:
        label, _, name = text.rpartition(":")
        label = label if ":" in text else name
        kind_of(name)
        if not _LABEL.fullmatch(label):
            raise InputError(f"label {show(label)} of {show(text)} must be of letters, digits, '-' and '_'")
        if label != name and label in comparable():
            raise InputError(f"label {show(label)} of {show(text)} is the name of another mechanism; choose another")
        if label in labels:
            raise InputError(f"{show(label)} is compared twice; give one of them another label, as 'other:{name}'")
        labels[label] = name
    return labels


def names_of(text: str, what: str) -> tuple[str, ...]:
    """Parse `"a,b"` to names.

    Raises:
        InputError: there are none.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise InputError(f"{what} is {show(text)} and names nothing; give names with commas between them")
    return names


def lengths_of(text: str) -> tuple[int, ...]:
    """Parse `"512,2048"` to lengths; `512-100000` means 512, doubled while it is smaller than the last, and the last.

    Raises:
        InputError: the format is invalid.
    """
    lengths: list[int] = []
    for part in names_of(text, "lengths"):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 20 or not int(first):
            raise InputError(f"lengths is {show(text)}; give tokens such as 512,4096 or 512-65536")
        length, end = int(first), int(last) if dash else int(first)
        if length > end:
            raise InputError(f"lengths is {show(text)}, where {show(part)} is empty; write the lower number first")
        if end > MOST_TOKENS:
            raise InputError(f"lengths is {show(text)}; {end} is more than {MOST_TOKENS:,} tokens; give a lower number")
        while length < end:
            lengths.append(length)
            length *= 2
        lengths.append(end)
    return tuple(lengths)


def options_of(changes: list[str]) -> dict[str, dict[str, Any]]:
    """Parse `["longformer.left_tokens=64"]` to mechanism or label → options.

    Raises:
        InputError: the format is invalid.
    """
    options: dict[str, dict[str, Any]] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        mechanism, dot, option = key.partition(".")
        if not (equals and dot and mechanism and option):
            raise InputError(
                f"option {show(change)} is not of the form MECHANISM.OPTION=VALUE, or LABEL.OPTION=VALUE where there "
                "is a label"
            )
        options.setdefault(mechanism, {})[option] = read_yaml(text, f"the value of {show_key(key)}")
    return options
