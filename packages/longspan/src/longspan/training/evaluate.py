"""Evaluates a model on a data set with its task's metric, and saves every prediction with the scores."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from longspan.changes import assign
from longspan.checkpoints.loading import check_tokenizer, load_model, load_tokenizer
from longspan.devices import check_place, placed
from longspan.errors import InputError
from longspan.files import output_folder, write_whole
from longspan.models.heads import HEADS
from longspan.settings import (
    BatchSize,
    Beams,
    Count,
    LengthPenalty,
    NewTokens,
    Split,
    check_arguments,
    from_plain,
    show,
    to_plain,
)
from longspan.stacks import stack_config
from longspan.tasks import RECIPE, build_task
from longspan.tasks.base import Outcome
from longspan.training.recipe import Recipe
from longspan.training.run_folder import environment
from longspan.training.sections import Generation, Source
from longspan.training.shipped import read_recipe

WRITERS = {
    "LongspanForConditionalGeneration": "summarization",
    "LongspanForPrefixLM": "summarization",
    "LongspanForCausalLM": "language_model",
}
"""The task of a model with a decoder that has no recipe; for others the head defines it."""


ENDING = re.compile(r"\.(jsonl|ndjson|json|txt|csv|tsv|parquet|conll)(\.gz|\.xz)?$", re.IGNORECASE)
"""Suffixes of files that are removed in the names of their scores."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of `evaluate`."""

    scores: dict[str, float]
    report: dict[str, Any]
    """Scores with all that is needed to compare them: flavour, data, decoding, versions, checksums of the files. The
    same call returns the same report.
    """
    seconds: float
    """Duration of predicting and scoring."""
    lines: list[dict[str, Any]]
    """One JSON object per row, as in `predictions_file`."""
    metrics_file: Path
    predictions_file: Path
    files: list[Path]
    """Further files, such as predictions in an official format."""

    @property
    def predictions(self) -> list[Any]:
        """The field `prediction` of each line."""
        return [line["prediction"] for line in self.lines]


def evaluate(
    folder: str | Path,
    data: Source,
    *,
    split: Split = "validation",
    limit: Count | None = None,
    beams: Beams | None = None,
    length_penalty: LengthPenalty | None = None,
    max_tokens: NewTokens | None = None,
    batch_size: BatchSize = 1,
    on_error: Literal["raise", "skip"] = "raise",
    output: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> Evaluation:
    """Predicts every row of a data set, scores the predictions, and writes both.

    Args:
        folder: output of `train`, or any published checkpoint that Longspan can load.
        data: name of a data set or path of a file.
        split: part of a named data set.
        limit: only the first rows.
        beams, length_penalty, max_tokens: decoding; by default as in training.
        batch_size: documents decoded together; it changes the time, not the result.
        on_error: "skip" skips corrupt rows and logs their number; "raise" stops at the first.
        options: changed options of the task, by dotted path: `{"evaluation.mode": "disjoint"}`, with or without
            `task.` before it.
        device: PyTorch device of the model ("cpu", "cuda", "cuda:1", "mps"); None is the CPU.
        dtype: dtype of its weights: "float32", "bfloat16" or "float16"; None is float32.
        output: folder for `<data>-<split>.json` and `.jsonl`; default `evaluation/` in the model's folder. Scoring the
            same data again replaces them; other data of the same name gets other file names.

    Raises:
        InputError: an argument out of range, no model there, no rows that can be scored, decoding options for a model
            that does not generate, a folder that cannot be written. Nothing is written then.
    """
    others = ("folder", "output", "options")
    check_arguments(evaluate, {name: value for name, value in locals().items() if name not in others})
    source = Path(folder)
    changes = {"beams": beams, "length_penalty": length_penalty, "max_tokens": max_tokens}
    changes = {name: value for name, value in changes.items() if value is not None}
    check_place(device, dtype)
    task, model, generation = _open(source, dict(options or {}))
    placed(model, device, dtype)
    generation = _decoding(task, model, generation, changes)
    # Check everything about the output before predicting.
    target = output_folder(source / "evaluation" if output is None else output)
    name = _free_name(target, data, split)
    rows = task.read(data, split, limit, on_error=on_error)
    if not rows:
        raise InputError(f"data {data!r} has no rows that {task.name!r} can score in its split {split!r}; name another")
    tokenizer = load_tokenizer(source)
    check_tokenizer(tokenizer, model.config)
    if generation is not None:
        model.generation_config.update(max_length=None, **generation.options())
    model.config.use_cache = True
    began = time.monotonic()
    outcome = task.evaluate(model, tokenizer, rows, batch_size=batch_size)
    report = {
        "scores": outcome.scores,
        "flavour": outcome.flavour,
        "mode": outcome.mode,
        "model": str(source),
        "task": task.name,
        "data": data,
        "source": _identity(data),
        "split": split,
        "rows": len(outcome.lines) or len(rows),
        "decoding": generation.options() if generation is not None else None,
        "environment": environment(),
    }
    return _write(target, name, report, outcome, time.monotonic() - began)


def _open(folder: Path, options: Mapping[str, Any]) -> tuple[Any, Any, Generation | None]:
    """Returns the task with these options changed, the model and the decoding: from its recipe, or by the
    kind of model.
    """
    if not folder.is_dir():
        raise InputError(f"model {str(folder)!r} is not a folder; give one that `longspan train` wrote")
    recipe_file = folder / RECIPE
    if recipe_file.is_file():
        recipe = from_plain(Recipe, read_recipe(recipe_file)).stage_recipes[-1]
        if not (folder / "config.json").is_file():
            raise InputError(f"the run in {str(folder)!r} has not ended; finish it with `longspan train … --resume`")
        task, model = _changed(to_plain(recipe.task), options), load_model(folder)
        if not isinstance(model, task.model_class()):
            raise InputError(
                f"model {str(folder)!r} is a {type(model).__name__}; {task.name} needs a {task.model_class().__name__}"
            )
        task.check_model(model.config)
        return task, model, recipe.generation
    model = load_model(folder)
    kind = type(model).__name__
    tasks = {**WRITERS, **{spec.model: spec.task for spec in HEADS.values() if spec.task is not None}}
    if kind not in tasks:
        raise InputError(f"model {str(folder)!r} is a {kind}, which belongs to no task; give one of {', '.join(tasks)}")
    name = tasks[kind]
    if name == "language_model" and stack_config(model.config.stack).returns().keeps_memory:
        name = "language_stream"
    # Without a recipe, the limit is the number of positions.
    return _changed({"name": name}, options).fitted(model.config), model, None


def _changed(task: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Returns the task of a recipe with changed options, by their paths in the task or in a recipe."""
    plain = deepcopy(dict(task))
    for key, value in options.items():
        assign(plain, key.removeprefix("task."), value)
    if plain["name"] != task["name"]:
        raise InputError(f"task.name is {show(plain['name'])}, but the model is for {task['name']}; leave it out")
    return build_task(plain)


def _decoding(task: Any, model: Any, generation: Generation | None, changes: dict[str, Any]) -> Generation | None:
    """Returns the decoding of a generative model: as in training, or by default its own, with the changes
    of the call.
    """
    if not task.generates:
        if changes:
            raise InputError(
                f"{next(iter(changes))} is set, but a model for {task.name!r} does not generate; leave it out"
            )
        return None
    generation = generation or _generation_of(model)
    if changes:
        longest = changes.get("max_tokens", generation.max_tokens)
        generation = replace(generation, **changes, min_tokens=min(generation.min_tokens, longest))
    generation.check_room(model.config)
    return generation


def _generation_of(model: Any) -> Generation:
    """Returns the generation options of a checkpoint without a recipe."""
    config = model.generation_config
    longest = min(
        config.max_new_tokens or config.max_length or Generation.max_tokens,
        model.config.max_decoder_position_embeddings,
    )
    return Generation(
        beams=config.num_beams or 1,
        length_penalty=1.0 if config.length_penalty is None else config.length_penalty,
        no_repeat_ngram=config.no_repeat_ngram_size or 0,
        max_tokens=longest,
        min_tokens=min(config.min_new_tokens or config.min_length or 0, longest),
    )


def _identity(data: str) -> str:
    """Returns an identity of a source among others of the same name: its path, or the name if it is no path."""
    return str(Path(data).resolve()) if Path(data).exists() else data


def _free_name(folder: Path, data: str, split: str) -> str:
    """Returns the prefix of the files' names: `<data>-<split>`, with a digest if another source has that name."""
    stem = ENDING.sub("", Path(data).name)
    plain = re.sub(r"[^\w.+-]", "_", f"{stem[:80].strip('.') or 'data'}-{split}")
    digest = hashlib.blake2b(_identity(data).encode(), digest_size=4).hexdigest()
    for name in (plain, f"{plain}-{digest}"):
        files = [folder / f"{name}.json", folder / f"{name}.jsonl"]
        if in_the_way := next((file for file in files if file.exists() and not file.is_file()), None):
            raise InputError(f"output {str(in_the_way)!r} is no file, so the scores cannot be written; remove it")
        if not any(file.exists() for file in files) or _source_of(files[0]) == _identity(data):
            return name
    return f"{plain}-{digest}"


def _source_of(metrics_file: Path) -> str | None:
    try:
        return json.loads(metrics_file.read_text(encoding="utf-8"))["source"]
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(folder: Path, name: str, report: dict[str, Any], outcome: Outcome, seconds: float) -> Evaluation:
    """Writes scores, predictions and further files. The scores come first, with checksums of all the others: if a
    process is killed between two files, the next one recognises them and writes all again.
    """
    predictions_file, metrics_file = folder / f"{name}.jsonl", folder / f"{name}.json"
    texts = {predictions_file: _lines(outcome.lines)}
    files = []
    for other, content in outcome.files.items():
        files.append(folder / f"{name}-{other}")
        ready = isinstance(content, str)
        texts[files[-1]] = content if ready else _lines(content if other.endswith(".jsonl") else [content])
    report = {**report, "files": {file.name: _digest(text) for file, text in texts.items()}}
    write_whole({metrics_file: json.dumps(report, indent=2, ensure_ascii=False) + "\n", **texts})
    return Evaluation(
        scores=outcome.scores,
        report=report,
        seconds=seconds,
        lines=outcome.lines,
        metrics_file=metrics_file,
        predictions_file=predictions_file,
        files=files,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _lines(values: list[Any]) -> str:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
