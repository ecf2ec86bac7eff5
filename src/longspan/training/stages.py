"""The stages of a recipe: each a recipe of its own, checked before the first of them begins."""

from __future__ import annotations

from typing import Any

import torch

from longspan.changes import STAGES, stages_of
from longspan.errors import InputError
from longspan.settings import from_plain, to_plain
from longspan.training.recipe import Recipe
from longspan.training.recipe_checks import check_key, check_recipe, smallest_config

CHANGEABLE = ("task.", "model.attention", "model.stack", "model.new.", "optimisation.")
"""How the keys begin that a stage may change."""
SHARED = ("task.name", "optimisation.train", "optimisation.lora", "optimisation.best_by")
"""Keys among them that are those of all stages."""


def stage_recipes(recipe: Recipe) -> list[Recipe]:
    """One recipe for each stage, the recipe itself where it has none. Each shuffles and drops by a seed of its own."""
    if not recipe.stages:
        return [recipe]
    found = []
    for number, plain in enumerate(stages_of(to_plain(recipe))):
        plain["optimisation"]["seed"] = (plain["optimisation"]["seed"] + number) % 2**32
        try:
            found.append(from_plain(Recipe, plain))
        except InputError as error:
            raise InputError(f"{STAGES}[{number}] cannot be trained: {error}") from None
    return found


def check_whole(recipe: Recipe) -> None:
    """Raise `InputError` for the first thing in a recipe or one of its stages that could not run."""
    check_recipe(recipe)
    for number, changes in enumerate(recipe.stages):
        for key, value in changes.items():
            check_key(key, f"{STAGES}[{number}]")
            _check_changeable(key, value, number)
    found = stage_recipes(recipe)
    if recipe.stages:
        _check_optimisation(recipe, found)
    if recipe.model.new is not None:
        _check_models(found)


def _check_changeable(key: str, value: Any, number: int) -> None:
    if isinstance(value, dict) and f"{key}." in CHANGEABLE:
        raise InputError(
            f"{STAGES}[{number}] gives {key} as a whole; name what changes by dotted path, such as {key}.{_some(value)}"
        )
    if not key.startswith(CHANGEABLE) or key in SHARED:
        raise InputError(
            f"{STAGES}[{number}] changes {key}, which is the same in all stages; a stage may change options of the "
            "task, of attention and stack, dropout and the optimisation"
        )


def _some(value: dict[Any, Any]) -> str:
    return str(next(iter(value), "…"))


def _check_optimisation(recipe: Recipe, stages: list[Recipe]) -> None:
    """Stages are counted in steps, train all weights, and each goes on with the moments of the one before it."""
    if recipe.optimisation.lora is not None:
        raise InputError(f"{STAGES} train all weights one after the other, and optimisation.lora few; leave one out")
    for number, stage in enumerate(stages):
        if stage.optimisation.steps is None:
            raise InputError(
                f"{STAGES}[{number}] has optimisation.epochs, but its length is counted in steps; set "
                "optimisation.steps, and epochs to null"
            )
        if (stage.optimisation.head_learning_rate is None) != (recipe.optimisation.head_learning_rate is None):
            # The moments of AdamW are kept by group and number, which such a rate changes.
            raise InputError(
                f"{STAGES}[{number}] differs from the recipe in whether it has optimisation.head_learning_rate; give "
                "the recipe one (optimisation.learning_rate again, if need be), and change it in the stages"
            )
        try:
            check_recipe(stage, weigh=False)  # all have the weights of the first
        except InputError as error:
            raise InputError(f"{STAGES}[{number}] cannot be trained: {error}") from None


def _check_models(stages: list[Recipe]) -> None:
    """The same weights in all stages, windows that become wider only where there is text for them, and no dilation
    that leaves none."""
    first: dict[str, tuple[int, ...]] = {}
    before: list[Any] = []
    for number, stage in enumerate(stages):
        task = stage.build_task()
        config = smallest_config(stage, task)
        shapes = _shapes(task, config) if len(stages) > 1 else {}
        first = first or shapes
        if changed := sorted(name for name in {**first, **shapes} if first.get(name) != shapes.get(name)):
            raise InputError(
                f"{STAGES}[{number}] changes the weights, such as {changed[0]}; a stage may change windows, lengths "
                "and dropout, but nothing that is trained"
            )
        layers = [config.layer_attention(layer) for layer in range(config.num_hidden_layers)]
        length: int | None = getattr(task, "max_tokens", None)
        if length is not None:
            name = f"{STAGES}[{number}]" if len(stages) > 1 else "the recipe"
            for layer, attention in enumerate(layers):
                _check_reach(name, layer, attention, before[layer] if before else None, length)
        before = layers


def _shapes(task: Any, config: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of a new model's weights, without making them."""
    with torch.device("meta"):
        model = task.model_class()(config)
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def _check_reach(stage: str, layer: int, attention: Any, before: Any, length: int) -> None:
    """Refuse dilation that leaves only a token itself, and wider windows that show nothing more of such a text."""
    reach = attention.reach()
    if max(reach.dilations) >= length > 1:
        raise InputError(
            f"{stage} has dilation={max(reach.dilations)} in layer {layer}, so that some heads see no token but "
            f"their own in task.max_tokens={length}; lower it, or raise task.max_tokens"
        )
    if before is None:
        return
    earlier = before.reach()
    if earlier.left is None or reach.left is None or reach.left <= earlier.left:
        return
    pairs = [each.scores_per_token(length, causal=True) for each in (before, attention)]
    if pairs[0] == pairs[1]:
        raise InputError(
            f"{stage} widens the window of layer {layer} from {earlier.left} to {reach.left} tokens, but a "
            f"text of task.max_tokens={length} has no more to show; raise task.max_tokens in the same stage, or leave "
            "the window"
        )
