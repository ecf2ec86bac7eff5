"""Score a model on a data set by its task's metric, and keep every prediction beside the scores."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longspan.errors import InputError
from longspan.tasks.base import Outcome, task_class
from longspan.tasks.tokenizers import check_tokenizer
from longspan.training.checkpoints import write_atomically
from longspan.training.models import open_model
from longspan.training.recipe import Generation, Recipe
from longspan.training.recipe_file import RECIPE
from longspan.training.runs import environment
from longspan.training.tokenizers import load_tokenizer

TASK_OF_MODEL = {
    "LongspanForConditionalGeneration": "summarization",
    "LongspanForSentenceScoring": "extraction",
    "LongspanForMaskedLM": "masked_lm",
    "LongspanForNaturalQuestions": "natural_questions",
}
"""What a model is scored on when no recipe lies beside it."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The outcome of `evaluate`."""

    scores: dict[str, float]
    report: dict[str, Any]
    """Scores with all that is needed to compare them: flavour, data, decoding, versions, seconds."""
    lines: list[dict[str, Any]]
    """One JSON object per row, as in `predictions_file`."""
    metrics_file: Path
    predictions_file: Path
    files: list[Path]
    """What else was written, such as predictions in an official format."""

    @property
    def predictions(self) -> list[Any]:
        """The field `prediction` of each line."""
        return [line["prediction"] for line in self.lines]


def evaluate(
    folder: str | Path,
    data: str,
    *,
    split: str = "validation",
    limit: int | None = None,
    beams: int | None = None,
    length_penalty: float | None = None,
    max_tokens: int | None = None,
    batch_size: int = 1,
    on_error: str = "raise",
    output: str | Path | None = None,
) -> Evaluation:
    """Predict every row of a data set, score the predictions, and write both.

    Args:
        folder: what `train` wrote, or any published checkpoint that Longspan reads.
        data: name of a data set or path of a file.
        split: which part of a named data set.
        limit: only the first rows.
        beams, length_penalty, max_tokens: decoding; None keeps what the model was trained to use.
        batch_size: documents decoded together; it changes the time, not the result.
        on_error: "skip" passes over corrupt rows and says in the log how many there were; "raise" stops at the first.
        output: folder for `<data>-<split>.json` and `.jsonl`; default `evaluation/` in the model's folder.

    Raises:
        InputError: no model there, no rows that can be scored, decoding options for a model that does not generate.
    """
    source = Path(folder)
    changes = {"beams": beams, "length_penalty": length_penalty, "max_tokens": max_tokens}
    changes = {name: value for name, value in changes.items() if value is not None}
    task, model, generation = _open(source)
    if changes and not task.generates:
        raise InputError(f"{next(iter(changes))} is set, but a model for {task.name!r} does not generate; leave it out")
    rows = task.read(data, split, limit, on_error=on_error)
    if not rows:
        raise InputError(f"data {data!r} has no rows that {task.name!r} can score in its split {split!r}; name another")
    tokenizer = load_tokenizer(source)
    check_tokenizer(tokenizer, model.config)
    if task.generates:
        generation = replace(generation or _generation_of(model), **changes)
        model.generation_config.update(max_length=None, **generation.options())
    model.config.use_cache = True
    began = time.monotonic()
    outcome = task.evaluate(model, tokenizer, rows, batch_size=batch_size)
    report = {
        "scores": outcome.scores,
        "flavour": outcome.flavour,
        "model": str(source),
        "task": task.name,
        "data": data,
        "split": split,
        "rows": len(outcome.lines) or len(rows),
        "decoding": generation.options() if generation and task.generates else None,
        "seconds": round(time.monotonic() - began, 1),
        "environment": environment(),
    }
    return _write(Path(output or source / "evaluation"), report, outcome)


def _open(folder: Path) -> tuple[Any, Any, Generation | None]:
    """The task, the model and the decoding: by the recipe beside it, or else by what kind of model it is."""
    if not folder.is_dir():
        raise InputError(f"model {str(folder)!r} is not a folder; give one that `longspan train` wrote")
    recipe_file = folder / RECIPE
    if recipe_file.is_file():
        import yaml

        recipe = Recipe.from_dict(yaml.safe_load(recipe_file.read_text(encoding="utf-8")))
        if not (folder / "config.json").is_file():
            raise InputError(f"the run in {str(folder)!r} has not ended; finish it with `longspan train … --resume`")
        task, model = recipe.build_task(), open_model(folder)
        if not isinstance(model, task.model_class()):
            raise InputError(
                f"model {str(folder)!r} is a {type(model).__name__}; {task.name} needs a {task.model_class().__name__}"
            )
        return task, model, recipe.generation
    model = open_model(folder)
    kind = type(model).__name__
    if kind not in TASK_OF_MODEL:
        raise InputError(
            f"model {str(folder)!r} is a {kind}, which belongs to no task; give one of {', '.join(TASK_OF_MODEL)}"
        )
    # No recipe says how much it reads, so as much as it has positions for.
    return task_class(TASK_OF_MODEL[kind])().fitted(model.config), model, None


def _generation_of(model: Any) -> Generation:
    """What a checkpoint without a recipe uses by itself."""
    config = model.generation_config
    return Generation(
        beams=config.num_beams or 1,
        length_penalty=1.0 if config.length_penalty is None else config.length_penalty,
        no_repeat_ngram=config.no_repeat_ngram_size or 0,
        max_tokens=min(
            config.max_new_tokens or config.max_length or Generation.max_tokens,
            model.config.max_decoder_position_embeddings,
        ),
        min_tokens=config.min_new_tokens or config.min_length or 0,
    )


def _write(folder: Path, report: dict[str, Any], outcome: Outcome) -> Evaluation:
    name = f"{Path(report['data']).name.partition('.')[0]}-{report['split']}"
    predictions_file, metrics_file = folder / f"{name}.jsonl", folder / f"{name}.json"
    lines = (json.dumps(line, ensure_ascii=False) for line in outcome.lines)
    write_atomically(predictions_file, "".join(f"{line}\n" for line in lines))
    files = []
    for other, content in outcome.files.items():
        files.append(folder / f"{name}-{other}")
        values = content if other.endswith(".jsonl") else [content]
        write_atomically(files[-1], "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values))
    write_atomically(metrics_file, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return Evaluation(
        scores=outcome.scores,
        report=report,
        lines=outcome.lines,
        metrics_file=metrics_file,
        predictions_file=predictions_file,
        files=files,
    )
