"""A recipe: one YAML file that describes one experiment, with the published row that it reproduces.

```yaml
name: poolingformer-arxiv-4k          # also the default output folder, runs/<name>
about: What this experiment is, in a sentence or two.
published: {source: "…", dataset: "…", scores: {rouge1: 47.86}, note: "…"}
task: {name: summarization, max_source_tokens: 4096, max_target_tokens: 256}   # the task's own options
data: {train: [arxiv], validation: [arxiv]}       # names of data sets or paths
model: {from: facebook/bart-large, attention: poolingformer, max_tokens: 4096}
tokenizer: {train: 8000}              # or {from: DIR}; default: the tokenizer that comes with model.from
optimisation: {learning_rate: 2.0e-4, epochs: 10, batch_size: 128}
trainer: {torch_compile: true}        # further arguments of Hugging Face's TrainingArguments
generation: {beams: 5, length_penalty: 2.0}
stages: [{}, {task.max_source_tokens: x2, optimisation.learning_rate: /2}]   # one after the other, see `changes`
smoke: {optimisation.steps: 4}        # changes for --smoke, by dotted path
```

`load_recipe` (in `recipe_file`) reads it, merged over the recipe that it `extends` (in `shipped`). Command-line changes
are `key=value` with the same dotted paths (`optimisation.seed=3`, `model.attention.kernel=7`).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, fields, is_dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from types import UnionType
from typing import Any, Union, get_args, get_origin

from longspan.changes import STAGES, stages_of
from longspan.errors import InputError
from longspan.settings import FileName, check, convert, from_plain, hints_of, join, key_of, near, show, to_plain
from longspan.tasks import build_task
from longspan.training.optimisation import Optimisation, check_optimizer, check_reports, check_schedule
from longspan.training.sections import Data, Generation, Model, Published, Tokenizer
from longspan.training.shipped import EXTENDS
from longspan.training.trainer_section import check_options

MOST_STAGES = 100
"""Each is checked before the first begins, which takes a tenth of a second."""
CHANGEABLE = ("task.", "model.attention", "model.stack", "model.new.", "optimisation.")
"""Prefixes of the keys that a stage may change."""
SHARED = ("task.name", "optimisation.train", "optimisation.lora", "optimisation.best_by", "optimisation.optimizer")
"""Keys among them that are the same in all stages."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole experiment. Each section, and combinations of sections, are checked at construction; `runs`
    checks the rest.
    """

    name: FileName
    """The name of the experiment; also the default output folder, `runs/<name>`."""
    about: str = ""
    """Description of the experiment in a sentence or two."""
    published: Published | None = None
    """The published row that it reproduces."""
    task: Any
    """A mapping of the task's `name` and its options."""
    data: Data
    """The data sets."""
    model: Model
    """The model."""
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    """The tokenizer."""
    optimisation: Optimisation
    """How the model is trained."""
    trainer: dict[str, Any] = field(default_factory=dict)
    """Further arguments of Hugging Face's Trainer, by their names in `TrainingArguments`."""
    generation: Generation = field(default_factory=Generation)
    """How summaries are decoded."""
    stages: tuple[dict[str, Any], ...] = ()
    """Stages that are trained in order, each from the weights of the previous one: the changes of each from the
    previous stage (for the first, from the recipe), by dotted path, as a value or as a factor such as x2 or /2.
    """
    smoke: dict[str, Any] = field(default_factory=dict)
    """Further changes of `--smoke`: values by dotted path."""

    def __post_init__(self) -> None:
        """Parses the task, and checks combinations of sections."""
        check(self)
        if not is_dataclass(self.task):
            object.__setattr__(self, "task", build_task(self.task))
        if len(self.stages) > MOST_STAGES:
            raise InputError(
                f"stages has {len(self.stages):,} entries; give at most {MOST_STAGES}, each for more than one step"
            )
        if (self.model.source is None) == (self.model.new is None):
            raise InputError("model needs exactly one of 'from' (a checkpoint) and 'new' (fields of a random model)")
        if self.tokenizer.source is not None and self.tokenizer.train is not None:
            raise InputError("tokenizer needs at most one of 'from' and 'train'")
        if self.model.new is not None and self.tokenizer.source is None and self.tokenizer.train is None:
            raise InputError("a new model needs a tokenizer: set tokenizer.train (vocabulary size) or tokenizer.from")
        if self.tokenizer.simplify and self.tokenizer.train is None:
            raise InputError("tokenizer.simplify belongs to a tokenizer that is trained; set tokenizer.train")
        if self.tokenizer.words and self.tokenizer.train is None:
            raise InputError("tokenizer.words belongs to a tokenizer that is trained; set tokenizer.train")
        if self.model.source is not None and self.tokenizer.train is not None:
            raise InputError("model.from brings its own vocabulary; remove tokenizer.train")

    @cached_property
    def smallest_config(self) -> Any:
        """Returns the configuration of a new model with the smallest possible vocabulary."""
        from longspan.training.models import new_config

        size = self.tokenizer.train
        cutoffs = (self.model.new or {}).get("cutoffs")  # other types are checked with the other fields
        numbers = [each for each in cutoffs if isinstance(each, int)] if isinstance(cutoffs, list | tuple) else []
        least = 1000 + max(numbers, default=0)
        return new_config(self.task, self.model, least if size is None else size + len(self.task.new_tokens()))

    @cached_property
    def stage_recipes(self) -> tuple[Recipe, ...]:
        """Returns one recipe for each stage, with its own seed; the recipe itself without stages.

        Raises:
            InputError: a stage changes something to a value that a recipe may not have.
        """
        if not self.stages:
            return (self,)
        recipes = []
        for number, plain in enumerate(stages_of(to_plain(self))):
            plain["optimisation"]["seed"] = (plain["optimisation"]["seed"] + number) % 2**32
            try:
                recipes.append(from_plain(Recipe, plain))
            except InputError as error:
                raise InputError(f"{STAGES}[{number}] cannot be trained: {error}") from None
        return tuple(recipes)

    @cached_property
    def runs(self) -> tuple[Recipe, ...]:
        """Returns `stage_recipes`, after all checks of the recipe and its stages.

        Everything is checked before anything is read or written, and only once: by `load_recipe`, or by `train` for a
        recipe that was created in Python.

        Raises:
            InputError: the first setting that cannot run.
        """
        _check_run(self)
        for number, changes in enumerate(self.stages):
            for key, value in changes.items():
                check_key(key, f"{STAGES}[{number}]")
                _check_changeable(key, value, number)
        if self.stages:
            _check_optimisation(self, self.stage_recipes)
        if self.model.new is not None:
            _check_models(self.stage_recipes)
        return self.stage_recipes


def _check_run(recipe: Recipe) -> None:
    """Raises `InputError` for the first setting of one run that cannot work on any machine."""
    task = recipe.task
    check_optimizer(recipe.optimisation)
    check_schedule(recipe.optimisation)
    if recipe.trainer:
        check_options(recipe.trainer, recipe.optimisation)
    if recipe.data.streaming:
        _check_streaming(recipe)
    check_reports(recipe.optimisation.report_to)
    if recipe.optimisation.lora is not None:
        from longspan.training.adapters import check_adapters

        check_adapters(new=recipe.model.new is not None)
    best, known = recipe.optimisation.best_by, ("loss", *task.metrics.names)
    if not any(fnmatchcase(best, name) for name in known):
        raise InputError(f"optimisation.best_by is {show(best)}, no score of {task.name}; {near(best, list(known))}")
    if recipe.model.new is not None:
        _check_new(recipe, task)
    elif recipe.model.attention is not None:
        from longspan.attention import attention_config
        from longspan.attention.layers import samples

        for spec in samples(recipe.model.attention):
            attention_config(spec)


def _check_streaming(recipe: Recipe) -> None:
    """Raises `InputError` for what needs a pass over the rows before training."""
    if not recipe.task.streams:
        raise InputError(
            f"data.streaming is true, but {recipe.task.name} needs all of its rows before it trains; leave it out"
        )
    if recipe.optimisation.steps is None:
        raise InputError(
            "data.streaming is true, so that the number of rows is not known before the end of an epoch; give "
            "optimisation.steps, and set epochs to null"
        )
    if recipe.tokenizer.train is not None and recipe.tokenizer.rows is None:
        raise InputError(
            "tokenizer.train reads all rows before training, and data.streaming is true; set tokenizer.rows, the "
            "number of the first rows to train it on, or tokenizer.from"
        )


def _check_new(recipe: Recipe, task: Any) -> None:
    """Builds the configuration of a new model, with the largest possible vocabulary."""
    from longspan.checkpoints.folder import CONFIG
    from longspan.training.models import new_config

    for name, value in (recipe.model.new or {}).items():
        convert(CONFIG.get(name, Any), value, f"model.new.{name}")
    bounded = recipe.tokenizer.train is not None
    config = recipe.smallest_config if bounded else new_config(task, recipe.model, 100_000_000)
    task.check_model(config)
    if task.generates:
        recipe.generation.check_room(config)
        if config.is_encoder_decoder and config.decoder_start_token_id is None and not config.wrap_labels:
            raise InputError(
                f"model.new.eos_token_id is {show(config.eos_token_id)}, so that no token starts the decoder; set "
                "model.new.decoder_start_token_id"
            )


def check_key(key: Any, path: str) -> None:
    """Raises `InputError` for an unknown dotted key."""
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


def check_memory(recipe: Recipe) -> None:
    """Raises `InputError` for a new model that this machine's memory cannot train, estimated from its states.

    Stages need no check of their own: all have the weights of the first.
    """
    if recipe.model.new is None:
        return
    import torch

    from longspan.models.work import states_of
    from longspan.training.processes import local_process_count, process_count

    weights = sum(math.prod(shape) for shape in _shapes(recipe).values())
    # Weights, gradients and states in float32; with adapters the weights alone count.
    optimisation = recipe.optimisation
    needed = int(weights * 4 * (2 + states_of(optimisation.optimizer) if optimisation.lora is None else 1))
    here, everywhere = local_process_count(), process_count()
    shards = max(1, everywhere // optimisation.parallel.replicate) if optimisation.parallel.shard else 1
    needed = needed * here // shards
    memories = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    if torch.cuda.is_available():
        memories.append(sum(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count())))
    if memories and needed > max(memories):
        processes = f" by {here} processes" if here > 1 else ""
        more = (
            "with more machines" if optimisation.parallel.shard else "on several with optimisation.parallel.shard=true"
        )
        raise InputError(
            f"model.new has {weights:,} weights, whose training{processes} takes {needed / 1e9:,.0f} GB, more than the "
            f"{max(memories) / 1e9:,.0f} GB of this machine; make it smaller, or train it {more}"
        )


def _check_changeable(key: str, value: Any, number: int) -> None:
    if isinstance(value, dict) and f"{key}." in CHANGEABLE:
        inside = next(iter(value), "…")
        raise InputError(
            f"{STAGES}[{number}] gives {key} as a whole; name what changes by dotted path, such as {key}.{inside}"
        )
    if not key.startswith(CHANGEABLE) or key in SHARED:
        raise InputError(
            f"{STAGES}[{number}] changes {key}, which is the same in all stages; a stage may change options of the "
            "task, of attention and stack, dropout and the optimisation"
        )


def _check_optimisation(recipe: Recipe, stages: tuple[Recipe, ...]) -> None:
    """Checks that stages are counted in steps, train all weights, and can continue with the optimizer states of
    the previous one.
    """
    if recipe.optimisation.lora is not None:
        raise InputError(f"{STAGES} train all weights one after the other, and optimisation.lora few; leave one out")
    for number, stage in enumerate(stages):
        if stage.optimisation.steps is None:
            raise InputError(
                f"{STAGES}[{number}] has optimisation.epochs, but its length is counted in steps; set "
                "optimisation.steps, and epochs to null"
            )
        if (stage.optimisation.head_learning_rate is None) != (recipe.optimisation.head_learning_rate is None):
            # AdamW's states are saved by group and number, which such a rate changes.
            raise InputError(
                f"{STAGES}[{number}] differs from the recipe in whether it has optimisation.head_learning_rate; give "
                "the recipe one (optimisation.learning_rate again, if need be), and change it in the stages"
            )
        try:
            _check_run(stage)
        except InputError as error:
            raise InputError(f"{STAGES}[{number}] cannot be trained: {error}") from None


def _check_models(stages: tuple[Recipe, ...]) -> None:
    """Checks that all stages have the same weights, that windows become wider only with longer texts, and that dilation
    leaves visible tokens.
    """
    first: dict[str, tuple[int, ...]] = {}
    before: list[Any] = []
    for number, stage in enumerate(stages):
        task, config = stage.task, stage.smallest_config
        shapes = _shapes(stage) if len(stages) > 1 else {}
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


def _shapes(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a new model's weights, without allocating them."""
    import torch

    with torch.device("meta"):
        model = recipe.task.model_class()(recipe.smallest_config)
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def _check_reach(stage: str, layer: int, attention: Any, before: Any, length: int) -> None:
    """Raises for a dilation with which only the token itself is visible, and for wider windows without effect
    at this length.
    """
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
