"""Distillation of sentence vectors from a large short-input model into a small long-input one.

The teacher encoded every sentence and passage separately; the student encodes sentences within their document, and
separate texts (titles, questions, sentences of abstracts, some sentences and passages of the body) alone, since it is
used for both. A feature is a group of rows of one shape, so that short texts are not padded to the length of documents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from longspan.settings import Count
from longspan.tasks.base import Losses, Metrics, Outcome, Task
from longspan.tasks.predicting import FeatureRows, batches, pad
from longspan.tasks.tokenizers import encode_sentences, padding_id
from longspan_papers.distillation.rows import TaughtTexts, read_taught

POOL = 16
"""Number of groups of separate texts that are sorted by length together."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the batch.

    Attributes:
        texts: N sentences of a document in order, or one separate text.
        teacher_vectors: `(N, D)`, the teacher's.
        passages: P runs of these texts, each as first and end.
        passage_vectors: `(P, D)`.
    """

    texts: tuple[str, ...]
    teacher_vectors: np.ndarray
    passages: tuple[tuple[int, int], ...] = ()
    passage_vectors: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class Distillation(Task):
    """Learns a teacher's sentence vectors.

    Attributes:
        window_words: words of a document piece that forms one row.
        windows: number of such rows in a group.
        loose_texts: maximum number of separate texts in a group, each a row.
        loose_share: one in this many sentences and passages of the body is also a separate text, and every question in
            it.
        longest_text: maximum words of a text.
    """

    name: ClassVar[str] = "distillation"
    head: ClassVar[str | None] = "sentence_embedding"
    counts_rows: ClassVar[bool] = False
    metrics: ClassVar[Metrics] = Metrics(names=("cosine", "passage_cosine", "loose_cosine"))

    window_words: Count = 1024
    windows: Count = 8
    loose_texts: Count = 256
    loose_share: Count = 8
    longest_text: Count = 128

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Sequence[TaughtTexts]:
        """Reads the bodies and separate texts of a folder of documents with teacher vectors."""
        if source == "synthetic":
            return [] if limit == 0 else made_up()
        texts = read_taught(Path(source), split)
        return list(texts) if limit is None else [text for text, _ in zip(texts, range(limit), strict=False)]

    def corpus(self, rows: Sequence[TaughtTexts]) -> Iterator[str]:
        """Yields every text."""
        for row in rows:
            yield from row.texts

    def dataset(
        self, rows: Sequence[TaughtTexts], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> FeatureRows:
        """Returns groups of rows, in an order drawn with the seed."""

        def lengths(texts: Sequence[str]) -> list[int]:
            return [len(ids) for ids in encode_sentences([self._cut(text) for text in texts], tokenizer)]

        return FeatureRows(self.groups(rows, seed, lengths), partial(self.features, tokenizer=tokenizer))

    def groups(
        self, rows: Sequence[TaughtTexts], seed: int, lengths: Callable[[Sequence[str]], list[int]]
    ) -> list[list[Row]]:
        """Splits bodies into pieces and groups them with separate texts; `lengths` counts the tokens of texts."""
        draw = random.Random(seed)
        pieces = [piece for row in rows if row.document for piece in self._pieces(row)]
        draw.shuffle(pieces)
        groups = [pieces[first : first + self.windows] for first in range(0, len(pieces), self.windows)]
        loose = [single for row in rows if not row.document for single in _alone(row.texts, row.teacher_vectors)]
        for piece in pieces:
            loose += self._loose(piece, draw)
        draw.shuffle(loose)
        for first in range(0, len(loose), POOL * self.loose_texts):
            near = loose[first : first + POOL * self.loose_texts]
            groups += self._split(near, lengths([single.texts[0] for single in near]))
        draw.shuffle(groups)
        return groups

    def _split(self, loose: Sequence[Row], lengths: Sequence[int]) -> Iterator[list[Row]]:
        """Yields groups of separate texts of similar length, whose padded size does not exceed the words of the
        windows."""
        group: list[Row] = []
        for index in sorted(range(len(loose)), key=lengths.__getitem__):
            filled = (len(group) + 1) * lengths[index]
            if group and (len(group) == self.loose_texts or filled > self.windows * self.window_words):
                yield group
                group = []
            group.append(loose[index])
        if group:
            yield group

    def _loose(self, piece: Row, draw: random.Random) -> Iterator[Row]:
        """Yields some texts of a document, each as its own row."""
        chosen = draw.randrange(self.loose_share)
        for index, single in enumerate(_alone(piece.texts, piece.teacher_vectors)):
            if index % self.loose_share == chosen or single.texts[0].endswith("?"):
                yield single
        if piece.passage_vectors is not None:
            joined = [" ".join(piece.texts[first:end]) for first, end in piece.passages]
            yield from list(_alone(joined, piece.passage_vectors))[chosen :: self.loose_share]

    def _pieces(self, row: TaughtTexts) -> Iterator[Row]:
        """Splits a document into rows; passages across a split are dropped."""
        start = words = 0
        for index, text in enumerate(row.texts):
            count = min(len(text.split()), self.longest_text)
            if index > start and words + count > self.window_words:
                yield _part(row, start, index)
                start, words = index, 0
            words += count
        yield _part(row, start, len(row.texts))

    def features(self, group: list[Row], tokenizer: Any) -> dict[str, Any]:
        """Returns the rows of a group: token ids, the text of each token, and the teacher's vectors."""
        rows = []
        for row in group:
            encoded = encode_sentences([self._cut(text) for text in row.texts], tokenizer)
            features = {
                "input_ids": [token for ids in encoded for token in ids],
                "sentence_ids": [index for index, ids in enumerate(encoded) for _ in ids],
                "labels": row.teacher_vectors,
            }
            if row.passage_vectors is not None:
                features |= {"passages": row.passages, "passage_labels": row.passage_vectors}
            rows.append(features)
        return {"rows": rows}

    def _cut(self, text: str) -> str:
        words = text.split(maxsplit=self.longest_text)
        return " ".join(words[: self.longest_text])

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Returns the collator, which pads the rows of all groups: `input_ids`, `attention_mask`, `sentence_ids` `(B,
        T)`, `labels` `(B, N, D)`.

        With passages also `passage_ids` `(B, N)`, and `labels` `(B, N + P, D)`.
        """
        return partial(_collate, fillers={"input_ids": padding_id(tokenizer), "sentence_ids": -1})

    def losses(self) -> Losses:
        """Averages over the texts."""
        return Losses(weight=lambda batch: float((batch["labels"] != 0).any(-1).sum()))

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[TaughtTexts], *, batch_size: int) -> Outcome:
        """Computes the mean cosine to the teacher: of sentences and passages in their documents, and of separate
        texts."""
        dataset = self.dataset(rows, tokenizer, training=False, seed=0, folder=Path())
        cosines_of: dict[str, list[float]] = {name: [] for name in self.metrics.names}
        with torch.no_grad():
            for batch in batches(model, dataset, self.collator(tokenizer), 1):
                labels = batch.pop("labels")
                passages = batch.get("passage_ids")
                sentences = labels.shape[1] if passages is None else passages.shape[1]
                embeddings = model(**batch, max_sentences=sentences).embeddings.float()
                labels = labels[:, : embeddings.shape[1]]
                cosines, real = (embeddings * labels).sum(-1), (labels != 0).any(-1)
                name = "cosine" if sentences > 1 else "loose_cosine"
                cosines_of[name] += cosines[:, :sentences][real[:, :sentences]].tolist()
                cosines_of["passage_cosine"] += cosines[:, sentences:][real[:, sentences:]].tolist()
        return Outcome(scores={name: 100 * float(np.mean(values)) for name, values in cosines_of.items() if values})


def _alone(texts: Sequence[str], vectors: np.ndarray) -> Iterator[Row]:
    """Yields a row per text that the teacher encoded."""
    for index in np.flatnonzero(vectors.any(-1)).tolist():
        yield Row((texts[index],), vectors[index : index + 1])


def _part(row: TaughtTexts, start: int, stop: int) -> Row:
    """Returns some texts of a document with the passages inside them."""
    inside = [index for index, (first, end) in enumerate(row.passages) if start <= first and end <= stop]
    passages = tuple((row.passages[index][0] - start, row.passages[index][1] - start) for index in inside)
    vectors = row.passage_vectors[inside] if inside else None
    return Row(row.texts[start:stop], row.teacher_vectors[start:stop], passages, vectors)


def _collate(features: list[dict[str, Any]], fillers: dict[str, float]) -> dict[str, Any]:
    rows = [row for feature in features for row in feature["rows"]]
    batch: dict[str, Any] = pad(rows, fillers)
    sentences, width = max(len(row["labels"]) for row in rows), rows[0]["labels"].shape[1]
    passages = max(len(row.get("passages", ())) for row in rows)
    labels = np.zeros((len(rows), sentences + passages, width), np.float32)
    owners = np.full((len(rows), sentences), -1)
    for place, owner, row in zip(labels, owners, rows, strict=True):
        place[: len(row["labels"])] = row["labels"]
        for index, (first, end) in enumerate(row.get("passages", ())):
            owner[first:end] = index
            place[sentences + index] = row["passage_labels"][index]
    batch["labels"] = torch.from_numpy(labels)
    if passages:
        batch["passage_ids"] = torch.from_numpy(owners)
    return batch


def made_up(documents: int = 8, dimensions: int = 384) -> list[TaughtTexts]:
    """Generates short texts and passages, whose vectors are the normalised sums of vectors of their words."""
    draw = np.random.default_rng(0)
    words = [f"word{number}" for number in range(50)]
    table = draw.standard_normal((len(words), dimensions))
    rows = []
    for number in range(2 * documents):
        chosen = draw.integers(len(words), size=(12, 6))
        texts = tuple(" ".join(words[index] for index in row) + "." for row in chosen)
        sums = table[chosen].sum(1)
        if number % 2:
            rows.append(TaughtTexts(texts, _unit(sums), document=False))
        else:
            passages = ((0, 2), (3, 6))
            together = np.stack([sums[first:end].sum(0) for first, end in passages])
            rows.append(TaughtTexts(texts, _unit(sums), True, passages, _unit(together)))
    return rows


def _unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float16)
