"""Question answering over long documents: Natural Questions and TyDi QA, from rows to their official metrics.

Rows are not read into memory: `read` returns sources, which are streamed when needed (for a tokenizer's corpus, the
training chunks on disk, evaluation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

from longspan.data.ragged import Ragged
from longspan.errors import InputError
from longspan.settings import Count
from longspan.tasks.base import Losses, Metrics, Outcome, Task, check_room, room_for
from longspan.tasks.row_sources import RowSource, identities_of, rows_of
from longspan.tasks.tokenizers import padding_id
from longspan_documents.questions.rows import QuestionRow
from longspan_papers.natural_questions import NaturalQuestionsHead as Head
from longspan_papers.natural_questions.answering import answer_rows
from longspan_papers.natural_questions.chunks import question_chunks
from longspan_papers.natural_questions.features import collate
from longspan_papers.natural_questions.metric import (
    SCORES,
    VOTES,
    AnswerLabel,
    annotations_of,
    curve,
    judge_long,
    judge_passage,
    natural_questions_scores,
    tydi_scores,
    votes_needed,
)
from longspan_papers.natural_questions.network import LABELS
from longspan_papers.natural_questions.options import PassageTypes, QuestionOptions, marker_tokens
from longspan_papers.natural_questions.predictions import answer_label, line, official_files
from longspan_papers.natural_questions.reading import QUESTIONS, read_questions

GROUP = 64
"""Number of documents in memory at a time during evaluation."""


class QuestionSource(RowSource):
    """A data set, file or folder of questions."""

    kind = QUESTIONS

    def rows(self) -> Iterator[QuestionRow]:
        """Yields its annotated rows, one at a time."""
        return read_questions(self.source, self.split, self.limit, on_error=self.on_error)


@dataclass(frozen=True, kw_only=True)
class NaturalQuestions(QuestionOptions, Task):
    """Finds the passage that answers a question, the short answer in it, and whether there is one.

    All question tokens are global, in training and in inference, by the collator and the model's configuration.

    Attributes:
        max_answer_tokens: the longest short answer.
        null_paragraph: whether chunks without the answer are trained to choose none of their passages, see the head.
    """

    name: ClassVar[str] = "natural_questions"
    head: ClassVar[str | None] = "natural_questions"
    counts_rows: ClassVar[bool] = False
    metrics: ClassVar[Metrics] = Metrics(names=SCORES)

    max_answer_tokens: Count = 30
    null_paragraph: bool = False

    def model_fields(self) -> dict[str, Any]:
        """Returns global question tokens; the head and the number of token types."""
        head = {"head": self.head, "answer_types": self.answer_types, "null_paragraph": self.null_paragraph}
        fields = {"global_tokens": "question", "head": head}
        return fields | ({"type_vocab_size": self._types} if self._types else {})

    @property
    def _types(self) -> int:
        return PassageTypes.COUNT if self.passage_types else PassageTypes.MATCHES if self.match_types else 0

    def new_tokens(self) -> Sequence[str]:
        """Returns the markers of passages."""
        return marker_tokens(self)

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for chunks longer than the model's positions, and for incompatible heads or token
        types."""
        check_room(self.max_tokens, config)
        known = config.head_options(Head).answer_types
        if self.answer_types != known:
            raise InputError(f"task.answer_types is {self.answer_types} but the model's is {known}; make them agree")
        if config.type_vocab_size < self._types:
            option = "passage_types" if self.passage_types else "match_types"
            raise InputError(
                f"task.{option} needs type_vocab_size={self._types}, and the model has {config.type_vocab_size}; "
                "set it to false, or leave type_vocab_size out of model.new"
            )

    def fitted(self, config: Any) -> Self:
        """Limits chunks to the model's number of positions; takes its number of answer types."""
        most = room_for(self.max_tokens, config)
        head = config.head_options(Head)
        return replace(
            self,
            max_tokens=most,
            stride=min(self.stride, max(1, most // 2)),
            answer_types=head.answer_types,
            null_paragraph=head.null_paragraph,
            match_types=config.type_vocab_size >= PassageTypes.MATCHES,
            passage_types=config.type_vocab_size >= PassageTypes.COUNT,
        )

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> list[QuestionSource]:
        """Locates the source without reading it. `limit` counts rows over all sources."""
        return QuestionSource.located(source, split, limit, on_error=on_error)

    def corpus(self, rows: Sequence[QuestionSource]) -> Iterator[str]:
        """Yields one text per row: question and document together."""
        return (f"{row.question}\n{row.text}" for row in rows_of(rows))

    def dataset(
        self, rows: Sequence[QuestionSource], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> Ragged:
        """Returns chunks, written once to `folder/chunks-train` or `folder/chunks-validation`."""
        return question_chunks(
            folder / f"chunks-{'train' if training else 'validation'}",
            rows_of(rows),
            tokenizer,
            self,
            sources=identities_of(rows),
            training=training,
            seed=seed,
        )

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Returns the collator, see `collate`."""
        return partial(collate, padding=padding_id(tokenizer), passage_types=self.passage_types)

    def losses(self) -> Losses:
        """The losses of several heads, averaged over the rows."""
        return Losses(labels=LABELS)

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[Any], *, batch_size: int) -> Outcome:
        """Answers every row and scores the answers by the official metric of its data set.

        `scores` holds the result of `natural_questions_scores`, or of `tydi_scores`, or both; and
        `probability_threshold`, the threshold on `Answer.probability` with the best F1 of the long answer. `files`
        holds the official prediction files. The rows may be sources or `QuestionRow`s.
        """
        judged: list[_Judged] = []
        lines: list[dict[str, Any]] = []
        stream = rows_of(rows)
        while group := list(islice(stream, GROUP)):
            answers = answer_rows(model, tokenizer, group, self, batch_size)
            for row, answer in zip(group, answers, strict=True):
                bare = replace(row, question="", text="", candidates=(), annotations=(), tokens=None)
                judged.append(_Judged(bare, annotations_of(row), answer_label(row, answer), answer.probability))
                lines.append(line(row, answer))
        if not judged:
            raise InputError("the data gives no rows with annotations to score; name other data")
        files = official_files((item.row, item.predicted) for item in judged)
        return Outcome(scores=_scores(judged), lines=lines, files=files, flavour=_flavour(judged))


@dataclass(frozen=True)
class _Judged:
    """The part of a row that is kept after its document is released."""

    row: QuestionRow
    gold: list[AnswerLabel]
    predicted: AnswerLabel
    probability: float

    @property
    def tydi(self) -> bool:
        return self.row.source == "tydi"


def _scores(judged: list[_Judged]) -> dict[str, float]:
    questions = [item for item in judged if not item.tydi]
    tydi = [item for item in judged if item.tydi]
    scores: dict[str, float] = {}
    if questions:
        scores |= natural_questions_scores([item.gold for item in questions], [item.predicted for item in questions])
    if tydi:
        languages = [item.row.language for item in tydi]
        scores |= tydi_scores([item.gold for item in tydi], [item.predicted for item in tydi], languages)
    votes = votes_needed(item.gold for item in judged)
    by_probability = curve(
        (judge_passage if item.tydi else judge_long)(
            item.gold, replace(item.predicted, long_score=item.probability), votes
        )
        for item in judged
    )
    return scores | {"probability_threshold": by_probability.threshold}


def _flavour(judged: list[_Judged]) -> str:
    several = votes_needed(item.gold for item in judged) == VOTES
    votes = f"{VOTES} annotators must have answered" if several else "one annotator: the only vote decides"
    kinds = []
    if any(not item.tydi for item in judged):
        kinds.append("Natural Questions' metric (long and short answers)")
    if languages := {item.row.language for item in judged if item.tydi}:
        mean = f"mean over {len(languages - {'english'}) or 1} languages"
        kinds.append(f"TyDi QA's metric (passages and minimal answers, {mean})")
    return f"{' and '.join(kinds)}, best threshold on these rows; {votes}"
