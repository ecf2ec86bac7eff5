"""Documents of words as what the model reads, whole or cut between sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from longspan.data.coreference.rows import CoreferenceRow
from longspan.models.pieces import cut
from longspan.tasks.predicting import pad
from longspan.tasks.tokenizers import encode_sentences

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
