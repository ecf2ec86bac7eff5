"""Selecting among candidates by reading several documents: WikiHop, as in Longformer (Beltagy et al. 2020)::

    [q] query [/q] [ent] candidate 1 [/ent] … [ent] candidate N [/ent] </s> support 1 </s> … support M </s>

Input too long for the model is read in pieces: the concatenated supports are split to the room that the question and
its candidates leave, and these are repeated before each part. They are global; each candidate is scored at its `[ent]`,
and its logit is the mean over the pieces (see `head`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch

from longspan.characters import counted
from longspan.errors import InputError
from longspan.settings import LARGEST, Count, Range
from longspan.tasks.base import Losses, Metrics, Outcome, Task, check_room, room_for
from longspan.tasks.language_modelling.corpus_task import separator
from longspan.tasks.predicting import FeatureRows, batches, pad
from longspan.tasks.tokenizers import known_ids, padding_id
from longspan_papers.wikihop.rows import ChoiceRow, read_choices

MARKERS = ("[q]", "[/q]", "[ent]", "[/ent]")
"""Enclose the question, and each candidate."""

LEAST_SHARE = 4
"""A question with its candidates must leave at least one in this many tokens of a piece for the supports."""


@dataclass(frozen=True, kw_only=True)
class CandidateChoice(Task):
    """Selects one of several candidates from several documents (WikiHop); limits are those of Longformer.

    A question with one candidate is always right: it counts in the accuracy, and has no gradient.

    Attributes:
        max_tokens: maximum tokens of a piece.
        max_pieces: maximum number of pieces of a question; 1 is Longformer-large's setting. None reads all supports.
        pieces_at_once: number of pieces in memory at once, also in training; None keeps all of a batch, which is faster
            and gives the same result.
    """

    name: ClassVar[str] = "candidate_choice"
    head: ClassVar[str | None] = "candidate_scoring"
    metrics: ClassVar[Metrics] = Metrics(names=("accuracy",))

    max_tokens: Annotated[int, Range(16, LARGEST)] = 4096
    max_pieces: Count | None = None
    pieces_at_once: Count | None = 1

    def model_fields(self) -> dict[str, Any]:
        """Returns the head; the text before the first `</s>`, question and candidates, is global also without a
        mask."""
        return {"global_tokens": "question", "head": {"head": self.head, "pieces_at_once": self.pieces_at_once}}

    def new_tokens(self) -> Sequence[str]:
        """Returns the markers of the question and of the candidates."""
        return MARKERS

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for pieces longer than the model's positions."""
        check_room(self.max_tokens, config)

    def fitted(self, config: Any) -> Self:
        """Limits pieces to the model's number of positions."""
        return replace(self, max_tokens=room_for(self.max_tokens, config))

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> list[ChoiceRow]:
        """Reads questions with their candidates and supports."""
        return list(read_choices(source, split, limit, on_error=on_error))

    def corpus(self, rows: Sequence[ChoiceRow]) -> Iterator[str]:
        """Yields the text of each question, candidates and supports together."""
        return ("\n".join([row.query, *row.candidates, *row.supports]) for row in rows)

    def dataset(
        self, rows: Sequence[ChoiceRow], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> FeatureRows:
        """Returns the pieces of each question, tokenised on access; in training all need an answer."""
        if training and (silent := next((row for row in rows if row.answer is None), None)):
            raise InputError(f"row {silent.id!r} has no answer to train on; leave it out, or name other data")
        return FeatureRows(rows, partial(self.pieces, tokenizer=tokenizer))

    def pieces(self, row: ChoiceRow, tokenizer: Any) -> dict[str, Any]:
        """Returns a question: `rows`, its pieces, each with `input_ids` and `candidate_ids`; `leading`, the number of
        first tokens of each that are question and candidates; and the answer's index as `label`, if known."""
        query, candidates, supports = _tokens(row, tokenizer)
        opening, places = self._opening(row, query, candidates, tokenizer)
        between = separator(tokenizer)
        stream = list(chain.from_iterable([between, *support] for support in supports))[1:]
        room = self.max_tokens - len(opening) - 2
        # Supports without any token give one empty piece, so that every question has logits.
        parts = [stream[start : start + room] for start in range(0, max(1, len(stream)), room)][: self.max_pieces]
        rows = [
            {"input_ids": [*opening, between, *part, between], "candidate_ids": [*places, *[-1] * (len(part) + 2)]}
            for part in parts
        ]
        features: dict[str, Any] = {"rows": rows, "leading": len(opening)}
        return features if row.answer is None else {**features, "label": row.candidates.index(row.answer)}

    def _opening(
        self, row: ChoiceRow, query: list[int], candidates: list[list[int]], tokenizer: Any
    ) -> tuple[list[int], list[int]]:
        """Returns question and candidates with their markers, and each candidate's index at its `[ent]`, −1 elsewhere.

        Candidates that leave too little room for supports are truncated, the longest ones first.
        """
        room = self.max_tokens - 2 - self.max_tokens // LEAST_SHARE - len(query) - 2 - 2 * len(candidates)
        longest = _longest([len(candidate) for candidate in candidates], room)
        if not longest:
            raise InputError(
                f"the query of row {row.id!r} and its {counted(len(candidates), 'candidate')} leave no room for "
                f"supports in max_tokens={self.max_tokens}; raise it, or leave the row out"
            )
        q, end_q, ent, end_ent = known_ids(tokenizer, MARKERS)
        opening, places = [q, *query, end_q], [-1] * (len(query) + 2)
        for number, candidate in enumerate(candidates):
            marked = [ent, *candidate[:longest], end_ent]
            opening += marked
            places += [number, *[-1] * (len(marked) - 1)]
        return opening, places

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Returns the collator, which pads the pieces of several questions to one batch: `example_ids` `(P,)` is the
        question of each piece, `labels` are `(N,)`; question and candidates are global."""
        padding = padding_id(tokenizer)

        def collate(features: list[dict[str, Any]]) -> dict[str, Any]:
            pieces = [piece for feature in features for piece in feature["rows"]]
            owners = [number for number, feature in enumerate(features) for _ in feature["rows"]]
            leading = [features[owner]["leading"] for owner in owners]
            batch: dict[str, Any] = pad(pieces, {"input_ids": padding, "candidate_ids": -1}, leading=leading)
            batch["example_ids"] = torch.tensor(owners)
            if all("label" in feature for feature in features):
                batch["labels"] = torch.tensor([feature["label"] for feature in features])
            return batch

        return collate

    def losses(self) -> Losses:
        """Averages over the questions."""
        return Losses(weight=lambda batch: float(len(batch["labels"])))

    def probabilities(
        self, model: Any, tokenizer: Any, rows: Sequence[ChoiceRow], *, batch_size: int = 1
    ) -> list[list[float]]:
        """Returns the probability of each candidate of each question, in the order of `rows` and of their
        candidates."""
        probabilities_of_rows: list[list[float]] = []
        dataset = FeatureRows(rows, partial(self.pieces, tokenizer=tokenizer))
        for batch in batches(model, dataset, self.collator(tokenizer), batch_size):
            batch.pop("labels", None)
            with torch.no_grad():
                shares = model(**batch).logits.cpu().double().softmax(-1).tolist()
            probabilities_of_rows += [
                row_shares[: len(row.candidates)]
                for row_shares, row in zip(shares, rows[len(probabilities_of_rows) :], strict=False)
            ]
        return probabilities_of_rows

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[ChoiceRow], *, batch_size: int) -> Outcome:
        """Computes the accuracy in percent over the questions with a known answer, and a JSON object of ids and
        answers, the format of WikiHop's leaderboard."""
        probabilities = self.probabilities(model, tokenizer, rows, batch_size=batch_size)
        named: dict[str, str] = {}
        lines = []
        for row, shares in zip(rows, probabilities, strict=True):
            named[row.id] = row.candidates[shares.index(max(shares))]
            each = {name: round(share, 6) for name, share in zip(row.candidates, shares, strict=True)}
            line = {"id": row.id, "query": row.query, "prediction": named[row.id], "answer": row.answer}
            lines.append({**line, "probabilities": each})
        known = [(line["prediction"], row.answer) for line, row in zip(lines, rows, strict=True) if row.answer]
        scores = (
            {"accuracy": 100 * sum(predicted == answer for predicted, answer in known) / len(known)} if known else {}
        )
        flavour = f"Accuracy over {counted(len(known), 'question')} with an answer."
        return Outcome(scores=scores, lines=lines, files={"predictions-wikihop.json": named}, flavour=flavour)


def _tokens(row: ChoiceRow, tokenizer: Any) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Returns token ids of query, candidates and supports, each tokenised with a space before it, so that a candidate
    looks as it does within a sentence. Special tokens in the text stay plain text."""
    texts = [f" {' '.join(text.split())}" for text in (row.query, *row.candidates, *row.supports)]
    ids = tokenizer(
        texts, add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
    )["input_ids"]
    return ids[0], ids[1 : len(row.candidates) + 1], ids[len(row.candidates) + 1 :]


def _longest(lengths: Sequence[int], room: int) -> int:
    """Returns the largest truncation length, at least 1, with which texts of these lengths fit into `room` tokens; 0
    for none."""
    for cut in range(max(lengths, default=1), 0, -1):
        if sum(min(length, cut) for length in lengths) <= room:
            return cut
    return 0
