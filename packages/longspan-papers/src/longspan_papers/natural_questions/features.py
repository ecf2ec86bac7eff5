"""A question and its document as chunks for the model: `<s> question </s> part of the document </s>`.

- **Chunks** begin every `stride` tokens of the document (`longspan_documents.text.passages.chunk_map`); every token of
  the document is in one or more of them, and all question tokens are in each.
- **The target answer** (BERT-joint, Alberti et al. 2019): of the annotations whose long answer can be chosen, sorted by
  candidate, the first with short answers, else the first. The short target reaches from its first short span to its
  last.
- **A chunk contains the short answer** if it contains all of it. A short answer cut by a chunk border counts as absent.
- **A chunk contains the long answer** if it contains the short one, or at least half of the passage's tokens, or if at
  least half of the chunk is the passage (which may be longer than a chunk). A passage is pooled over its visible
  tokens.
- **A chunk that contains neither** is a negative: start and end are 0 (the first token), no passage is right.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor

from longspan.data.fields import check_text
from longspan.errors import InputError
from longspan.models.losses import IGNORED
from longspan.tasks.predicting import pad
from longspan_documents.questions.rows import QuestionRow, Span
from longspan_documents.questions.tokens import NOWHERE, encode_text
from longspan_documents.text.passages import Chunk, chunk_map
from longspan_papers.natural_questions.document import Stream, tokenize_document, usable_candidates
from longspan_papers.natural_questions.network import LABELS
from longspan_papers.natural_questions.options import PassageTypes, QuestionOptions

logger = logging.getLogger(f"longspan.{__name__}")

NULL, YES, NO, SHORT, LONG = range(5)
"""The five answer types; with two, all except `NULL` are 1."""

LEAST_SHARE = 8
"""A question must leave at least one in this many tokens of a chunk for the document."""


class ChunkFeatures(TypedDict):
    """One chunk (T tokens, C passages), as plain lists. The labels are absent if the row has no annotations."""

    input_ids: list[int]
    question_tokens: int
    """Number of leading tokens, special ones included, that are the question: they are global."""
    paragraph_ids: list[int]
    """(T) passage of each token, 0 … C − 1 in order of appearance, or −1."""
    token_type_ids: NotRequired[list[int]]
    """(T) see `QuestionOptions.match_types`."""
    start_positions: NotRequired[int]
    end_positions: NotRequired[int]
    """First and last token of the short answer in the chunk; 0 for none."""
    paragraph_labels: NotRequired[int]
    """The long answer among the chunk's passages; −100 for none."""
    answer_types: NotRequired[int]
    token_spans: list[tuple[int, int]]
    """(T) characters of each token in `QuestionRow.text`; (−1, −1) for question, special, marker and blank tokens."""
    candidates: list[int]
    """(C) the passages as indices into `QuestionRow.candidates`."""
    chunk: int
    """Its index in the document, from 0."""


@dataclass(frozen=True)
class Target:
    """The training target: a candidate, the tokens of the short answer (both inclusive) in the stream, yes or no."""

    candidate: int
    short: tuple[int, int] | None
    yes_no: str


def chunk_features(
    row: QuestionRow, tokenizer: Any, options: QuestionOptions, *, training: bool = False, seed: int = 0
) -> list[ChunkFeatures]:
    """Returns all chunks of a row, in order; for training, without most negatives.

    In training a negative chunk is kept with probability `keep_negatives`, which depends only on the seed, the row's id
    and the chunk's index; a chunk without a passage is always dropped, since it has no gradient. Otherwise every chunk
    is returned.

    Raises:
        InputError: the question is empty, or so long that it leaves no room for the document; the document has no
            tokens; the tokenizer has no offsets, no special tokens or no markers.
    """
    first, separator = special_ids(tokenizer)
    question = [first, *_question_ids(row, tokenizer, options), separator]
    size = options.max_tokens - len(question) - 1
    if size < max(1, options.max_tokens // LEAST_SHARE):
        raise InputError(
            f"the question of row {row.id!r} has {len(question) - 2} tokens, which leaves {max(size, 0)} of "
            f"max_tokens={options.max_tokens} for the document; shorten it, raise max_tokens or set max_question_tokens"
        )
    stream = tokenize_document(row, tokenizer, options)
    target = find_target(row, stream, options)
    chunks = []
    for number, chunk in enumerate(chunk_map(len(stream.ids), size, min(options.stride, size))):
        features = _features(number, chunk, question, separator, stream, options)
        if row.annotations:
            _label(features, chunk, stream, target, options)
        if not training or _is_trained_on(features, row.id, options.keep_negatives, seed):
            chunks.append(features)
    return chunks


def special_ids(tokenizer: Any) -> tuple[int, int]:
    """Returns the ids of the token that begins a sequence and of the one that separates its parts."""
    first = next((i for i in (tokenizer.cls_token_id, tokenizer.bos_token_id) if i is not None), None)
    separator = next((i for i in (tokenizer.sep_token_id, tokenizer.eos_token_id) if i is not None), None)
    if first is None or separator is None:
        raise InputError(
            "the tokenizer lacks a cls_token or bos_token, or a sep_token or eos_token, which stand around the "
            "question; set them, or use the model's tokenizer"
        )
    return first, separator


def _question_ids(row: QuestionRow, tokenizer: Any, options: QuestionOptions) -> list[int]:
    what = f"the question of row {row.id!r}"
    ids, _ = encode_text(tokenizer, check_text(row.question, what).strip(), what)
    if options.max_question_tokens is not None and len(ids) > options.max_question_tokens:
        _warn_of_cut_questions(options.max_question_tokens)
    return ids[: options.max_question_tokens]


def find_target(row: QuestionRow, stream: Stream, options: QuestionOptions) -> Target | None:
    """Returns the annotation to train on, as tokens of the stream; None if no annotation's answer can be chosen."""
    candidates = set(usable_candidates(row, options))
    usable = [note for note in row.annotations if note.candidate in candidates]
    usable.sort(key=lambda note: note.candidate or 0)  # stable: annotators in order within a candidate
    chosen = next((note for note in usable if note.short), usable[0] if usable else None)
    if chosen is None or chosen.candidate is None:
        return None
    short = None
    if chosen.short:
        whole = Span(min(span.start for span in chosen.short), max(span.end for span in chosen.short))
        short = stream.tokens_of(whole)
    return Target(chosen.candidate, short, chosen.yes_no)


def _features(
    number: int, chunk: Chunk, question: list[int], separator: int, stream: Stream, options: QuestionOptions
) -> ChunkFeatures:
    inside = slice(chunk.start, chunk.end)
    passages, spans, before = stream.passages[inside], stream.spans[inside], len(question)
    # A passage of which only the markers are visible does not count as visible.
    visible = (place for place, span in zip(passages, spans, strict=True) if place >= 0 and span != NOWHERE)
    candidates = list(dict.fromkeys(visible))
    local = {index: place for place, index in enumerate(candidates)}
    features: ChunkFeatures = {
        "input_ids": [*question, *stream.ids[inside], separator],
        "question_tokens": before,
        "paragraph_ids": [*[-1] * before, *(local.get(index, -1) for index in passages), -1],
        "token_spans": [*[NOWHERE] * before, *spans, NOWHERE],
        "candidates": candidates,
        "chunk": number,
    }
    if options.match_types:
        features["token_type_ids"] = [*[0] * before, *stream.types[inside], 0]
    return features


def _label(
    features: ChunkFeatures, chunk: Chunk, stream: Stream, target: Target | None, options: QuestionOptions
) -> None:
    """Adds start, end, passage and type of the answer to the features of one chunk."""
    features["start_positions"] = features["end_positions"] = 0
    features["paragraph_labels"], features["answer_types"] = IGNORED, NULL
    if target is None or target.candidate not in features["candidates"]:
        return
    short = target.short
    whole = short is not None and chunk.start <= short[0] and short[1] < chunk.end
    visible = stream.passages[chunk.start : chunk.end].count(target.candidate)
    if not whole and 2 * visible < min(stream.passages.count(target.candidate), len(chunk)):
        return
    if whole and short is not None:
        shift = features["question_tokens"] - chunk.start
        features["start_positions"], features["end_positions"] = short[0] + shift, short[1] + shift
    kind = {"yes": YES, "no": NO}.get(target.yes_no, SHORT if whole else LONG)
    features["paragraph_labels"] = features["candidates"].index(target.candidate)
    features["answer_types"] = kind if options.answer_types == 5 else 1


def _is_trained_on(features: ChunkFeatures, name: str, probability: float, seed: int) -> bool:
    """Whether a chunk is trained on; depends only on seed, row and chunk."""
    if features.get("answer_types", NULL) != NULL:
        return True
    if not features["candidates"]:
        return False
    key = f"{seed}\0{name}\0{features['chunk']}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=7).digest(), "big") < probability * 2**56


def collate(
    features: Sequence[Mapping[str, Any]], *, padding: int, multiple: int = 1, passage_types: bool = False
) -> dict[str, Tensor]:
    """Collates chunks to tensors (B chunks, T tokens), without the fields for inference (`token_spans`, …).

    `input_ids`, both masks (a question's tokens are global), `paragraph_ids` (B, T), −1 for tokens in no passage;
    `token_type_ids` (B, T) if all chunks have them, or (B, T, 3) if packed, see `passage_types`; `start_positions`,
    `end_positions`, `paragraph_labels`, `answer_types` (B) if all chunks have labels.
    """
    fillers = {"input_ids": padding, "paragraph_ids": -1, "token_type_ids": 0}
    batch = pad(features, fillers, leading=[chunk["question_tokens"] for chunk in features], multiple=multiple)
    if passage_types and "token_type_ids" in batch:
        batch["token_type_ids"] = PassageTypes.unpack(batch["token_type_ids"])
    for name in LABELS:
        if all(name in chunk for chunk in features):
            batch[name] = torch.tensor([chunk[name] for chunk in features])
    return batch


@cache
def _warn_of_cut_questions(limit: int) -> None:
    """Logs the truncation once per limit."""
    logger.warning("some questions have more tokens than max_question_tokens=%d and are cut", limit)
