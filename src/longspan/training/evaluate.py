"""Score a model on a data set with Trainer's `predict`, and keep every prediction beside the metrics."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer

from longspan.data.rows import SummaryRow
from longspan.errors import InputError
from longspan.tasks.tokenizers import check_tokenizer
from longspan.training.checkpoints import write_atomically
from longspan.training.data import FeatureRows, read_source
from longspan.training.models import open_model
from longspan.training.recipe import Generation, Recipe
from longspan.training.runs import RECIPE, environment
from longspan.training.tokenizers import load_tokenizer


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The outcome of `evaluate`."""

    scores: dict[str, float]
    report: dict[str, Any]
    """Scores with all that is needed to compare them: flavour, data, decoding, versions, seconds."""
    predictions: list[str]
    metrics_file: Path
    predictions_file: Path


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
    output: str | Path | None = None,
) -> Evaluation:
    """Predict every row of a data set, score the predictions, and write both.

    Args:
        folder: what `train` wrote, or any published summarisation checkpoint that Longspan reads.
        data: name of a data set or path of a file.
        split: which part of a named data set.
        limit: only the first rows.
        beams, length_penalty, max_tokens: decoding; None keeps what the model was trained to use.
        batch_size: documents decoded together; it changes the time, not the result.
        output: folder for `<data>-<split>.json` and `.jsonl`; default `evaluation/` in the model's folder.

    Raises:
        InputError: no model there, no rows with references, decoding options for a model that does not generate.
    """
    source = Path(folder)
    task, generation = _settings(source)
    rows = read_source(data, split, limit)
    if not rows:
        raise InputError(f"data {data!r} has no rows with a reference in its split {split!r}; name another one")
    changes = {"beams": beams, "length_penalty": length_penalty, "max_tokens": max_tokens}
    changes = {name: value for name, value in changes.items() if value is not None}
    if changes and not task.generates:
        raise InputError(f"{next(iter(changes))} is set, but a model for {task.name!r} does not generate; leave it out")
    tokenizer = load_tokenizer(source)
    model = _model(source, task)
    check_tokenizer(tokenizer, model.config)
    if generation is None:
        # A published checkpoint: no recipe says how much it reads, so as much as it has positions for.
        task = replace(task, max_source_tokens=min(task.max_source_tokens, model.config.max_position_embeddings))
    if task.generates:
        generation = replace(generation or _generation_of(model), **changes)
        model.generation_config.update(max_length=None, **generation.options())
    began = time.monotonic()
    texts = _predict(task, model, tokenizer, rows, batch_size)
    scores = task.scores(texts, rows)
    report = {
        "scores": scores,
        "flavour": getattr(task, "flavour", ""),
        "model": str(source),
        "task": task.name,
        "data": data,
        "split": split,
        "rows": len(rows),
        "decoding": generation.options() if generation and task.generates else None,
        "seconds": round(time.monotonic() - began, 1),
        "environment": environment(),
    }
    metrics_file, predictions_file = _write(Path(output or source / "evaluation"), report, texts, rows)
    return Evaluation(
        scores=scores, report=report, predictions=texts, metrics_file=metrics_file, predictions_file=predictions_file
    )


def _settings(folder: Path) -> tuple[Any, Generation | None]:
    """The task and the decoding of the recipe beside the model; for a published checkpoint, summarisation as it is."""
    if not folder.is_dir():
        raise InputError(f"model {str(folder)!r} is not a folder; give one that `longspan train` wrote")
    recipe_file = folder / RECIPE
    if not recipe_file.is_file():
        from longspan.tasks.base import task_class

        return task_class("summarization")(), None
    import yaml

    recipe = Recipe.from_dict(yaml.safe_load(recipe_file.read_text(encoding="utf-8")))
    if not (folder / "config.json").is_file():
        raise InputError(f"the run in {str(folder)!r} has not ended; finish it with `longspan train … --resume`")
    return recipe.build_task(), recipe.generation


def _model(folder: Path, task: Any) -> Any:
    model = open_model(folder)
    if not isinstance(model, task.model_class()):
        raise InputError(
            f"model {str(folder)!r} is a {type(model).__name__}; {task.name} needs a {task.model_class().__name__}"
        )
    return model


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


def _predict(task: Any, model: Any, tokenizer: Any, rows: list[SummaryRow], batch_size: int) -> list[str]:
    def features(row: SummaryRow) -> dict[str, Any]:
        return task.features(row, tokenizer)

    with tempfile.TemporaryDirectory() as nothing:
        arguments = Seq2SeqTrainingArguments(
            output_dir=nothing,
            per_device_eval_batch_size=batch_size,
            predict_with_generate=task.generates,
            dataloader_pin_memory=torch.cuda.is_available(),
            remove_unused_columns=False,
            label_names=["labels"],
            report_to="none",
            log_level="error",
        )
        trainer = (Seq2SeqTrainer if task.generates else Trainer)(
            model=model, args=arguments, data_collator=task.collator(tokenizer), processing_class=tokenizer
        )
        model.config.use_cache = True
        predictions = trainer.predict(FeatureRows(rows, features)).predictions  # pyright: ignore[reportArgumentType]
    return task.texts(predictions[0] if isinstance(predictions, tuple) else predictions, rows, tokenizer)


def _write(folder: Path, report: dict[str, Any], texts: list[str], rows: list[SummaryRow]) -> tuple[Path, Path]:
    name = f"{Path(report['data']).name.partition('.')[0]}-{report['split']}"
    lines = [
        json.dumps({"id": row.id, "prediction": text, "references": list(row.references)}, ensure_ascii=False)
        for row, text in zip(rows, texts, strict=True)
    ]
    predictions_file, metrics_file = folder / f"{name}.jsonl", folder / f"{name}.json"
    write_atomically(predictions_file, "".join(f"{line}\n" for line in lines))
    write_atomically(metrics_file, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return metrics_file, predictions_file
