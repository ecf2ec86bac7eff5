"""HotpotQA in the distractor setting: the answer to a question, and its supporting sentences in two paragraphs.

Longformer's system has two stages with the same heads. The first model reads all paragraphs; its evaluation writes, in
addition to the predictions, the data set reduced to the paragraphs it finds relevant, at most five. The second model is
trained and evaluated on those files. Scores include the losses of the first stage: annotations are never reduced.

From a model's logits over a question and its paragraphs:

- **Paragraphs**: the two with the highest relevance, ties broken by order (the paper states that evidence comes from
  exactly two, not which; this is our rule).
- **Evidence**: their sentences whose logit is above 0, and at least the best one of each.
- **Answer**: yes or no if that is the most likely type; else the span of the two paragraphs with the highest `s_i +
  e_j`, inside one sentence or title, taken from the original text.
- **Second stage**: at most the five best paragraphs with a relevance above −3, as in the paper, which states no
  minimum number; optionally a minimum number regardless of relevance; in the order of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.settings import LARGEST, Count, Range
from longspan.tasks.base import Losses, Metrics, Outcome, Task, check_room, room_for
from longspan.tasks.predicting import FeatureRows, batches
from longspan.tasks.tokenizers import padding_id
from longspan_documents.questions.scores import best_spans
from longspan_papers.hotpotqa.features import BESIDE, MARKS, collate, hop_features
from longspan_papers.hotpotqa.head import LABELS, NO, WORDS, YES
from longspan_papers.hotpotqa.metric import SCORES, match_answer, match_facts, multi_hop_scores
from longspan_papers.hotpotqa.reading import read_multi_hop, record_of
from longspan_papers.hotpotqa.rows import Fact, HopRow, Occurrence

PARAGRAPHS = 2
"""Number of paragraphs with evidence."""


@dataclass(frozen=True, kw_only=True)
class HopAnswer:
    """A model's answer to a row.

    Attributes:
        answer: words of the row, "yes" or "no"; empty if no words were visible.
        facts: the supporting sentences.
        relevance: logit of each paragraph; -inf for truncated paragraphs.
        place: the occurrence of the words; None for yes and no.
    """

    answer: str
    facts: tuple[Fact, ...]
    relevance: tuple[float, ...]
    place: Occurrence | None = None


def best_paragraphs(relevance: Sequence[float], count: int) -> list[int]:
    """Returns the `count` most relevant visible paragraphs, best first."""
    visible = [number for number, value in enumerate(relevance) if value > float("-inf")]
    return sorted(visible, key=lambda number: (-relevance[number], number))[:count]


def selected_paragraphs(
    relevance: Sequence[float], *, most: int, threshold: float, least: int = PARAGRAPHS
) -> list[int]:
    """Returns the paragraphs for the second stage, in order: those of the `most` best above the threshold, and the
    `least` best in any case."""
    best = best_paragraphs(relevance, most)
    return sorted(number for place, number in enumerate(best) if place < least or relevance[number] > threshold)


def reduced(row: HopRow, answer: HopAnswer, *, most: int, threshold: float, least: int = PARAGRAPHS) -> HopRow:
    """Returns the row with the selected paragraphs only, possibly none; its annotations are unchanged."""
    numbers = selected_paragraphs(answer.relevance, most=most, threshold=threshold, least=least)
    return replace(row, paragraphs=tuple(row.paragraphs[number] for number in numbers))


def decode(
    output: Any, features: Sequence[Mapping[str, Any]], rows: Sequence[HopRow], max_answer_tokens: int
) -> list[HopAnswer]:
    """Returns the answers of a batch.

    Args:
        output: of `LongspanForMultiHop`.
        features: of each row, see `hop_features`.
        rows: the rows of the features.
        max_answer_tokens: the longest answer.
    """
    relevance, evidence, start, end = (
        logits.float().cpu()
        for logits in (output.relevance_logits, output.evidence_logits, output.start_logits, output.end_logits)
    )
    kinds = output.type_logits.argmax(-1).tolist()
    scores = [
        _by_paragraph(values, feature, row) for values, feature, row in zip(relevance, features, rows, strict=True)
    ]
    chosen = [best_paragraphs(values, PARAGRAPHS) for values in scores]
    places = _spans(start, end, features, chosen, max_answer_tokens)
    answers = []
    for index, row in enumerate(rows):
        place = places[index] if kinds[index] == WORDS else None
        answer = {YES: "yes", NO: "no"}.get(kinds[index], "" if place is None else row.text(place))
        facts = _facts(evidence[index], features[index], chosen[index], row)
        answers.append(HopAnswer(answer=answer, facts=facts, relevance=scores[index], place=place))
    return answers


def _by_paragraph(values: Tensor, features: Mapping[str, Any], row: HopRow) -> tuple[float, ...]:
    scores = [float("-inf")] * len(row.paragraphs)
    for token, number in features["titles"]:
        scores[number] = float(values[token])
    return tuple(scores)


def _facts(values: Tensor, features: Mapping[str, Any], chosen: Sequence[int], row: HopRow) -> tuple[Fact, ...]:
    """Returns the predicted sentences of the chosen paragraphs, in the order of the paragraphs."""
    facts: list[Fact] = []
    for number in chosen:
        scores = {index: float(values[token]) for token, owner, index in features["marks"] if owner == number}
        if scores:
            best = max(scores, key=lambda index: (scores[index], -index))
            facts += [(row.paragraphs[number].title, i) for i, score in scores.items() if score > 0 or i == best]
    return tuple(facts)


def _spans(
    start: Tensor, end: Tensor, features: Sequence[Mapping[str, Any]], chosen: Sequence[Sequence[int]], longest: int
) -> list[Occurrence | None]:
    """Returns the best span in the chosen paragraphs of each row; None if none of them is visible."""
    parts = torch.full(start.shape, -1)
    for row, (feature, numbers) in enumerate(zip(features, chosen, strict=True)):
        usable = [part if part >= 0 and feature["owners"][part][0] in numbers else -1 for part in feature["parts"]]
        parts[row, : len(usable)] = torch.tensor(usable)
    most = max(1, int(parts.max()) + 1)
    scores, first, last = best_spans(start, end, parts, most, longest)
    occurrences: list[Occurrence | None] = []
    for row, feature in enumerate(features):
        part = int(scores[row].argmax())
        if scores[row, part] == float("-inf"):
            occurrences.append(None)
            continue
        (paragraph, sentence), places = feature["owners"][part], (int(first[row, part]), int(last[row, part]))
        occurrences.append(
            Occurrence(paragraph, sentence, feature["spans"][places[0]][0], feature["spans"][places[1]][1])
        )
    return occurrences


@dataclass(frozen=True, kw_only=True)
class MultiHop(Task):
    """Answers a question from two of several paragraphs, with the supporting sentences.

    Attributes:
        max_tokens: maximum tokens of a row, which is truncated at the end.
        max_question_tokens: maximum tokens of a question, which is truncated.
        max_answer_tokens: the longest answer.
        global_on: the global tokens. "marks": the question, the token before each title and the one after each
            sentence, as in the paper; "question": only the question, which a small model trained from scratch learns
            faster.
        match_steps: 1: `token_type_ids` mark the words of the question, ignoring case and endings; 2: also rare words
            next to one of these in a sentence, see `word_types`; 0: no types.
        kept_paragraphs: maximum number of paragraphs per question written for the second stage.
        relevance_above: minimum relevance logit of these paragraphs.
        least_paragraphs: number of best paragraphs kept regardless of relevance; 0 may keep none, as in the paper, so
            that the second stage answers without any paragraph.
    """

    name: ClassVar[str] = "multi_hop"
    head: ClassVar[str | None] = "multi_hop"
    metrics: ClassVar[Metrics] = Metrics(names=(*SCORES, "paragraphs_found"))

    max_tokens: Annotated[int, Range(16, LARGEST)] = 4096
    max_question_tokens: Count = 128
    max_answer_tokens: Count = 30
    global_on: Literal["marks", "question"] = "marks"
    match_steps: Literal[0, 1, 2] = 0
    kept_paragraphs: Annotated[int, Range(PARAGRAPHS, 1000)] = 5
    relevance_above: Annotated[float, Range(-1e6, 1e6)] = -3.0
    least_paragraphs: Annotated[int, Range(0, 1000)] = PARAGRAPHS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least_paragraphs > self.kept_paragraphs:
            raise InputError(
                f"least_paragraphs={self.least_paragraphs} is more than kept_paragraphs={self.kept_paragraphs}, which "
                "is the most; lower it"
            )

    def model_fields(self) -> dict[str, Any]:
        """Returns the head, and the number of token types."""
        return super().model_fields() | ({"type_vocab_size": self._types} if self._types else {})

    @property
    def _types(self) -> int:
        return BESIDE + 1 if self.match_steps == 2 else BESIDE * self.match_steps

    def new_tokens(self) -> Sequence[str]:
        """Returns the markers of questions, titles and sentences."""
        return MARKS

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for rows longer than the model's positions, and for missing token types."""
        check_room(self.max_tokens, config)
        if config.type_vocab_size < self._types:
            raise InputError(
                f"task.match_steps={self.match_steps} needs type_vocab_size={self._types}, and the model has "
                f"{config.type_vocab_size}; set it to 0, or leave type_vocab_size out of model.new"
            )

    def fitted(self, config: Any) -> Self:
        """Limits rows to the model's number of positions."""
        return replace(self, max_tokens=room_for(self.max_tokens, config))

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> list[HopRow]:
        """Reads questions with their paragraphs; those of the split "test" may lack answers, as the official ones
        do."""
        return list(read_multi_hop(source, split, limit, on_error=on_error, labelled=split != "test"))

    def corpus(self, rows: Sequence[HopRow]) -> Iterator[str]:
        """Yields each question, and each paragraph with its title, as they are tokenised."""
        for row in rows:
            yield f" {row.question}"
            for paragraph in row.paragraphs:
                yield f" {paragraph.title} {''.join(paragraph.sentences).lstrip()}"

    def dataset(
        self, rows: Sequence[HopRow], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> FeatureRows:
        """Returns a sequence per row, tokenised on access; all rows need an answer."""
        if silent := next((row for row in rows if row.answer is None), None):
            raise InputError(f"row {silent.id!r} has no answer to learn or to validate by; name other data")
        return FeatureRows(rows, partial(hop_features, tokenizer=tokenizer, options=self))

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Returns the collator, which pads rows to a batch with their global tokens."""
        return partial(collate, padding=padding_id(tokenizer))

    def predict(self, model: Any, tokenizer: Any, rows: Sequence[HopRow], *, batch_size: int = 1) -> list[HopAnswer]:
        """Predicts the answer to each row, without using annotations."""
        features = FeatureRows(rows, partial(hop_features, tokenizer=tokenizer, options=self))
        padding, answers = padding_id(tokenizer), []

        def batch_of(some: list[dict[str, Any]]) -> dict[str, Any]:
            return {**collate(some, padding=padding), "features": some}

        with torch.no_grad():
            for batch in batches(model, features, batch_of, batch_size):
                read = batch.pop("features")
                inputs = {name: value for name, value in batch.items() if name not in LABELS}
                answers += decode(model(**inputs), read, rows[len(answers) :][: len(read)], self.max_answer_tokens)
        return answers

    def losses(self) -> Losses:
        """The losses of several heads, averaged over the rows."""
        return Losses(labels=LABELS)

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[HopRow], *, batch_size: int) -> Outcome:
        """Answers every row and scores the answers with HotpotQA's metric, where gold answers exist; `files` has its
        prediction file, and the rows with the paragraphs for a second stage, in HotpotQA's format."""
        answers = self.predict(model, tokenizer, rows, batch_size=batch_size)
        pairs = [*zip(rows, answers, strict=True)]
        limits = {"most": self.kept_paragraphs, "threshold": self.relevance_above, "least": self.least_paragraphs}
        shorter = [reduced(row, answer, **limits) for row, answer in pairs]
        predictions = {
            "answer": {row.id: answer.answer for row, answer in pairs},
            "sp": {row.id: [list(fact) for fact in answer.facts] for row, answer in pairs},
        }
        lines = [
            {
                "id": row.id,
                "question": row.question,
                "prediction": answer.answer,
                "evidence": answer.facts,
                "gold": row.answer,
            }
            for row, answer in pairs
        ]
        files = {"predictions-hotpotqa.json": predictions, "kept.json": [record_of(row) for row in shorter]}
        flavour = "HotpotQA's metric; paragraphs_found: questions whose needed paragraphs are all among those kept"
        return Outcome(scores=_scores(rows, answers, shorter), lines=lines, files=files, flavour=flavour)


def _scores(rows: Sequence[HopRow], answers: Sequence[HopAnswer], shorter: Sequence[HopRow]) -> dict[str, float]:
    """Computes the scores of the rows with a gold answer; empty if there are none."""
    known = [entry for entry in zip(rows, answers, shorter, strict=True) if entry[0].answer is not None]
    if not known:
        return {}
    matches = [
        (match_answer(answer.answer, row.answer or ""), match_facts(answer.facts, row.facts))
        for row, answer, _ in known
    ]
    whole = [row.needed <= {paragraph.title for paragraph in less.paragraphs} for row, _, less in known]
    return multi_hop_scores(matches) | {"paragraphs_found": 100 * sum(whole) / len(whole)}
