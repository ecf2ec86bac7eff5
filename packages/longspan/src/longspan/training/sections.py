"""The sections of a recipe with their checks, except `optimisation`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from longspan.errors import InputError
from longspan.settings import (
    VOCABULARY,
    Beams,
    Count,
    Form,
    LengthPenalty,
    NewTokens,
    Range,
    Split,
    Whole,
    check,
    show,
)

Source = Annotated[str, Form(r"\S[\s\S]*", "a name or a path", 4096)]


@dataclass(frozen=True, kw_only=True)
class Published:
    """The published row that a recipe reproduces."""

    source: str
    """Paper or thesis, table and row."""
    dataset: str = ""
    """Data set and split."""
    scores: dict[str, Any] = field(default_factory=dict)
    """The published numbers, by name."""
    note: str = ""
    """Differences from the publication, or details that it does not specify."""


@dataclass(frozen=True, kw_only=True)
class WeightedSource:
    """A source of training rows that is mixed with others."""

    source: Source = field(metadata={"key": "from"})
    """Name or path."""
    weight: Annotated[float, Range(above=0, maximum=1e9)]
    """Its share of the rows, relative to the weights of the other sources."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data sets: names (folders of LONGSPAN_DATA), paths, or `synthetic`."""

    train: tuple[Source | WeightedSource, ...]
    """Training data: names or paths, read in order and shuffled together; or mappings such as {from: a.jsonl,
    weight: 3}, from which each next row is drawn with a probability proportional to the weight. Rows are those
    that the model trains on: for a corpus, chunks.
    """
    validation: tuple[Source, ...]
    """Validation data, which selects the best checkpoint."""
    train_split: Split = "train"
    """Part of a directory or a named data set for training."""
    validation_split: Split = "validation"
    """Part for validation."""
    train_rows: Count | None = None
    """Use only this many training rows (the first ones, over all sources in order; of each source, with weights)."""
    validation_rows: Count | None = None
    """Use only this many validation rows."""
    on_error: Literal["raise", "skip"] = "raise"
    """Handling of corrupt rows: `raise` stops with the line number, `skip` skips them and logs their number."""
    stopping_strategy: Literal["all_exhausted", "first_exhausted"] = "all_exhausted"
    """End of an epoch over weighted sources, as in `datasets.interleave_datasets`: `all_exhausted`, when every row of
    every source was drawn, where an exhausted source starts again in a new order; `first_exhausted`, with the last row
    of the source that is exhausted first.
    """

    streaming: bool = False
    """Read the training rows while the model trains, without a pass over them before; needs `optimisation.steps`."""
    shuffle_buffer: Whole = 1000
    """With `streaming`: rows in memory, of each weighted source, among which the next one is drawn; 0 keeps the order
    of the sources.
    """

    def __post_init__(self) -> None:
        """Raises `InputError` for values out of range, without data, and if only some sources have a weight."""
        check(self)
        for part in ("train", "validation"):
            if not getattr(self, part):
                raise InputError(f"data.{part} names nothing; give a data set, a file or 'synthetic'")
        plain = [index for index, source in enumerate(self.train) if isinstance(source, str)]
        if plain and len(plain) < len(self.train):
            raise InputError(
                f"data.train[{plain[0]}] is {show(self.train[plain[0]])}, without a weight, and other sources have "
                "one; write it as {from: …, weight: 1}, or leave out all weights"
            )
        if plain and self.stopping_strategy != "all_exhausted":
            raise InputError(
                f"data.stopping_strategy is {self.stopping_strategy!r}, but the sources of data.train have no weights; "
                "give each one a weight, or leave it out"
            )

        if self.streaming and self.stopping_strategy != "all_exhausted":
            raise InputError(
                f"data.stopping_strategy is {self.stopping_strategy!r}, but with data.streaming a source that ends is "
                "read again, and there are no epochs; leave one of them out"
            )

    def sources(self, part: Literal["train", "validation"]) -> tuple[str, ...]:
        """Returns the names and paths of a part."""
        return tuple(source if isinstance(source, str) else source.source for source in getattr(self, part))

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of the training sources; empty if they are read in order."""
        return tuple(source.weight for source in self.train if isinstance(source, WeightedSource))


@dataclass(frozen=True, kw_only=True)
class Model:
    """Either a published checkpoint to start `from`, or a `new` random model."""

    source: Source | None = field(default=None, metadata={"key": "from"})
    """Folder or Hub name of a published checkpoint (BART, LED, …) or of a Longspan model."""
    new: dict[str, Any] | None = None
    """Fields of `LongspanConfig` for a model from scratch."""
    attention: Any = None
    """A mechanism's name or mapping; or a list with one per encoder layer, or with the `layers` of each; None
    keeps the model's.
    """
    stack: Any = None
    """A stack's name or mapping, such as {stack: decomposed, lower_layers: 9}; None keeps the model's."""
    max_tokens: Count | None = None
    """Longest input; positions are tiled to this length. None keeps the model's."""
    new_positions: Literal["copied", "random"] = "copied"
    """Initialisation of rows of the position table beyond the checkpoint's: copies of its own, or
    random, for comparison.
    """

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """The tokenizer: an existing one, or byte pairs or words trained on the training rows."""

    source: Source | None = field(default=None, metadata={"key": "from"})
    """Folder or Hub name of a tokenizer; None uses that of `model.from`."""
    train: Annotated[int, VOCABULARY] | None = None
    """Vocabulary size of one trained on the texts of the training rows, by default a byte-level BPE."""
    words: bool = False
    """Train it on whole words, split at white space, the most frequent ones first; each line ends in `<eos>`."""
    rows: Count | None = None
    """Train it on about this many rows, sampled evenly; None uses all."""
    simplify: bool = False
    """Simplify text in training and use: lower case, every number 0, no citation marks."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Decoding of summaries in evaluation; stored with the model as its defaults."""

    beams: Beams = 1
    """Number of beams; 1 is greedy."""
    length_penalty: LengthPenalty = 1.0
    """Exponent on the length in `Σ log p / length^α`: above 0 favours longer outputs. Not used with one beam."""
    no_repeat_ngram: Annotated[int, Range(0, 10_000)] = 0
    """Size of n-grams that may not be repeated; 0 disables it."""
    no_repeat_ignored: tuple[Annotated[str, Form(r"\S+", "a text without white space", 100)], ...] = ()
    """Texts of one token, such as ".": n-grams with one of them may be repeated."""
    max_tokens: NewTokens = 256
    """Longest summary, in tokens."""
    min_tokens: Annotated[int, Range(0, 1_000_000)] = 0
    """Shortest summary, in tokens."""

    def __post_init__(self) -> None:
        """Raises `InputError` for values out of range, and a minimal length above the maximal."""
        check(self)
        if self.min_tokens > self.max_tokens:
            raise InputError(
                f"generation.min_tokens is {self.min_tokens}, more than generation.max_tokens ({self.max_tokens}); "
                "lower it"
            )

    def check_room(self, config: Any) -> None:
        """Raises `InputError` if summaries may be longer than the positions of the model of `config`."""
        room = config.max_decoder_position_embeddings
        if self.max_tokens > room:
            raise InputError(
                f"generation.max_tokens is {self.max_tokens} but the model has positions for {room} tokens; lower it"
            )

    def ignored_ids(self, tokenizer: Any) -> list[int]:
        """Returns the ids of `no_repeat_ignored`, with and without a space before."""
        ignored: set[int] = set()
        for text in self.no_repeat_ignored:
            forms = [tokenizer(form, add_special_tokens=False)["input_ids"] for form in (text, f" {text}")]
            if not (single := {ids[0] for ids in forms if len(ids) == 1}):
                raise InputError(
                    f"generation.no_repeat_ignored names {show(text)}, which is no single token of this tokenizer; "
                    "leave it out"
                )
            ignored |= single
        return sorted(ignored)

    def options(self) -> dict[str, Any]:
        """Returns keyword arguments of `generate`, except those that need a tokenizer.

        With one beam, options of beam search are reset: transformers does not save a greedy model with them.
        """
        weights = {"length_penalty": self.length_penalty}
        return {
            "num_beams": self.beams,
            **(weights if self.beams > 1 else {"length_penalty": 1.0, "early_stopping": False}),
            "no_repeat_ngram_size": self.no_repeat_ngram,
            "max_new_tokens": self.max_tokens,
            "min_new_tokens": self.min_tokens,
        }
