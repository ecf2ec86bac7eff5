"""What can be wrong in a recipe beyond single values, found before anything is read, made or written."""

from __future__ import annotations

import inspect
import math
import os
from dataclasses import fields, is_dataclass
from fnmatch import fnmatchcase
from types import UnionType
from typing import Any, Union, get_args, get_origin

from longspan.errors import InputError
from longspan.settings import hints_of, join, key_of, near, show
from longspan.training.adapters import check_adapters
from longspan.training.optimisation import Optimisation
from longspan.training.recipe import Generation, Recipe
from longspan.training.shipped import EXTENDS


def check_recipe(recipe: Recipe, *, weigh: bool = True) -> None:
    """Raise `InputError` for the first thing in a recipe that could not run, wherever it is; `weigh` says whether the
    memory that a new model takes is one of them."""
    task = recipe.build_task()
    for key in recipe.smoke:
        check_key(key, "smoke")
    check_schedule(recipe.optimisation)
    check_reports(recipe.optimisation.report_to)
    check_adapters(recipe.optimisation.lora, new=recipe.model.new is not None)
    best, known = recipe.optimisation.best_by, ("loss", *task.score_names)
    if not any(fnmatchcase(best, name) for name in known):
        raise InputError(f"optimisation.best_by is {show(best)}, no score of {task.name}; {near(best, list(known))}")
    if recipe.model.new is not None:
        _check_new(recipe, task, weigh)
    elif recipe.model.attention is not None:
        _check_attention(recipe.model.attention)


def check_key(key: Any, path: str) -> None:
    """Raise `InputError` for a dotted key that no recipe has."""
    if key == EXTENDS:
        raise InputError(f"{join(path, EXTENDS)} cannot be changed, as changes apply after it; write it in the file")
    settings: Any = Recipe
    for part in str(key).split("."):
        known = {key_of(field): field.name for field in fields(settings)}
        if part not in known:
            raise InputError(f"unknown key {join(path, show(key))}; {near(part, list(known))}")
        hint = hints_of(settings)[known[part]]
        choices = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        settings = next((choice for choice in choices if is_dataclass(choice)), None)
        if settings is None:
            return  # a value, or a mapping whose keys are checked where it is used


def check_schedule(settings: Optimisation) -> None:
    """Raise `InputError` for a schedule that transformers has not, and for options that it does not take.

    The schedule is made and its learning rate taken at some steps, so that values are checked too.
    """
    import torch
    from transformers import SchedulerType, get_scheduler

    names = [member.value for member in SchedulerType]
    if settings.schedule not in names:
        raise InputError(f"optimisation.schedule is {show(settings.schedule)}; {near(settings.schedule, names)}")
    options = f"optimisation.schedule_options is {show(settings.schedule_options)}"
    if settings.schedule == SchedulerType.GREEDY:
        return  # follows the losses, so there is nothing to try
    steps, warmup = settings.steps or 1000, settings.warmup()
    warmup = math.ceil(steps * warmup) if warmup < 1 else int(warmup)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=settings.learning_rate)
    try:
        made = get_scheduler(
            settings.schedule,
            optimizer,
            num_warmup_steps=warmup,
            num_training_steps=steps,
            scheduler_specific_kwargs=dict(settings.schedule_options),
        )
        # Those that step by themselves have functions of the step; the one that follows the loss has none.
        rates = [function(step) for function in getattr(made, "lr_lambdas", ()) for step in (0, 1, steps // 2, steps)]
    except ZeroDivisionError:
        raise InputError(
            f"optimisation.schedule is {settings.schedule!r}, which needs a step behind its warm-up, and "
            f"optimisation.steps={steps} are all warm-up; give fewer warmup_steps, or more steps"
        ) from None
    except (TypeError, ValueError, AttributeError, ArithmeticError, AssertionError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{options}, which {settings.schedule!r} does not take ({reason}); {_taken(settings)}"
        ) from None
    if not all(isinstance(rate, int | float) and math.isfinite(rate) and rate >= 0 for rate in rates):
        raise InputError(f"{options}, which makes learning rates of {show(rates)}; {_taken(settings)}")


def check_reports(names: tuple[str, ...]) -> None:
    """Raise `InputError` for programs to report to that Trainer does not know, or that are not installed."""
    from transformers.integrations import get_available_reporting_integrations, get_reporting_integration_callbacks

    for name in names:
        if name == "none":
            if len(names) > 1:
                raise InputError(f"optimisation.report_to is {show(list(names))}; 'none' stands alone")
            continue
        try:
            (callback,) = get_reporting_integration_callbacks([name])
        except ValueError as error:
            known = str(error).split("supported:")[-1].strip(" .")
            raise InputError(f"optimisation.report_to is {show(name)}; choose 'none', or of {known}") from None
        if name in get_available_reporting_integrations() or name == "tensorboard":
            continue
        try:
            callback()  # of a program that is missing: says how to install it
        except (RuntimeError, ImportError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"optimisation.report_to is {name!r}, which is not installed: {reason}") from None


def _check_attention(given: Any) -> None:
    from longspan.attention import attention_config
    from longspan.attention.layers import samples

    for spec in samples(given):
        attention_config(spec)


def _check_new(recipe: Recipe, task: Any, weigh: bool) -> None:
    """Build the configuration of a new model, with the largest vocabulary that it can have, and weigh the model."""
    from longspan.training.models import new_config

    size = recipe.tokenizer.train
    entries = 100_000_000 if size is None else size + len(task.new_tokens())
    config = new_config(task, recipe.model, entries)
    task.check_model(config)
    if task.generates:
        check_room(recipe.generation, config)
        if config.is_encoder_decoder and config.decoder_start_token_id is None and not config.wrap_labels:
            raise InputError(
                f"model.new.eos_token_id is {show(config.eos_token_id)}, so that no token starts the decoder; set "
                "model.new.decoder_start_token_id"
            )
    if weigh:
        _check_memory(recipe, task, smallest_config(recipe, task))


def smallest_config(recipe: Recipe, task: Any) -> Any:
    """The configuration of a new model with as few entries as its vocabulary can have."""
    from longspan.training.models import new_config

    size = recipe.tokenizer.train
    least = 1000 + max((recipe.model.new or {}).get("cutoffs") or [0])
    return new_config(task, recipe.model, least if size is None else size + len(task.new_tokens()))


def check_room(generation: Generation, config: Any) -> None:
    """Raise `InputError` where longer summaries are asked for than the model has positions for."""
    asked, room = generation.max_tokens, config.max_decoder_position_embeddings
    if asked > room:
        raise InputError(f"generation.max_tokens is {asked} but the model has positions for {room} tokens; lower it")


def _check_memory(recipe: Recipe, task: Any, config: Any) -> None:
    """Raise `InputError` for a model that no memory of this machine can train."""
    import torch

    with torch.device("meta"):
        weights = sum(weight.numel() for weight in task.model_class()(config).parameters())
    # Weights, gradients and two moments in float32; with adapters the weights alone count.
    needed = weights * (16 if recipe.optimisation.lora is None else 4)
    memories = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    if torch.cuda.is_available():
        memories.append(sum(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count())))
    if memories and needed > max(memories):
        raise InputError(
            f"model.new has {weights:,} weights, whose training takes {needed / 1e9:,.0f} GB, more than the "
            f"{max(memories) / 1e9:,.0f} GB of this machine; make it smaller"
        )


def _taken(settings: Optimisation) -> str:
    """Which options a schedule takes, as a remedy."""
    import transformers

    name = f"get_{settings.schedule.removesuffix('_with_warmup')}_schedule"
    made = getattr(transformers, f"{name}_with_warmup", getattr(transformers, name, None))
    ours = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch", "kwargs"}
    taken = [] if made is None else [one for one in inspect.signature(made).parameters if one not in ours]
    return f"it takes {', '.join(taken)}" if taken else "leave them out"
