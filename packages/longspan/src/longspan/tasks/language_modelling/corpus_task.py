"""What the tasks share that guess tokens of a text, and those among them whose rows are corpora, read once into token
files.

Rows are not documents but sources (`longspan.data.corpus.sources.Corpus`): a corpus is tokenised in one pass into files
of the run's folder, see `longspan.data.corpus.tokens`, and chunks are read from there by index. So its size does
not matter, its length is known, it can be shuffled, and an interrupted run resumes to the same losses.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from longspan.data.corpus.sources import Corpus
from longspan.data.corpus.tokens import token_files
from longspan.data.ragged import Ragged
from longspan.errors import InputError
from longspan.settings import LARGEST, Range
from longspan.tasks.base import Losses, Outcome, Task, check_room
from longspan.tasks.predicting import batches, labels_of_batch


class GuessingTask(Task):
    """A task whose labels are tokens of the text itself."""

    guessed: ClassVar[tuple[str, str]]
    """What is guessed, as predictions name it, and the score of the bits that each takes."""

    @property
    def mode(self) -> str:
        """How the text is cut up when it is scored, in few words; a score without them cannot be compared."""
        return ""

    @property
    def flavour(self) -> str:
        """What the scores are, in words, as it is written beside them in `metrics.json`."""
        raise NotImplementedError

    def sums(self, model: Any, batch: dict[str, Any]) -> Tensor:
        """For each chunk: the bits of what is guessed, how much of it is right, how much there is; `(B, 3)` float64."""
        raise NotImplementedError

    def text_scores(self, bits: float, dataset: Any) -> dict[str, float]:
        """Scores of all bits together that need to know the text."""
        return {}

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[Any], *, batch_size: int) -> Outcome:
        """Bits, perplexity and accuracy over everything that is guessed; a line for each chunk."""
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            dataset = self.dataset(rows, tokenizer, training=False, seed=0, folder=Path(folder))
            each = batches(model, dataset, self.collator(tokenizer), batch_size)
            table = torch.cat([self.sums(model, batch) for batch in each])
            bits, correct, count = table.sum(0).tolist()
            scores = self.text_scores(bits, dataset)
        scores |= {**self.bits_of(bits * math.log(2) / count), "accuracy": 100 * correct / count}
        lines = [
            {"chunk": index, self.guessed[0]: int(tokens), "bits": round(value, 3), "correct": int(right)}
            for index, (value, right, tokens) in enumerate(table.tolist())
        ]
        return Outcome(scores=scores, lines=lines, flavour=self.flavour, mode=self.mode)

    def losses(self) -> Losses:
        """Means over the tokens that are guessed; with bits and a perplexity."""
        return Losses(weight=labels_of_batch, scores=self.bits_of)

    def bits_of(self, loss: float) -> dict[str, float]:
        """A loss in bits, and as a perplexity."""
        return {self.guessed[1]: loss / math.log(2), "perplexity": math.exp(min(loss, 700.0))}


@dataclass(frozen=True, kw_only=True)
class CorpusTask(GuessingTask):
    """Learning from text without labels.

    Attributes:
        max_tokens: length of a chunk, special tokens included; only the end of the text gives a shorter one.
        text_field: the field of JSON, Parquet and Hugging Face records that holds the text; None recognises it.
        text_unit: what a document is in a text file: the "file", a "block" between blank lines, or a "line".
        text_split: "file" reads the files of a split, and cuts enwik8 and text8 as they are published at 90 and 95
            million bytes; "position" cuts every text file at 90 and 95 % of its bytes.
    """

    counts_rows: ClassVar[bool] = False

    max_tokens: Annotated[int, Range(3, LARGEST)] = 4096
    text_field: str | None = None
    text_unit: Literal["file", "block", "line"] = "file"
    text_split: Literal["file", "position"] = "file"

    def check_model(self, config: Any) -> None:
        """Refuse chunks longer than the model reads; sinusoids have no end."""
        check_room(self.max_tokens, config)

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Sequence[Any]:
        """The source itself, found but not read: a `Corpus`. `limit` counts documents over all sources."""
        if limit is not None and limit <= 0:
            return []
        return [
            Corpus(
                source=source,
                split=split,
                limit=limit,
                text_field=self.text_field,
                text_unit=self.text_unit,
                text_split=self.text_split,
                on_error=on_error,
            )
        ]

    def corpus(self, rows: Sequence[Corpus]) -> Iterator[str]:
        """Every document, long ones in pieces."""
        documents = 0
        for piece, is_last in chain.from_iterable(corpus.pieces() for corpus in rows):
            yield piece
            documents += is_last
            if documents == rows[0].limit:
                return

    def token_files(self, rows: Sequence[Corpus], tokenizer: Any, *, training: bool, folder: Path) -> Ragged:
        """The corpus as token ids in `folder/tokens-train` or `folder/tokens-validation`, made once."""
        place = folder / f"tokens-{'train' if training else 'validation'}"
        return token_files(place, rows, tokenizer, limit=rows[0].limit)


def separator(tokenizer: Any) -> int:
    """The id of the token between two documents: the tokenizer's `sep_token`, or else its `eos_token`.

    Raises:
        InputError: it has neither.
    """
    for name in ("sep_token_id", "eos_token_id"):
        token = getattr(tokenizer, name, None)
        if token is not None:
            return int(token)
    raise InputError(
        "the tokenizer has no sep_token or eos_token to set between documents; set one, or use another tokenizer"
    )
