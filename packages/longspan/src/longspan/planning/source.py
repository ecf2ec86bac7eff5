"""The model of a plan: configuration and class of a model folder, or of the model that a recipe creates."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longspan.errors import InputError
from longspan.settings import show

TOKENS = 16_384
"""Tokens of a row if neither a recipe nor a position table defines the number."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A model that need not exist.

    Attributes:
        name: its display name.
        config: its `LongspanConfig`.
        model_class: its class.
        tokens: default tokens of a row: a recipe's longest input, otherwise the model's number of positions, up to
            `TOKENS`.
        optimizer: the recipe's optimizer, otherwise AdamW.
    """

    name: str
    config: Any
    model_class: Any
    tokens: int = TOKENS
    optimizer: str = "adamw"

    def with_attention(self, spec: Any) -> Planned:
        """Returns a copy with another mechanism in every layer."""
        fields = {**self.config.to_dict(), "attention": spec}
        return replace(self, config=type(self.config).from_dict(fields))


def open_planned(source: str, tokens: int | None = None, changes: Sequence[str] = ()) -> Planned:
    """Opens the model of a folder, or of a recipe: a file that ends in .yaml, or the name of one in the package.

    `tokens` is the number of tokens per row; None uses the model's own length. `changes` are those of the recipe,
    "key=value".

    Raises:
        InputError: there is neither; the recipe starts from a missing model; the model is too short; changes of a
            model, or invalid ones of a recipe.
    """
    folder = Path(os.path.expanduser(source))
    is_model = (folder / "config.json").is_file()
    if folder.is_dir() and not is_model:
        raise InputError(f"folder {source!r} has no config.json, so it holds no model; name one that does, or a recipe")
    if is_model and changes:
        raise InputError(f"{changes[0]!r} changes a recipe, and {source!r} is a model; leave it out")
    planned = _of_folder(folder) if is_model else _of_recipe(source, changes)
    longest = planned.config.max_position_embeddings
    is_bounded = planned.config.position_embedding in ("learned", "axial")
    if tokens is None:
        return replace(planned, tokens=min(planned.tokens, longest)) if is_bounded else planned
    if is_bounded and tokens > longest:
        longer = f"make the model longer with `longspan lengthen {source} --max-tokens {tokens} --output DIR`"
        raise InputError(
            f"--tokens is {tokens:,} but {source!r} has positions for {longest:,}; lower it, or "
            + (longer if is_model else f"add model.max_tokens={tokens}")
        )
    return replace(planned, tokens=tokens)


def _of_folder(folder: Path) -> Planned:
    from longspan import models
    from longspan.checkpoints.loading import load_model
    from longspan.models import LongspanConfig, LongspanModel
    from longspan.models.heads import HEADS

    if '"longspan"' not in (folder / "config.json").read_text(encoding="utf-8"):
        model = load_model(folder)  # a published model is converted
        return Planned(name=str(folder), config=model.config, model_class=type(model))
    config = LongspanConfig.from_pretrained(folder)
    name = next(iter(config.architectures or ()), "")
    known = name in models.__all__ or name in {spec.model for spec in HEADS.values()}
    return Planned(name=str(folder), config=config, model_class=getattr(models, name) if known else LongspanModel)


def _of_recipe(source: str, changes: Sequence[str]) -> Planned:
    from longspan.training.recipe_file import load_recipe

    return replace(planned_recipe(load_recipe(source, changes)), name=source)


def planned_recipe(recipe: Any) -> Planned:
    """Returns the model of a recipe.

    Raises:
        InputError: the recipe starts from a missing model.
    """
    from longspan.training.models import check_start, new_config, published_model

    task = recipe.task
    if recipe.model.source is not None:
        check_start(recipe.model, recipe.tokenizer)
        start = Path(os.path.expanduser(recipe.model.source))
        if not (start / "config.json").is_file():
            raise InputError(
                f"recipe {show(recipe.name)} starts from {recipe.model.source!r}, which is no folder here; name the "
                "folder of a model, or give the recipe with model.from set to one"
            )
        config = published_model(task, recipe.model, start).config
    else:
        config = new_config(task, recipe.model, recipe.tokenizer.train or 32_768)
    tokens = task.input_tokens or recipe.model.max_tokens or TOKENS
    return Planned(
        name=recipe.name,
        config=config,
        model_class=task.model_class(),
        tokens=tokens,
        optimizer=recipe.optimisation.optimizer,
    )
