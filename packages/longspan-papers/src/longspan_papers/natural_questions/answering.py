"""Combines a model's logits over the chunks of a document into one answer: passage, short answer, yes or no,
probability.

A passage may be in several chunks; each chunk scores it, and the maximum counts (s, e, a, t as in
`longspan_papers.natural_questions.head`)::

    log-odds    = log of p(any answer) / p(no answer)              from t, per chunk
    long score  = a_c + log-odds                                   per passage, maximum over chunks
    short score = s_i + e_j − (s_0 + e_0), 0 ≤ j − i < limit       both ends within the passage, maximum over chunks

The short answer is searched in the chosen passage only. Every answer is returned with its scores; callers apply
thresholds, such as those found by `longspan evaluate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from longspan.errors import InputError
from longspan.tasks.predicting import batches
from longspan.tasks.tokenizers import padding_id
from longspan_documents.questions.rows import QuestionRow, Span
from longspan_documents.questions.scores import NEVER, best_spans
from longspan_papers.natural_questions.features import NO, NULL, YES, ChunkFeatures, chunk_features, collate
from longspan_papers.natural_questions.network import LABELS


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A model's answer to the question of a row.

    Attributes:
        candidate: the long answer as index into `QuestionRow.candidates`; None if there was no passage to choose from.
        long_score: of the candidate, see above; -inf without one.
        short: the short answer, at most one span of `QuestionRow.text`, inside the candidate; empty for yes or no.
        short_score: of the span, see above: above 0 if the model prefers it to "no short answer"; for yes or no, the
            log of p(yes) / p(no answer) or p(no) / p(no answer).
        yes_no: "yes" or "no" if a model with five answer types finds one of them the most likely type.
        probability: that the document answers the question: the sigmoid of the log-odds of the chunk with the long
            answer. Its calibration is the model's; training on a part of the negative chunks raises it.
        candidate_scores: the long score of every candidate of the row; None for candidates in no chunk.
        candidate_probabilities: for every candidate, the probability that the document answers and that this is the
            passage: probability times the softmax of the long scores; 0 for candidates in no chunk. The chosen one has
            the highest.
    """

    candidate: int | None = None
    long_score: float = NEVER
    short: tuple[Span, ...] = ()
    short_score: float = NEVER
    yes_no: str = "none"
    probability: float = 0.0
    candidate_scores: tuple[float | None, ...] = ()
    candidate_probabilities: tuple[float, ...] = ()


class ChunkReading(NamedTuple):
    """A model's output for one chunk with C passages, as Python numbers."""

    offers: list[tuple[int, float, float, Span]]
    """(C) each passage as index into `QuestionRow.candidates`, its a_c, the score of its best short answer, and that
    span."""
    answer: list[float]
    """Logits of the answer types."""

    @property
    def log_odds(self) -> float:
        """Log-odds of any answer against none: logsumexp of the answer types' logits, minus the logit of no answer."""
        types = torch.tensor(self.answer, dtype=torch.float64)
        return float(types[NULL + 1 :].logsumexp(0) - types[NULL])


def answer_row(model: Any, tokenizer: Any, row: QuestionRow, options: Any, batch_size: int = 1) -> Answer:
    """Returns the answer to one row's question, see `answer_rows`."""
    return answer_rows(model, tokenizer, [row], options, batch_size)[0]


def answer_rows(
    model: Any, tokenizer: Any, rows: Sequence[QuestionRow], options: Any, batch_size: int = 1
) -> list[Answer]:
    """Returns the answers to the questions of rows, without using annotations.

    Args:
        model: a `LongspanForNaturalQuestions`.
        tokenizer: of that model, with its marker tokens if the options use them.
        rows: questions over documents of any length.
        options: the task, `NaturalQuestions`: chunking and `max_answer_tokens`.
        batch_size: number of chunks, of one row or several, per forward pass; affects only speed.

    Raises:
        InputError: batch_size is below 1; `chunk_features` rejects the question or tokenizer.
    """
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size} is less than 1; give the number of chunks to read at once")
    padding = padding_id(tokenizer)
    merges: list[_Merge] = [_Merge(row) for row in rows]

    def batch_of(numbered: list[tuple[int, ChunkFeatures]]) -> dict[str, Any]:
        batch = collate([chunk for _, chunk in numbered], padding=padding, passage_types=options.passage_types)
        return {**batch, "numbered": numbered}

    for batch in batches(model, _Chunks(rows, tokenizer, options), batch_of, batch_size):
        numbered = batch.pop("numbered")
        readings = read_chunks(model, batch, [chunk for _, chunk in numbered], options.max_answer_tokens)
        for (number, _), reading in zip(numbered, readings, strict=True):
            merges[number].add(reading)
    return [merge.answer() for merge in merges]


@torch.no_grad()
def read_chunks(
    model: Any, batch: dict[str, Tensor], chunks: Sequence[ChunkFeatures], max_answer_tokens: int
) -> list[ChunkReading]:
    """Returns the model's output for each chunk of a collated batch, in one forward pass; labels are ignored.

    Answers have at most `max_answer_tokens` tokens.
    """
    inputs = {name: value for name, value in batch.items() if name not in LABELS}
    most = max(len(chunk["candidates"]) for chunk in chunks)
    output = model(**inputs, max_paragraphs=most)
    width = inputs["input_ids"].shape[1]
    paragraphs = inputs["paragraph_ids"].masked_fill(~_usable(chunks, width).to(output.start_logits.device), -1)
    start, end = output.start_logits.float(), output.end_logits.float()
    scores, first, last = best_spans(start, end, paragraphs, most, max_answer_tokens)
    scores = scores - (start[:, :1] + end[:, :1])
    readings = []
    for row, chunk in enumerate(chunks):
        numbers = (column[row].tolist() for column in (output.paragraph_logits.float(), scores, first, last))
        best = zip(chunk["candidates"], *numbers, strict=False)
        places = chunk["token_spans"]
        offers = [(index, logit, score, Span(places[i][0], places[j][1])) for index, logit, score, i, j in best]
        readings.append(ChunkReading(offers, output.answer_logits[row].float().tolist()))
    return readings


def _usable(chunks: Sequence[ChunkFeatures], width: int) -> Tensor:
    """Returns `(B, width)` bool: tokens that can begin or end an answer, which are words of the document."""
    usable = torch.zeros(len(chunks), width, dtype=torch.bool)
    for row, chunk in enumerate(chunks):
        usable[row, : len(chunk["token_spans"])] = torch.tensor([start >= 0 for start, _ in chunk["token_spans"]])
    return usable


class _Chunks(IterableDataset[tuple[int, ChunkFeatures]]):
    """The chunks of some rows that contain a passage, with the index of their row; tokenises one row at a time."""

    def __init__(self, rows: Sequence[QuestionRow], tokenizer: Any, options: Any) -> None:
        self.rows, self.tokenizer, self.options = rows, tokenizer, options

    def __iter__(self) -> Iterator[tuple[int, ChunkFeatures]]:
        for number, row in enumerate(self.rows):
            for chunk in chunk_features(row, self.tokenizer, self.options):
                if chunk["candidates"]:
                    yield number, chunk


@dataclass
class _Merge:
    """The best scores over a row's chunks."""

    row: QuestionRow
    long: dict[int, tuple[float, ChunkReading]] = field(default_factory=dict)
    short: dict[int, tuple[float, Span]] = field(default_factory=dict)

    def add(self, chunk: ChunkReading) -> None:
        """Adds a chunk; ties keep the earlier chunk."""
        odds = chunk.log_odds
        for candidate, logit, score, span in chunk.offers:
            if candidate not in self.long or logit + odds > self.long[candidate][0]:
                self.long[candidate] = (logit + odds, chunk)
            if candidate not in self.short or score > self.short[candidate][0]:
                self.short[candidate] = (score, span)

    def answer(self) -> Answer:
        """Returns the best candidate, the first in ties, with its short answer."""
        candidates = range(len(self.row.candidates))
        scores = tuple(self.long[index][0] if index in self.long else None for index in candidates)
        if not self.long:
            return Answer(candidate_scores=scores, candidate_probabilities=tuple(0.0 for _ in candidates))
        chosen = min(self.long, key=lambda index: (-self.long[index][0], index))
        long_score, chunk = self.long[chosen]
        short_score, span = self.short[chosen]
        yes_no = _yes_or_no(chunk.answer)
        if yes_no != "none":
            short_score = chunk.answer[YES if yes_no == "yes" else NO] - chunk.answer[NULL]
        probability = float(torch.tensor(chunk.log_odds, dtype=torch.float64).sigmoid())
        shares = torch.tensor([NEVER if score is None else score for score in scores], dtype=torch.float64).softmax(0)
        return Answer(
            candidate=chosen,
            long_score=long_score,
            short=() if yes_no != "none" else (span,),
            short_score=short_score,
            yes_no=yes_no,
            probability=probability,
            candidate_scores=scores,
            candidate_probabilities=tuple((probability * shares).tolist()),
        )


def _yes_or_no(types: list[float]) -> str:
    """Returns "yes" or "no" if it is the most likely answer type, else "none"."""
    if len(types) == 2:
        return "none"
    kind = max(range(NULL + 1, len(types)), key=types.__getitem__)
    return {YES: "yes", NO: "no"}.get(kind, "none")
