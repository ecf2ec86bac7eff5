"""The sections of a recipe, each checked by itself; how the model is trained is in `optimisation`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from longspan.errors import InputError
from longspan.settings import (
    Beams,
    Count,
    Form,
    LengthPenalty,
    NewTokens,
    Range,
    Split,
    check,
    show,
)

Source = Annotated[str, Form(r"\S[\s\S]*", "a name or a path", 4096)]


@dataclass(frozen=True, kw_only=True)
class Published:
    """The published row that a recipe aims at."""

    source: str
    """Paper or thesis, table and row."""
    dataset: str = ""
    """Data set and split."""
    scores: dict[str, Any] = field(default_factory=dict)
    """The published numbers, by name."""
    note: str = ""
    """What differs from the publication, or what it leaves open."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where the rows come from: names of data sets (folders of LONGSPAN_DATA), paths, or `synthetic`."""

    train: tuple[Source, ...]
    """What to train on."""
    validation: tuple[Source, ...]
    """What picks the best checkpoint."""
    train_split: Split = "train"
    """Which part of a directory or a named data set to train on."""
    validation_split: Split = "validation"
    """And which to validate on."""
    train_rows: Count | None = None
    """Use only this many training rows (the first ones, over all sources in order)."""
    validation_rows: Count | None = None
    """Use only this many validation rows."""
    on_error: Literal["raise", "skip"] = "raise"
    """What a corrupt row does: `raise` stops with its line, `skip` passes over it and says how many there were."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and no data."""
        check(self)
        for part in ("train", "validation"):
            if not getattr(self, part):
                raise InputError(f"data.{part} names nothing; give a data set, a file or 'synthetic'")


@dataclass(frozen=True, kw_only=True)
class Model:
    """Either a published checkpoint to start `from`, or a `new` random model."""

    source: Source | None = field(default=None, metadata={"key": "from"})
    """Folder or Hub name of a published checkpoint (BART, LED, …) or of a Longspan model."""
    new: dict[str, Any] | None = None
    """Fields of `LongspanConfig` for a model from scratch."""
    attention: Any = None
    """A mechanism's name or mapping; or a list with one per encoder layer, or with the `layers` that each is for; None
    keeps what the model has."""
    stack: Any = None
    """A stack's name or mapping, such as {stack: decomposed, lower_layers: 9}; None keeps what the model has."""
    max_tokens: Count | None = None
    """Longest input; positions are tiled to this length. None keeps the model's."""
    new_positions: Literal["copied", "random"] = "copied"
    """How rows of the position table beyond the checkpoint's start: as copies of its own, or drawn, to compare with."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """Which tokenizer to use: one that exists, or byte pairs or words counted in the training rows."""

    source: Source | None = field(default=None, metadata={"key": "from"})
    """Folder or Hub name of a tokenizer; None takes the one that comes with `model.from`."""
    train: Annotated[int, Range(261, 5_000_000)] | None = None
    """Vocabulary size of one trained on the texts of the training rows, by default a byte-level BPE."""
    words: bool = False
    """Train it to whole words, split at white space, the most frequent ones first; each line ends in `<eos>`."""
    rows: Count | None = None
    """Train it on about this many rows, taken evenly from all of them; None takes all."""
    simplify: bool = False
    """Train it on, and always apply it to, simplified text: lower case, every number 0, no citation marks."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How summaries are decoded in evaluation; stored with the model as its defaults."""

    beams: Beams = 1
    """Beams of the search; 1 is greedy."""
    length_penalty: LengthPenalty = 1.0
    """Exponent on the length in `Σ log p / length^α`: above 0 favours longer outputs. Not used with one beam."""
    no_repeat_ngram: Annotated[int, Range(0, 10_000)] = 0
    """Size of n-grams that may not occur twice; 0 is off."""
    no_repeat_ignored: tuple[Annotated[str, Form(r"\S+", "a text without white space", 100)], ...] = ()
    """Texts of one token, such as ".": n-grams that hold one of them may occur again."""
    max_tokens: NewTokens = 256
    """Longest summary, in tokens."""
    min_tokens: Annotated[int, Range(0, 1_000_000)] = 0
    """Shortest summary, in tokens."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and a shortest length above the longest."""
        check(self)
        if self.min_tokens > self.max_tokens:
            raise InputError(
                f"generation.min_tokens is {self.min_tokens}, more than generation.max_tokens ({self.max_tokens}); "
                "lower it"
            )

    def check_room(self, config: Any) -> None:
        """Raise `InputError` where longer summaries are asked for than the model of `config` has positions for."""
        room = config.max_decoder_position_embeddings
        if self.max_tokens > room:
            raise InputError(
                f"generation.max_tokens is {self.max_tokens} but the model has positions for {room} tokens; lower it"
            )

    def ignored_ids(self, tokenizer: Any) -> list[int]:
        """The tokens of `no_repeat_ignored`, with a space before them and without."""
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
        """The same as keyword arguments of `generate`, but for what takes a tokenizer.

        With one beam, what weighs beams is set back: transformers saves no model whose greedy decoding has it.
        """
        weights = {"length_penalty": self.length_penalty}
        return {
            "num_beams": self.beams,
            **(weights if self.beams > 1 else {"length_penalty": 1.0, "early_stopping": False}),
            "no_repeat_ngram_size": self.no_repeat_ngram,
            "max_new_tokens": self.max_tokens,
            "min_new_tokens": self.min_tokens,
        }
