"""Coreference: which words of a long document mean the same person, place or thing.

A document is read whole, however long; no token is global. Scores are those of CoNLL-2012.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Self

import torch

from longspan.data.coreference.conll import conll_text
from longspan.data.coreference.readers import read_coreference
from longspan.data.coreference.rows import Cluster, CoreferenceRow
from longspan.models.heads.specs import Coreference as Head
from longspan.settings import Count
from longspan.tasks.base import Outcome, Task
from longspan.tasks.coreference.decoding import clusters_of
from longspan.tasks.coreference.features import collate, document_features
from longspan.tasks.metrics.coreference import SCORES, coreference_scores
from longspan.tasks.predicting import batches
from longspan.tasks.tokenizers import padding_id


@dataclass(frozen=True, kw_only=True)
class Coreference(Task):
    """Find the mentions of a document and which of them mean the same.

    Attributes:
        singletons: clusters of one mention are annotated (LitBank), so they are learned, found and scored; False: there
            are none (OntoNotes, OntoGUM).
        max_tokens: in training, longer documents are cut between sentences into pieces that are documents of their own;
            None trains on whole ones. Scoring always reads whole ones.
        head_options: what the head is told besides, see `longspan.models.heads.specs.Coreference`.
    """

    name: ClassVar[str] = "coreference"
    generates: ClassVar[bool] = False
    head: ClassVar[str | None] = "coreference"
    score_names: ClassVar[tuple[str, ...]] = (*SCORES, "conll_without_singletons")

    singletons: bool = False
    max_tokens: Count | None = None
    head_options: dict[str, Any] = field(default_factory=dict)

    def model_fields(self) -> dict[str, Any]:
        """No token is global; the head with its options."""
        head = {**self.head_options, "head": self.head, "singletons": self.singletons}
        return {"global_tokens": "none", "head": head}

    def fitted(self, config: Any) -> Self:
        """With singletons, where the model was trained on them."""
        return replace(self, singletons=config.head_options(Head).singletons)

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> list[CoreferenceRow]:
        """The documents of a data set, see `read_coreference`."""
        return list(read_coreference(source, split, limit, on_error=on_error))

    def corpus(self, rows: Sequence[CoreferenceRow]) -> Iterator[str]:
        """Each document's words, with a space before each, as they are tokenised."""
        return (" " + " ".join(row.words) for row in rows)

    def dataset(
        self, rows: Sequence[CoreferenceRow], tokenizer: Any, *, training: bool, seed: int, folder: Any
    ) -> list[dict[str, Any]]:
        """Features of documents, or in training of their pieces."""
        limit = self.max_tokens if training else None
        return list(chain.from_iterable(document_features(row, tokenizer, limit) for row in rows))

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Pads documents to a batch, see `collate`."""
        return partial(collate, padding=padding_id(tokenizer))

    def predict(
        self, model: Any, tokenizer: Any, rows: Sequence[CoreferenceRow], *, batch_size: int = 1
    ) -> list[tuple[Cluster, ...]]:
        """The clusters of each document."""
        features = self.dataset(rows, tokenizer, training=False, seed=0, folder=None)
        found: list[tuple[Cluster, ...]] = []
        for batch in batches(model, features, self.collator(tokenizer), batch_size):
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            with torch.no_grad():
                found += clusters_of(model(**inputs), singletons=self.singletons)
        return found

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[CoreferenceRow], *, batch_size: int) -> Outcome:
        """Find the clusters of every document and score them; `files` has the predictions as CoNLL writes them."""
        found = self.predict(model, tokenizer, rows, batch_size=batch_size)
        pairs = [(row.clusters, clusters) for row, clusters in zip(rows, found, strict=True)]
        scores = coreference_scores(pairs, singletons=self.singletons)
        if self.singletons:
            scores["conll_without_singletons"] = coreference_scores(pairs)["conll"]
        predicted = [replace(row, clusters=clusters) for row, clusters in zip(rows, found, strict=True)]
        lines = [
            {"id": row.id, "part": row.part, "prediction": clusters, "gold": row.clusters}
            for row, clusters in zip(rows, found, strict=True)
        ]
        kind = "with" if self.singletons else "without"
        flavour = f"CoNLL-2012: mean F1 of MUC, B³ and CEAF-φ4, {kind} singletons, over all documents together"
        return Outcome(scores=scores, lines=lines, files={"predictions.conll": conll_text(predicted)}, flavour=flavour)
