"""HotpotQA in the distractor setting: the answer to a question, and the sentences of two paragraphs that support it.

Longformer's system has two stages with the same heads. A first model reads all paragraphs; evaluating it on a data set
writes, beside the predictions, the data set with the paragraphs that it finds relevant, at most five. A second model is
trained and evaluated on those files. Scores count what the first stage lost: annotations are never reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch

from longspan.data.questions.hop_rows import HopRow
from longspan.data.questions.multi_hop import read_multi_hop, record_of
from longspan.errors import InputError
from longspan.models.heads.multi_hop import LABELS
from longspan.settings import LARGEST, Count, Range
from longspan.tasks.base import Outcome, Task, check_room, room_for
from longspan.tasks.metrics.multi_hop import SCORES, match_answer, match_facts, multi_hop_scores
from longspan.tasks.predicting import FeatureRows, batches
from longspan.tasks.questions.hops.decoding import PARAGRAPHS, HopAnswer, decode, reduced
from longspan.tasks.questions.hops.features import MARKS, collate, hop_features
from longspan.tasks.questions.hops.matching import BESIDE
from longspan.tasks.tokenizers import padding_id


@dataclass(frozen=True, kw_only=True)
class MultiHop(Task):
    """Answer a question from two of several paragraphs, and name the sentences that say so.

    Attributes:
        max_tokens: of a row in all; what is longer is cut at the end.
        max_question_tokens: longer questions are cut to so many.
        max_answer_tokens: the longest answer.
        global_on: what sees all and is seen by all. "marks": the question, the token before each title and the one
            behind each sentence, as in the paper; "question": the question alone, which a small model from scratch
            learns sooner.
        match_steps: 1: `token_type_ids` tell which tokens are words of the question, whatever their capitals and
            endings; 2: also which are rare words beside one of these in a sentence, see `word_types`; 0: no types.
        kept_paragraphs: what is written for a second stage has at most so many paragraphs of each question.
        relevance_above: of these only such whose relevance, before the sigmoid, is above this.
        least_paragraphs: but so many in any case, the best; 0 keeps none that is not above, as in the paper, so that a
            second stage may have to answer a question without any paragraph.
    """

    name: ClassVar[str] = "multi_hop"
    generates: ClassVar[bool] = False
    head: ClassVar[str | None] = "multi_hop"
    label_names: ClassVar[tuple[str, ...]] = LABELS
    score_names: ClassVar[tuple[str, ...]] = (*SCORES, "paragraphs_found")

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
        """The head, and the token types that the options ask for."""
        return super().model_fields() | ({"type_vocab_size": self._types} if self._types else {})

    @property
    def _types(self) -> int:
        """How many token types the options need."""
        return BESIDE + 1 if self.match_steps == 2 else BESIDE * self.match_steps

    def new_tokens(self) -> Sequence[str]:
        """The marks of questions, titles and sentences."""
        return MARKS

    def check_model(self, config: Any) -> None:
        """Refuse longer rows than the model has positions for, and types that it does not have."""
        check_room(self.max_tokens, config)
        if config.type_vocab_size < self._types:
            raise InputError(
                f"task.match_steps={self.match_steps} needs type_vocab_size={self._types}, and the model has "
                f"{config.type_vocab_size}; set it to 0, or leave type_vocab_size out of model.new"
            )

    def fitted(self, config: Any) -> Self:
        """Rows as long as the model has positions for, at most."""
        return replace(self, max_tokens=room_for(self.max_tokens, config))

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> list[HopRow]:
        """Questions with their paragraphs; those of the split "test" may be without answers, as the official one is."""
        return list(read_multi_hop(source, split, limit, on_error=on_error, labelled=split != "test"))

    def corpus(self, rows: Sequence[HopRow]) -> Iterator[str]:
        """Each question, and each paragraph with its title, as they are tokenised."""
        for row in rows:
            yield f" {row.question}"
            for paragraph in row.paragraphs:
                yield f" {paragraph.title} {''.join(paragraph.sentences).lstrip()}"

    def dataset(
        self, rows: Sequence[HopRow], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> FeatureRows:
        """A sequence for each row, tokenised when it is asked for; all need an answer."""
        if silent := next((row for row in rows if row.answer is None), None):
            raise InputError(f"row {silent.id!r} has no answer to learn or to validate by; name other data")
        return FeatureRows(rows, partial(hop_features, tokenizer=tokenizer, options=self))

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Pads rows to a batch, with their global tokens."""
        return partial(collate, padding=padding_id(tokenizer))

    def predict(self, model: Any, tokenizer: Any, rows: Sequence[HopRow], *, batch_size: int = 1) -> list[HopAnswer]:
        """The answer to each row; annotations are not looked at."""
        features = FeatureRows(rows, partial(hop_features, tokenizer=tokenizer, options=self))
        padding, found = padding_id(tokenizer), []

        def batch_of(some: list[dict[str, Any]]) -> dict[str, Any]:
            return {**collate(some, padding=padding), "features": some}

        with torch.no_grad():
            for batch in batches(model, features, batch_of, batch_size):
                read = batch.pop("features")
                inputs = {name: value for name, value in batch.items() if name not in LABELS}
                found += decode(model(**inputs), read, rows[len(found) :][: len(read)], self.max_answer_tokens)
        return found

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[HopRow], *, batch_size: int) -> Outcome:
        """Answer every row and score the answers as HotpotQA does, where they are known; `files` has its prediction
        file, and the rows with the paragraphs that a second stage reads, in its format."""
        found = self.predict(model, tokenizer, rows, batch_size=batch_size)
        pairs = [*zip(rows, found, strict=True)]
        limits = {"most": self.kept_paragraphs, "threshold": self.relevance_above, "least": self.least_paragraphs}
        kept = [reduced(row, one, **limits) for row, one in pairs]
        predictions = {
            "answer": {row.id: one.answer for row, one in pairs},
            "sp": {row.id: [list(fact) for fact in one.facts] for row, one in pairs},
        }
        lines = [
            {
                "id": row.id,
                "question": row.question,
                "prediction": one.answer,
                "evidence": one.facts,
                "gold": row.answer,
            }
            for row, one in pairs
        ]
        files = {"predictions-hotpotqa.json": predictions, "kept.json": [record_of(row) for row in kept]}
        flavour = "HotpotQA's metric; paragraphs_found: questions whose needed paragraphs are all among those kept"
        return Outcome(scores=_scores(rows, found, kept), lines=lines, files=files, flavour=flavour)


def _scores(rows: Sequence[HopRow], found: Sequence[HopAnswer], kept: Sequence[HopRow]) -> dict[str, float]:
    """The scores of the rows whose answer is known; none where no answer is."""
    known = [every for every in zip(rows, found, kept, strict=True) if every[0].answer is not None]
    if not known:
        return {}
    matches = [(match_answer(one.answer, row.answer or ""), match_facts(one.facts, row.facts)) for row, one, _ in known]
    whole = [row.needed <= {paragraph.title for paragraph in less.paragraphs} for row, _, less in known]
    return multi_hop_scores(matches) | {"paragraphs_found": 100 * sum(whole) / len(whole)}
