"""A recipe: one YAML file that is one experiment, with the published row it aims at.

```yaml
name: poolingformer-arxiv-4k          # also the default output folder, runs/<name>
about: What this experiment is, in a sentence or two.
published: {source: "…", dataset: "…", scores: {rouge1: 47.86}, note: "…"}
task: {name: summarization, max_source_tokens: 4096, max_target_tokens: 256}   # the task's own options
data: {train: [arxiv], validation: [arxiv]}       # names of data sets or paths
model: {from: facebook/bart-large, attention: poolingformer, two_level_layers: [6, 7], max_tokens: 4096}
tokenizer: {train: 8000}              # or {from: DIR}; default: the tokenizer that comes with model.from
optimisation: {learning_rate: 2.0e-4, epochs: 10, batch_size: 128}
generation: {beams: 5, length_penalty: 2.0}
smoke: {optimisation.steps: 4}        # changes for --smoke, by dotted path
```

`load_recipe` (in `recipe_file`) reads it. Command-line changes are `key=value` with the same dotted paths
(`optimisation.seed=3`, `model.attention.kernel=7`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from longspan.data.skipping import ON_ERROR
from longspan.errors import InputError
from longspan.training.settings import from_plain, to_plain


@dataclass(frozen=True, kw_only=True)
class Published:
    """The published row that a recipe aims at."""

    source: str
    """Paper or thesis, table and row."""
    dataset: str = ""
    scores: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    """What differs from the publication, or what it leaves open."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where the rows come from: names of data sets (folders of LONGSPAN_DATA), paths, or `synthetic`."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    train_split: str = "train"
    validation_split: str = "validation"
    train_rows: int | None = None
    """Use only this many training rows (the first ones, over all sources in order)."""
    validation_rows: int | None = None
    on_error: str = "raise"
    """What a corrupt row does: `raise` stops with its line, `skip` passes over it and says how many there were."""

    def __post_init__(self) -> None:
        """Refuse an unknown `on_error`."""
        if self.on_error not in ON_ERROR:
            raise InputError(f"data.on_error is {self.on_error!r}; choose 'raise' or 'skip'")


@dataclass(frozen=True, kw_only=True)
class Model:
    """Either a published checkpoint to start `from`, or a `new` random model."""

    source: str | None = field(default=None, metadata={"key": "from"})
    """Folder or Hub name of a published checkpoint (BART, LED, …) or of a Longspan model."""
    new: dict[str, Any] | None = None
    """Fields of `LongspanConfig` for a model from scratch."""
    attention: Any = None
    """A mechanism's name or mapping, or a list with one per encoder layer; None keeps what the model has."""
    two_level_layers: tuple[int, ...] | None = None
    """Encoder layers (from 0) that use the second level of `poolingformer` or `fusion`; the others only the first."""
    max_tokens: int | None = None
    """Longest input; positions are tiled to this length. None keeps the model's."""


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """Which tokenizer to use: one that exists, or byte-pair encoding trained on the training rows."""

    source: str | None = field(default=None, metadata={"key": "from"})
    train: int | None = None
    """Vocabulary size of a byte-level BPE trained on the documents and summaries of the training rows."""
    rows: int | None = None
    """Train it on about this many rows, taken evenly from all of them; None takes all."""
    simplify: bool = False
    """Train it on, and always apply it to, simplified text: lower case, every number 0, no citation marks."""


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """How the model is trained. Steps are updates of the weights; `batch_size` is documents per update."""

    epochs: float | None = None
    steps: int | None = None
    batch_size: int = 8
    micro_batch_size: int = 1
    """Documents in one forward pass on one device; the rest of `batch_size` is accumulated."""
    learning_rate: float = 1e-4
    schedule: str = "linear"
    """Any schedule name of transformers: linear, cosine, polynomial, constant_with_warmup, inverse_sqrt, …"""
    schedule_options: dict[str, Any] = field(default_factory=dict)
    warmup_steps: int = 0
    warmup_fraction: float = 0.0
    """Warm-up as a share of all steps, instead of `warmup_steps`."""
    weight_decay: float = 0.0
    betas: tuple[float, ...] = (0.9, 0.999)
    epsilon: float = 1e-8
    gradient_clip: float = 1.0
    label_smoothing: float = 0.0
    bf16: bool = False
    gradient_checkpointing: bool = False
    log_every: int = 10
    evaluate_every: int = 500
    """Steps between evaluations; a checkpoint is saved after each. A multiple of `log_every`."""
    keep_checkpoints: int = 2
    """Newest checkpoints kept, besides the best one."""
    best_by: str = "loss"
    """What picks the best checkpoint: `loss` (lower is better), or a score of the task such as `rouge1`."""
    workers: int = 0
    """Processes that tokenise ahead of the training loop."""
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot run, or what would make a resumed run differ from an uninterrupted one."""
        if (self.epochs is None) == (self.steps is None):
            raise InputError("optimisation needs exactly one of 'epochs' and 'steps'; set the other to null")
        for name in ("batch_size", "micro_batch_size", "log_every", "evaluate_every", "keep_checkpoints"):
            if getattr(self, name) < 1:
                raise InputError(f"optimisation.{name} is {getattr(self, name)}; it must be at least 1")
        if self.evaluate_every % self.log_every:
            raise InputError(
                f"optimisation.evaluate_every is {self.evaluate_every}; it must be a multiple of "
                f"optimisation.log_every ({self.log_every}), so that a resumed run logs the same losses"
            )
        if self.batch_size % self.micro_batch_size:
            raise InputError(
                f"optimisation.batch_size is {self.batch_size}; it must be a multiple of "
                f"optimisation.micro_batch_size ({self.micro_batch_size})"
            )
        if not 0 <= self.warmup_fraction < 1:
            raise InputError(f"optimisation.warmup_fraction is {self.warmup_fraction}; it must be from 0 to below 1")
        if self.warmup_fraction and self.warmup_steps:
            raise InputError(
                "optimisation needs at most one of 'warmup_steps' and 'warmup_fraction'; set the other to 0"
            )
        if len(self.betas) != 2:
            raise InputError(f"optimisation.betas is {list(self.betas)}; it must be two numbers")


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How summaries are decoded in evaluation; stored with the model as its defaults."""

    beams: int = 1
    length_penalty: float = 1.0
    """Exponent on the length in `Σ log p / length^α`: above 0 favours longer outputs."""
    no_repeat_ngram: int = 0
    """Size of n-grams that may not occur twice; 0 is off."""
    max_tokens: int = 256
    min_tokens: int = 0

    def options(self) -> dict[str, Any]:
        """The same as keyword arguments of `generate`."""
        return {
            "num_beams": self.beams,
            "length_penalty": self.length_penalty,
            "no_repeat_ngram_size": self.no_repeat_ngram,
            "max_new_tokens": self.max_tokens,
            "min_new_tokens": self.min_tokens,
        }


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole experiment, resolved and checked."""

    name: str
    about: str = ""
    published: Published | None = None
    task: dict[str, Any]
    data: Data
    model: Model
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    optimisation: Optimisation
    generation: Generation = field(default_factory=Generation)
    smoke: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check what concerns more than one section."""
        if (self.model.source is None) == (self.model.new is None):
            raise InputError("model needs exactly one of 'from' (a checkpoint) and 'new' (fields of a random model)")
        if self.tokenizer.source is not None and self.tokenizer.train is not None:
            raise InputError("tokenizer needs at most one of 'from' and 'train'")
        if self.model.new is not None and self.tokenizer.source is None and self.tokenizer.train is None:
            raise InputError("a new model needs a tokenizer: set tokenizer.train (vocabulary size) or tokenizer.from")
        if self.tokenizer.simplify and self.tokenizer.train is None:
            raise InputError("tokenizer.simplify belongs to a tokenizer that is trained; set tokenizer.train")
        if self.model.source is not None and self.tokenizer.train is not None:
            raise InputError("model.from brings its own vocabulary; remove tokenizer.train")

    def build_task(self) -> Any:
        """The task of the recipe with its options; unknown options raise."""
        from longspan.tasks.base import task_class

        options = dict(self.task)
        if "name" not in options:
            raise InputError("missing key 'task.name'; add it")
        return from_plain(task_class(options.pop("name")), options, "task")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, every default written out; `Recipe.from_dict` reverses it."""
        return to_plain(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Recipe:
        """Check plain data and build the recipe."""
        return from_plain(cls, data)
