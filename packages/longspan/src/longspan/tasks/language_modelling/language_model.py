"""Language modelling: predict each next token of a text, over bytes, characters or any tokenizer's tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from longspan.data.corpus.sources import Corpus
from longspan.data.corpus.tokens import Stream, token_blocks, windows
from longspan.errors import InputError
from longspan.models.losses import IGNORED
from longspan.models.packed import check_packed
from longspan.stacks import stack_config
from longspan.tasks.base import Metrics, check_room, room_for
from longspan.tasks.language_modelling.corpus_task import CorpusTask, separator
from longspan.tasks.language_modelling.scoring import Scoring
from longspan.tasks.packing import Packing
from longspan.tasks.predicting import pad
from longspan.tasks.tokenizers import padding_id


@dataclass(frozen=True, kw_only=True)
class LanguageModel(CorpusTask):
    """Predicts every token from those before it; the documents are one stream, with a separator before each.

    Attributes:
        cross_documents: let a chunk's tokens attend to earlier documents; false processes each document, from its
            separator on, separately, and predicts no token from another document.
        evaluation: how validation and `longspan evaluate` split the text; training scores every token.
    """

    name: ClassVar[str] = "language_model"
    guessed: ClassVar[tuple[str, str]] = ("tokens", "bits_per_token")
    metrics: ClassVar[Metrics] = Metrics(
        names=("bits_per_character", "bits_per_byte", guessed[1], "perplexity", "accuracy"),
        lower_is_better=("bits_per_character", "bits_per_byte", guessed[1], "perplexity"),
    )

    cross_documents: bool = True
    evaluation: Scoring = field(default_factory=Scoring)

    def __post_init__(self) -> None:
        """Raises `InputError` for windows that score nothing, or more than they contain."""
        super().__post_init__()
        self.evaluation.context(self.max_tokens)

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for chunks and windows longer than the model's inputs, and for `cross_documents=false` in
        a model without packed sequences.
        """
        check_room(max(self.max_tokens, self.evaluation.window(self.max_tokens)), config)
        if not self.cross_documents:
            try:
                check_packed(config, stack_config(config.stack))
            except InputError as error:
                raise InputError(f"task.cross_documents is false, but it cannot be: {error}") from None

    def model_class(self) -> Any:
        from longspan.models import LongspanForCausalLM

        return LongspanForCausalLM

    def fitted(self, config: Any) -> Self:
        """Returns the task with chunks of at most as many tokens as the model has positions for."""
        return replace(self, max_tokens=room_for(self.max_tokens, config))

    def dataset(
        self, rows: Sequence[Corpus], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> NextTokenChunks:
        """Returns chunks of the stream; the corpus is tokenised once into a folder below `folder`."""
        files = self.token_files(rows, tokenizer, training=training, folder=folder)
        return NextTokenChunks(
            Stream(files, separator(tokenizer)),
            max_tokens=self.max_tokens if training else self.evaluation.window(self.max_tokens),
            context_tokens=0 if training else self.evaluation.context(self.max_tokens),
            seed=seed if training else None,
            cross_documents=self.cross_documents,
        )

    def _streamed_chunks(
        self, corpora: Sequence[Corpus], tokenizer: Any, *, seed: int, limit: int | None
    ) -> tuple[Callable[[], Iterator[Any]], Callable[[Any, int], dict[str, Any]]]:
        """As the chunks of `dataset`, with the borders from the first token on."""
        mark, size = separator(tokenizer), self.max_tokens

        def chunks() -> Iterator[Any]:
            return windows(token_blocks(corpora, tokenizer, limit=limit, separator=mark), size=size, step=size - 1)

        def features(chunk: np.ndarray, _: int) -> dict[str, Any]:
            return next_tokens(chunk[0], 1, None if self.cross_documents else chunk[1])

        return chunks, features

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Pads chunks to `input_ids`, `labels` `(B, T)` int64 and `attention_mask` bool; and `seq_idx` `(B, T)` int64,
        the number of each token's document, −1 at padding, if documents are separate.
        """
        return partial(pad, fillers={"input_ids": padding_id(tokenizer), "labels": IGNORED, "seq_idx": -1})

    @property
    def flavour(self) -> str:
        """Describes the scores."""
        context, window = self.evaluation.context(self.max_tokens), self.evaluation.window(self.max_tokens)
        what, where = "every token and every separator but the first", "text"
        if not self.cross_documents:
            what, where = "every token of a document, each read alone", "document"
        return (
            f"Bits: −log2 of the probability of {what}, over the characters, bytes or tokens; each is guessed from "
            f"{context + 1} to {window - 1} tokens before it, where the {where} has so many."
        )

    @property
    def mode(self) -> str:
        """Describes how the text is split, with the lengths."""
        return self.evaluation.words(self.max_tokens)

    def text_scores(self, bits: float, dataset: NextTokenChunks) -> dict[str, float]:
        """Returns bits per character and per byte of the text, for any tokens."""
        counts = dataset.stream.files.index
        return {"bits_per_character": bits / counts["characters"], "bits_per_byte": bits / counts["bytes"]}

    def sums(self, model: Any, batch: dict[str, Any]) -> Tensor:
        """Returns for each chunk the bits of the predicted tokens, how many are right, and their number: `(B, 3)`
        float64, on the CPU.
        """
        labels = batch.pop("labels")[:, 1:]
        logits = model(**batch).logits[:, :-1]
        rows = []
        for row, wanted in zip(logits, labels, strict=True):
            scored = wanted != IGNORED
            row, wanted = row[scored].float(), wanted[scored]
            bits = cross_entropy(row, wanted, reduction="none").double().sum() / math.log(2)
            rows.append(torch.stack([bits, (row.argmax(-1) == wanted).sum().double(), scored.sum().double()]))
        return torch.stack(rows).cpu()


class NextTokenChunks(Dataset[dict[str, Any]]):
    """Chunks of a stream of which every token but the first is predicted exactly once in an epoch.

    Args:
        stream: the documents.
        max_tokens: length of a chunk; the first and the last may be shorter.
        context_tokens: how many of these were scored in the previous chunk.
        seed: shifts the borders of the chunks in every epoch; None keeps them.
        cross_documents: as in `LanguageModel`.
    """

    def __init__(
        self, stream: Stream, *, max_tokens: int, context_tokens: int, seed: int | None, cross_documents: bool = True
    ) -> None:
        self.stream = stream
        self.cross_documents = cross_documents
        # The first token of a chunk is never predicted here: it is the last one predicted in the previous chunk.
        self.scored = max_tokens - 1 - context_tokens
        self.context_tokens = context_tokens
        self.seed = seed
        self.shift = 0

    def __len__(self) -> int:
        """Returns the number of chunks."""
        return -(-(len(self.stream) - 1) // self.scored)

    def packing(self) -> Packing:
        """Returns how the documents fill the chunks of the first borders, which are shifted in every epoch."""
        starts, size = self.stream.starts, len(self.stream)
        ends = np.append(starts[1:], size) - 1
        first, last = (np.maximum(places - 1, 0) // self.scored for places in (starts, ends))
        row_tokens = self.scored + 1 + self.context_tokens
        begins = np.maximum(np.arange(len(self)) * self.scored - self.context_tokens, 0)
        tokens = int((np.minimum((np.arange(len(self)) + 1) * self.scored + 1, size) - begins).sum())
        return Packing.of_rows(first, last, rows=len(self), row_tokens=row_tokens, tokens=tokens)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, which determines the borders."""
        if self.seed is not None and len(self) > 1:
            self.shift = int(np.random.Philox(key=[self.seed, epoch]).random_raw() % np.uint64(self.scored))

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns `input_ids` and `labels` of a chunk, `(T,)` int64; the label of a context token is −100. Also returns
        `seq_idx`, the document of each, if documents are separate; their first tokens are not predicted.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        first = 1 + (index % len(self)) * self.scored - self.shift
        start = max(first - 1 - self.context_tokens, 0)
        ids = self.stream.read(start, first + self.scored)
        documents = None if self.cross_documents else self.stream.documents(start, start + len(ids))
        return next_tokens(ids, max(first, 1) - start, documents)


def next_tokens(ids: np.ndarray, context: int, documents: np.ndarray | None) -> dict[str, Any]:
    """Returns the features of a chunk `(T,)`, of which the first `context` tokens are not predicted; with the number of
    each token's document, nor the first one of another document.
    """
    labels = ids.copy()
    labels[:context] = IGNORED
    if documents is None:
        return {"input_ids": ids, "labels": labels}
    labels[np.flatnonzero(np.diff(documents)) + 1] = IGNORED
    return {"input_ids": ids, "labels": labels, "seq_idx": documents - documents[:1]}
