"""Base classes of the tasks that predict tokens of a text, and of those whose rows are corpora, tokenised
once into files.

Rows are not documents but sources (`longspan.data.corpus.sources.Corpus`): a corpus is tokenised in one pass into files
of the run's folder, see `longspan.data.corpus.tokens`, and chunks are read from there by index. So its size is not
limited by memory, its length is known, it can be shuffled, and an interrupted run resumes with the same losses.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
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
from longspan.tasks.base import Losses, Outcome, RowStream, Task, check_room
from longspan.tasks.predicting import batches, labels_of_batch


class GuessingTask(Task):
    """A task whose labels are tokens of the text itself."""

    guessed: ClassVar[tuple[str, str]]
    """Name of the predicted units in predictions, and the score of the bits for each."""

    @property
    def mode(self) -> str:
        """Briefly describes how the text is split for scoring, without which scores cannot be compared."""
        return ""

    @property
    def flavour(self) -> str:
        """Describes the scores, as written in `metrics.json`."""
        raise NotImplementedError

    def sums(self, model: Any, batch: dict[str, Any]) -> Tensor:
        """Returns for each chunk the bits of the predicted tokens, how many are right, and their number;
        `(B, 3)` float64.
        """
        raise NotImplementedError

    def text_scores(self, bits: float, dataset: Any) -> dict[str, float]:
        """Returns scores of all bits together that depend on the text."""
        return {}

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[Any], *, batch_size: int) -> Outcome:
        """Returns bits, perplexity and accuracy over all predicted tokens, and a line for each chunk."""
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
        """Returns means over the predicted tokens, with bits and a perplexity."""
        return Losses(weight=labels_of_batch, scores=self.bits_of)

    def bits_of(self, loss: float) -> dict[str, float]:
        """Returns a loss in bits, and as a perplexity."""
        return {self.guessed[1]: loss / math.log(2), "perplexity": math.exp(min(loss, 700.0))}


@dataclass(frozen=True, kw_only=True)
class CorpusTask(GuessingTask):
    """Base class of the tasks that learn from text without labels.

    Attributes:
        max_tokens: length of a chunk, including special tokens; only the end of the text has a shorter one.
        text_field: the field of JSON, Parquet and Hugging Face records that has the text; None detects it.
        text_unit: the documents of a text file: the "file", a "block" between blank lines, or a "line".
        text_split: "file" reads the files of a split, and splits enwik8 and text8 as published at 90 and 95 million
            bytes; "position" splits every text file at 90 and 95 % of its bytes.
    """

    counts_rows: ClassVar[bool] = False
    streams: ClassVar[bool] = True

    max_tokens: Annotated[int, Range(3, LARGEST)] = 4096
    text_field: str | None = None
    text_unit: Literal["file", "block", "line"] = "file"
    text_split: Literal["file", "position"] = "file"

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for chunks longer than the model's inputs; sinusoids have no limit."""
        check_room(self.max_tokens, config)

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Sequence[Any]:
        """Returns the source as a `Corpus`, which is located but not read. `limit` counts documents over
        all sources.
        """
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
        """Yields every document, long ones in pieces."""
        documents = 0
        for piece, is_last in chain.from_iterable(corpus.pieces() for corpus in rows):
            yield piece
            documents += is_last
            if documents == rows[0].limit:
                return

    def stream(
        self, sources: Sequence[str], split: str, limit: int | None, tokenizer: Any, *, seed: int, on_error: str
    ) -> RowStream:
        """Returns chunks of the documents in order, tokenised while they are read."""
        corpora = [corpus for source in sources for corpus in self.read(source, split, limit, on_error=on_error)]
        chunks, features = self._streamed_chunks(corpora, tokenizer, seed=seed, limit=limit)
        identity = [corpus.fingerprint() for corpus in corpora]
        return RowStream(rows=chunks, features=features, identity=identity)

    def _streamed_chunks(
        self, corpora: Sequence[Corpus], tokenizer: Any, *, seed: int, limit: int | None
    ) -> tuple[Callable[[], Iterator[Any]], Callable[[Any, int], dict[str, Any]]]:
        """Returns `rows` and `features` of a `RowStream`."""
        raise NotImplementedError

    def token_files(self, rows: Sequence[Corpus], tokenizer: Any, *, training: bool, folder: Path) -> Ragged:
        """Returns the corpus as token ids in `folder/tokens-train` or `folder/tokens-validation`, computed once."""
        place = folder / f"tokens-{'train' if training else 'validation'}"
        return token_files(place, rows, tokenizer, limit=rows[0].limit)


def separator(tokenizer: Any) -> int:
    """Returns the id of the token between two documents: the tokenizer's `sep_token`, or else its `eos_token`.

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
