"""Coreference: which words of a long document mean the same person, place or thing.

A document is read whole, however long; no token is global. Scores are those of CoNLL-2012.
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
    """Find the mentions of a document and which of them mean the same.

    Attributes:
        singletons: clusters of one mention are annotated (LitBank), so they are learned, found and scored; False: there
            are none (OntoNotes, OntoGUM).
        max_tokens: in training, longer documents are cut between sentences into pieces that are documents of their own;
            None trains on whole ones. Scoring always reads whole ones.
        head_options: what the head is told besides, see `longspan_papers.coreference.CoreferenceHead`.
    """

    name: ClassVar[str] = "coreference"
    head: ClassVar[str | None] = "coreference"
    metrics: ClassVar[Metrics] = Metrics(names=(*SCORES, "conll_without_singletons"))

    singletons: bool = False
    max_tokens: Count | None = None
    head_options: dict[str, Any] = field(default_factory=dict)

    def model_fields(self) -> dict[str, Any]:
        """No token is global; the head with its options."""
        head = {**self.head_options, "head": self.head, "singletons": self.singletons}
        return {"global_tokens": "none", "head": head}

    def fitted(self, config: Any) -> Self:
        """With singletons, where the model was trained on them."""
        return replace(self, singletons=config.head_options(CoreferenceHead).singletons)

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
        """The clusters of each document, in the order of `rows`: mentions as first and last word, counted from 0."""
        features = self.dataset(rows, tokenizer, training=False, seed=0, folder=None)
        predicted: list[tuple[Cluster, ...]] = []
        for batch in batches(model, features, self.collator(tokenizer), batch_size):
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            with torch.no_grad():
                predicted += clusters_of(model(**inputs), singletons=self.singletons)
        return predicted

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[CoreferenceRow], *, batch_size: int) -> Outcome:
        """Find the clusters of every document and score them; `files` has the predictions as CoNLL writes them."""
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
"""The id of a word, sentence or speaker that there is not, and of a mention that fills up a batch."""


def document_features(row: CoreferenceRow, tokenizer: Any, max_tokens: int | None = None) -> list[dict[str, Any]]:
    """What the model reads of a document: one entry, or one for each of its pieces.

    Each word is tokenised by itself, as if a space stood before it. The tokenizer's first and last special tokens,
    where it has any, stand around the document and belong to no word.

    Args:
        row: the document.
        tokenizer: of transformers.
        max_tokens: cut the document between sentences into pieces of at most so many tokens, each a document of
            its own; a sentence that is longer is cut between words. `None` leaves it whole.
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
            [one - start, other - start, number]
            for number, cluster in enumerate(row.clusters)
            for one, other in cluster
            if start <= one and other < end
        ],
    }
    names = [] if row.speakers is None else list(chain.from_iterable(row.speakers))[start:end]
    known = {name: index for index, name in enumerate(dict.fromkeys(filter(None, names)))}
    features["speaker_ids"] = by_token([known.get(name, NONE) for name in names] or [NONE] * (end - start))
    return features


def around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text: CLS or BOS, and SEP or EOS."""
    pairs = ((tokenizer.cls_token_id, tokenizer.bos_token_id), (tokenizer.sep_token_id, tokenizer.eos_token_id))
    first, last = ([one for one in pair if one is not None][:1] for pair in pairs)
    return first, last


def collate(features: Sequence[Mapping[str, Any]], *, padding: int) -> dict[str, Tensor]:
    """Documents to tensors: `input_ids`, `attention_mask` and ids `(B, T)`, `labels` `(B, M, 3)`."""
    ids = {"input_ids": padding, "word_ids": NONE, "sentence_ids": NONE, "speaker_ids": NONE}
    batch = pad(features, ids)
    if all("labels" in one for one in features):
        most = max(1, *(len(one["labels"]) for one in features))
        rows = [[*one["labels"], *[[NONE] * 3] * (most - len(one["labels"]))] for one in features]
        batch["labels"] = torch.tensor(rows)
    return batch


def clusters_of(output: Any, *, singletons: bool) -> list[tuple[Cluster, ...]]:
    """The clusters of each document of a batch.

    Of two mentions of one cluster that cross, only the one with the better score stays: CoNLL's brackets cannot tell
    such mentions apart, and they are never both right.

    Args:
        output: of `LongspanForCoreference`.
        singletons: keep mentions with a score above 0 that nothing joins.
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
    """The mentions of a cluster, less the worse of each two that cross."""
    while (pair := crossing(scores)) is not None:
        worse = min(pair, key=scores.__getitem__)
        scores = {mention: score for mention, score in scores.items() if mention != worse}
    return scores
