"""Distillation of sentence vectors: a small long model learns where a larger short one puts each sentence.

The teacher has read every sentence alone; the student reads it in its document, with what stands around it, and loose
texts (titles, questions, sentences of abstracts, and some of the body) alone, since it will be asked for both. A
feature is a group of rows of one shape, so that short texts are not filled up to the length of documents.
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

from longspan.data.taught import TaughtTexts, read_taught
from longspan.settings import Count
from longspan.tasks.base import Outcome, Task
from longspan.tasks.predicting import FeatureRows, batches, pad
from longspan.tasks.summaries.extraction import encode_sentences
from longspan.tasks.tokenizers import padding_id

POOL = 16
"""Groups of loose texts that are sorted by length together."""
Row = list[tuple[str, np.ndarray]]
"""Texts of one row with their vectors."""


@dataclass(frozen=True, kw_only=True)
class Distillation(Task):
    """Learn a teacher's sentence vectors.

    Attributes:
        window_words: words of a piece of a document that is one row.
        windows: such rows in a group.
        loose_texts: loose texts in a group, each a row of its own.
        loose_share: one in so many sentences of the body is a loose text too.
        longest_text: of a text, so many words are read.
    """

    name: ClassVar[str] = "distillation"
    generates: ClassVar[bool] = False
    head: ClassVar[str | None] = "sentence_embedding"
    counts_rows: ClassVar[bool] = False
    score_names: ClassVar[tuple[str, ...]] = ("cosine", "loose_cosine")

    window_words: Count = 1024
    windows: Count = 8
    loose_texts: Count = 256
    loose_share: Count = 8
    longest_text: Count = 128

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Sequence[TaughtTexts]:
        """The bodies and loose texts of a folder of taught documents."""
        if source == "synthetic":
            return made_up()
        found = read_taught(Path(source), split)
        return list(found) if limit is None else [text for text, _ in zip(found, range(limit), strict=False)]

    def corpus(self, rows: Sequence[TaughtTexts]) -> Iterator[str]:
        """Every text."""
        for row in rows:
            yield from row.texts

    def dataset(
        self, rows: Sequence[TaughtTexts], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> FeatureRows:
        """Groups of rows, in an order that the seed draws."""
        return FeatureRows(self.groups(rows, seed), partial(self.features, tokenizer=tokenizer))

    def groups(self, rows: Sequence[TaughtTexts], seed: int) -> list[list[Row]]:
        """Every body as pieces, and every loose text, put into groups."""
        draw = random.Random(seed)
        pieces = [piece for row in rows if row.document for piece in self._pieces(row)]
        draw.shuffle(pieces)
        groups = [pieces[first : first + self.windows] for first in range(0, len(pieces), self.windows)]
        loose = [pair for row in rows if not row.document for pair in zip(row.texts, row.vectors, strict=True)]
        loose += [pair for piece in pieces for pair in piece[draw.randrange(self.loose_share) :: self.loose_share]]
        draw.shuffle(loose)
        for first in range(0, len(loose), POOL * self.loose_texts):
            near = sorted(loose[first : first + POOL * self.loose_texts], key=lambda pair: len(pair[0]))
            groups += [
                [[pair] for pair in near[place : place + self.loose_texts]]
                for place in range(0, len(near), self.loose_texts)
            ]
        draw.shuffle(groups)
        return groups

    def _pieces(self, row: TaughtTexts) -> Iterator[Row]:
        piece: Row = []
        words = 0
        for text, vector in zip(row.texts, row.vectors, strict=True):
            count = min(len(text.split()), self.longest_text)
            if piece and words + count > self.window_words:
                yield piece
                piece, words = [], 0
            piece.append((text, vector))
            words += count
        yield piece

    def features(self, group: list[Row], tokenizer: Any) -> dict[str, Any]:
        """The rows of a group: token ids, the text that each token belongs to, and the teacher's vectors."""
        rows = []
        for row in group:
            encoded = encode_sentences([self._cut(text) for text, _ in row], tokenizer)
            rows.append(
                {
                    "input_ids": [token for ids in encoded for token in ids],
                    "sentence_ids": [index for index, ids in enumerate(encoded) for _ in ids],
                    "labels": np.stack([vector for _, vector in row]),
                }
            )
        return {"rows": rows}

    def _cut(self, text: str) -> str:
        words = text.split(maxsplit=self.longest_text)
        return " ".join(words[: self.longest_text])

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Pads the rows of all groups: `input_ids`, `attention_mask`, `sentence_ids` `(B, T)`, `labels` `(B, N, D)`."""
        return partial(_collate, fillers={"input_ids": padding_id(tokenizer), "sentence_ids": -1})

    def loss_weight(self, batch: dict[str, Any]) -> float:
        """Over how many texts the loss is a mean."""
        return float((batch["labels"] != 0).any(-1).sum())

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[TaughtTexts], *, batch_size: int) -> Outcome:
        """Mean cosine to the teacher: of texts in their documents, and of loose ones."""
        dataset = self.dataset(rows, tokenizer, training=False, seed=0, folder=Path())
        found: dict[bool, list[float]] = {True: [], False: []}
        with torch.no_grad():
            for batch in batches(model, dataset, self.collator(tokenizer), 1):
                labels = batch.pop("labels")
                embeddings = model(**batch, max_sentences=labels.shape[1]).embeddings
                real = (labels != 0).any(-1)
                found[labels.shape[1] > 1] += (embeddings.float() * labels).sum(-1)[real].tolist()
        names = {"cosine": found[True], "loose_cosine": found[False]}
        return Outcome(scores={name: 100 * float(np.mean(values)) for name, values in names.items() if values})


def _collate(features: list[dict[str, Any]], fillers: dict[str, float]) -> dict[str, Any]:
    rows = [row for feature in features for row in feature["rows"]]
    batch: dict[str, Any] = pad(rows, fillers)
    most, width = max(len(row["labels"]) for row in rows), rows[0]["labels"].shape[1]
    labels = np.zeros((len(rows), most, width), np.float32)
    for place, row in zip(labels, rows, strict=True):
        place[: len(row["labels"])] = row["labels"]
    batch["labels"] = torch.from_numpy(labels)
    return batch


def made_up(documents: int = 8, dimensions: int = 384) -> list[TaughtTexts]:
    """Texts of few words, whose vectors are the normalised sums of vectors of their words."""
    draw = np.random.default_rng(0)
    words = [f"word{number}" for number in range(50)]
    table = draw.standard_normal((len(words), dimensions))
    rows = []
    for number in range(2 * documents):
        chosen = draw.integers(len(words), size=(12, 6))
        vectors = table[chosen].sum(1)
        vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
        texts = tuple(" ".join(words[index] for index in row) + "." for row in chosen)
        rows.append(TaughtTexts(texts, vectors.astype(np.float16), document=number % 2 == 0))
    return rows
