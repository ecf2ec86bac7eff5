"""The model card of a trained model: that of every saved folder, with data, training and scores.

The front matter is the Hub's, with the scores as `model-index`. Sources that are local files appear by their
last name alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan.models.card import ABOUT_LOADING, auto_and_pipeline
from longspan.plain_yaml import read_yaml, write_yaml
from longspan.training.optimisation import Optimisation
from longspan.training.recipe import Recipe
from longspan.training.tokenizers import is_prepared

HEADING = "## How it was trained"


def training_card(card: str, recipe: Recipe, metrics: Mapping[str, Any], model_name: str, tokenizer: Any) -> str:
    """Adds the training to Longspan's card, replacing that of an earlier training.

    Args:
        card: as written by `longspan.models.card`.
        recipe: the trained recipe, with all of its stages.
        metrics: the contents of `metrics.json`.
        model_name: the class of the model.
        tokenizer: the saved tokenizer.
    """
    _, front, text = card.split("---\n", 2)
    task = recipe.stage_recipes[-1].task
    scores = {name.removeprefix("eval_"): value for name, value in metrics["best"].items() if name != "eval_loss"}
    plain = read_yaml(front, "the card") | _index(recipe, scores, auto_and_pipeline(model_name)[1])
    parts = [
        _facts(recipe, metrics),
        _scores(recipe, metrics),
        _preparation(task, tokenizer),
        "The whole recipe is in `recipe.yaml`, the log in `metrics.json`.",
    ]
    section = "\n\n".join([HEADING, *filter(None, parts)])
    before, loading, after = text.partition(ABOUT_LOADING)
    return f"---\n{write_yaml(plain)}---\n{before.partition(HEADING)[0].rstrip()}\n\n{section}\n\n{loading}{after}"


def _index(recipe: Recipe, scores: Mapping[str, float], pipeline: str | None) -> dict[str, Any]:
    """Returns the scores in the Hub's format; empty without scores, or without a name of the model's task."""
    if not scores or pipeline is None:
        return {}
    data, split = _names(recipe.data.validation), recipe.data.validation_split
    results = {
        "task": {"type": pipeline},
        "dataset": {"type": data, "name": data, "split": split},
        "metrics": [{"type": name, "value": value} for name, value in scores.items()],
    }
    return {"model-index": [{"name": recipe.name, "results": [results]}]}


def _facts(recipe: Recipe, metrics: Mapping[str, Any]) -> str:
    data, environment = recipe.data, metrics["environment"]
    last = max(entry["step"] for entry in metrics["history"])
    versions = ", ".join(f"{name} {environment[name]}" for name in ("longspan", "torch", "transformers", "python"))
    lines = {
        "Recipe": f"`{recipe.name}`" + (f": {' '.join(recipe.about.split())}" if recipe.about else ""),
        "Task": f"`{recipe.task.name}`",
        "Training data": _source(data.sources("train"), data.train_split, data.train_rows, data.weights),
        "Validation data": _source(data.validation, data.validation_split, data.validation_rows),
        "Steps": f"{last:,}" + (f" in {len(recipe.stages)} stages" if recipe.stages else ""),
        "Optimisation": _optimisation(recipe.optimisation),
        "Versions": versions,
        "Device": environment["device"],
    }
    return "\n".join(f"- {name}: {text}" for name, text in lines.items())


def _source(sources: Sequence[str], split: str, rows: int | None, weights: Sequence[float] = ()) -> str:
    limit = "" if rows is None else f", at most {rows:,} rows" + (" of each" if weights else "")
    return f"{_names(sources, weights)}, split `{split}`{limit}"


def _names(sources: Sequence[str], weights: Sequence[float] = ()) -> str:
    """Returns the names of sources, without local folders, and their shares of the rows."""
    shares = [f" ({weight / sum(weights):.3g} of the rows)" for weight in weights] or [""] * len(sources)
    names = (Path(source).name if "/" in source or Path(source).exists() else source for source in sources)
    return ", ".join(name + share for name, share in zip(names, shares, strict=True))


def _optimisation(settings: Optimisation) -> str:
    parts = [
        f"{settings.optimizer}, learning rate {settings.learning_rate:g} ({settings.schedule})",
        f"batches of {settings.batch_size:,}",
        "bfloat16" if settings.bf16 else "float32",
        *([f"LoRA of rank {settings.lora.rank}"] if settings.lora is not None else []),
        f"seed {settings.seed}",
    ]
    return ", ".join(parts)


def _scores(recipe: Recipe, metrics: Mapping[str, Any]) -> str:
    rows = [f"| {name.removeprefix('eval_')} | {value:.4g} |" for name, value in metrics["best"].items()]
    intro = f"Scores of the validation data after step {metrics['best_step']:,}, the best by `{_best_by(recipe)}`:"
    return "\n".join([intro, "", "| Score | Value |", "|---|---:|", *rows])


def _best_by(recipe: Recipe) -> str:
    return recipe.stage_recipes[-1].optimisation.best_by


def _preparation(task: Any, tokenizer: Any) -> str:
    """Describes the preparation of texts before they are tokenised, and whether the saved tokenizer includes it."""
    if task.normalizer() is None:
        return ""
    done = "The tokenizer in this folder does that itself, whichever library calls it."
    if not is_prepared(tokenizer, task.normalizer()):
        done = (
            "The tokenizer in this folder does **not** do that: Longspan does it, and whoever uses the model without "
            "Longspan must do it first, or the scores are others."
        )
    return f"Text is prepared before it is split into tokens: {task.preparation} {done}"
