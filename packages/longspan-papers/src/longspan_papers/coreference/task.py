"""Coreference: training and evaluation of clusters in long documents.

A document of any length is read as a whole; no token is global. Scores are those of CoNLL-2012.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from longspan.models.pieces import cut
from longspan.settings import Count
from longspan.tasks.base import Metrics, Outcome, Task
from longspan.tasks.predicting import batches, pad
from longspan.tasks.tokenizers import encode_sentences, padding_id
from longspan_papers.coreference import CoreferenceHead
from longspan_papers.coreference.conll import conll_text
from longspan_papers.coreference.metric import SCORES, coreference_scores
from longspan_papers.coreference.reading import read_coreference
from longspan_papers.coreference.rows import Cluster, CoreferenceRow, Mention, crossing, in_order


@dataclass(frozen=True, kw_only=True)
class Coreference(Task):
    """Finds the mentions of a document and clusters those of the same entity.

    Attributes:
        singletons: whether clusters of one mention are annotated (LitBank), so that they are learned, predicted and
            scored; False for data without them (OntoNotes, OntoGUM).
        max_tokens: in training, longer documents are split between sentences into independent pieces; None trains on
            whole documents. Evaluation always reads whole documents.
        head_options: further options of the head, see `longspan_papers.coreference.CoreferenceHead`.
    """

    name: ClassVar[str] = "coreference"
    head: ClassVar[str | None] = "coreference"
    metrics: ClassVar[Metrics] = Metrics(names=(*SCORES, "conll_without_singletons"))

    singletons: bool = False
    max_tokens: Count | None = None
    head_options: dict[str, Any] = field(default_factory=dict)

    def model_fields(self) -> dict[str, Any]:
        """Returns no global tokens, and the head with its options."""
        head = {**self.head_options, "head": self.head, "singletons": self.singletons}
        return {"global_tokens": "none", "head": head}

    def fitted(self, config: Any) -> Self:
        """Takes `singletons` from the trained model."""
        return replace(self, singletons=config.head_options(CoreferenceHead).singletons)

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> list[CoreferenceRow]:
        """Reads the documents of a data set, see `read_coreference`."""
        return list(read_coreference(source, split, limit, on_error=on_error))

    def corpus(self, rows: Sequence[CoreferenceRow]) -> Iterator[str]:
        """Yields each document's words, with a space before each, as they are tokenised."""
        return (" " + " ".join(row.words) for row in rows)

    def dataset(
        self, rows: Sequence[CoreferenceRow], tokenizer: Any, *, training: bool, seed: int, folder: Any
    ) -> list[dict[str, Any]]:
        """Returns features of documents, or in training of their pieces."""
        limit = self.max_tokens if training else None
        return list(chain.from_iterable(document_features(row, tokenizer, limit) for row in rows))

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Returns the collator, see `collate`."""
        return partial(collate, padding=padding_id(tokenizer))

    def predict(
        self, model: Any, tokenizer: Any, rows: Sequence[CoreferenceRow], *, batch_size: int = 1
    ) -> list[tuple[Cluster, ...]]:
        """Predicts the clusters of each document, in the order of `rows`: mentions as first and last word, from 0."""
        features = self.dataset(rows, tokenizer, training=False, seed=0, folder=None)
        predicted: list[tuple[Cluster, ...]] = []
        for batch in batches(model, features, self.collator(tokenizer), batch_size):
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            with torch.no_grad():
                predicted += clusters_of(model(**inputs), singletons=self.singletons)
        return predicted

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[CoreferenceRow], *, batch_size: int) -> Outcome:
        """Predicts and scores the clusters of every document; `files` has the predictions in CoNLL format."""
        clusters_by_row = self.predict(model, tokenizer, rows, batch_size=batch_size)
        pairs = [(row.clusters, clusters) for row, clusters in zip(rows, clusters_by_row, strict=True)]
        scores = coreference_scores(pairs, singletons=self.singletons)
        if self.singletons:
            scores["conll_without_singletons"] = coreference_scores(pairs)["conll"]
        predicted = [replace(row, clusters=clusters) for row, clusters in zip(rows, clusters_by_row, strict=True)]
        lines = [
            {"id": row.id, "part": row.part, "prediction": clusters, "gold": row.clusters}
            for row, clusters in zip(rows, clusters_by_row, strict=True)
        ]
        kind = "with" if self.singletons else "without"
        flavour = f"CoNLL-2012: mean F1 of MUC, B³ and CEAF-φ4, {kind} singletons, over all documents together"
        return Outcome(scores=scores, lines=lines, files={"predictions.conll": conll_text(predicted)}, flavour=flavour)


NONE = -1
"""The id that represents a missing word, sentence or speaker, and padding mentions."""


def document_features(row: CoreferenceRow, tokenizer: Any, max_tokens: int | None = None) -> list[dict[str, Any]]:
    """Returns the model's input for a document: one entry, or one per piece.

    Each word is tokenised separately with a space before it. The tokenizer's first and last special tokens, if it has
    any, enclose the document and belong to no word.

    Args:
        row: the document.
        tokenizer: of transformers.
        max_tokens: splits the document between sentences into pieces of at most this many tokens, each a separate
            document; a longer sentence is split between words. `None` does not split.
    """
    encoded = encode_sentences([f" {word}" for word in row.words], tokenizer)
    lengths, sentences = [*map(len, encoded)], [index for index, words in enumerate(row.sentences) for _ in words]
    bounds = [(0, len(encoded))] if max_tokens is None else cut(sentences, max(1, max_tokens - 2), lengths)
    return [_piece(row, tokenizer, encoded, sentences, start, end) for start, end in bounds]


def _piece(
    row: CoreferenceRow, tokenizer: Any, encoded: list[list[int]], sentences: list[int], start: int, end: int
) -> dict[str, Any]:
    first, last = around(tokenizer)

    def by_token(values: Sequence[int]) -> list[int]:
        spread = [value for value, ids in zip(values, encoded[start:end], strict=True) for _ in ids]
        return [*[NONE] * len(first), *spread, *[NONE] * len(last)]

    features = {
        "input_ids": [*first, *chain.from_iterable(encoded[start:end]), *last],
        "word_ids": by_token(range(end - start)),
        "sentence_ids": by_token([number - sentences[start] for number in sentences[start:end]]),
        "labels": [
            [mention - start, cluster_id - start, number]
            for number, cluster in enumerate(row.clusters)
            for mention, cluster_id in cluster
            if start <= mention and cluster_id < end
        ],
    }
    names = [] if row.speakers is None else list(chain.from_iterable(row.speakers))[start:end]
    known = {name: index for index, name in enumerate(dict.fromkeys(filter(None, names)))}
    features["speaker_ids"] = by_token([known.get(name, NONE) for name in names] or [NONE] * (end - start))
    return features


def around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Returns the special tokens before and after a text: CLS or BOS, and SEP or EOS."""
    pairs = ((tokenizer.cls_token_id, tokenizer.bos_token_id), (tokenizer.sep_token_id, tokenizer.eos_token_id))
    first, last = ([token for token in pair if token is not None][:1] for pair in pairs)
    return first, last


def collate(features: Sequence[Mapping[str, Any]], *, padding: int) -> dict[str, Tensor]:
    """Collates documents to `input_ids`, `attention_mask` and ids `(B, T)`, `labels` `(B, M, 3)`."""
    ids = {"input_ids": padding, "word_ids": NONE, "sentence_ids": NONE, "speaker_ids": NONE}
    batch = pad(features, ids)
    if all("labels" in feature for feature in features):
        most = max(1, *(len(feature["labels"]) for feature in features))
        rows = [[*feature["labels"], *[[NONE] * 3] * (most - len(feature["labels"]))] for feature in features]
        batch["labels"] = torch.tensor(rows)
    return batch


def clusters_of(output: Any, *, singletons: bool) -> list[tuple[Cluster, ...]]:
    """Returns the clusters of each document of a batch.

    Of two crossing mentions of one cluster only the one with the higher score is kept: CoNLL's brackets cannot express
    both, and they are never both right.

    Args:
        output: of `LongspanForCoreference`.
        singletons: keep unlinked mentions with a score above 0.
    """
    best = output.antecedent_scores.argmax(-1) - 1
    chosen = output.antecedents.gather(2, best.clamp(min=0)[..., None])[..., 0] if output.antecedents.shape[2] else best
    chosen = chosen.masked_fill(best < 0, -1)
    documents = zip(
        output.mention_starts.tolist(),
        output.mention_ends.tolist(),
        output.mention_scores.tolist(),
        chosen.tolist(),
        strict=True,
    )
    return [_clusters(*document, singletons=singletons) for document in documents]


def _clusters(
    starts: Sequence[int], ends: Sequence[int], scores: Sequence[float], antecedents: Sequence[int], *, singletons: bool
) -> tuple[Cluster, ...]:
    clusters: list[dict[Mention, float]] = []
    owner: dict[int, int] = {}
    for index, (start, end, score, antecedent) in enumerate(zip(starts, ends, scores, antecedents, strict=True)):
        if start < 0:
            break
        owner[index] = owner[antecedent] if antecedent >= 0 else len(clusters)
        if antecedent < 0:
            clusters.append({})
        clusters[owner[index]][start, end] = score
    flat = [without_crossing(cluster) for cluster in clusters]
    return in_order(
        cluster for cluster in flat if len(cluster) > 1 or (singletons and next(iter(cluster.values())) > 0)
    )


def without_crossing(scores: dict[Mention, float]) -> dict[Mention, float]:
    """Returns the mentions of a cluster without the lower-scored of each crossing pair."""
    while (pair := crossing(scores)) is not None:
        worse = min(pair, key=scores.__getitem__)
        scores = {mention: score for mention, score in scores.items() if mention != worse}
    return scores
