"""Topic segmentation of dialogues: a label on a token before each turn, scored by P_k and WindowDiff.

P_k (Beeferman et al. 1999) and WindowDiff (Pevzner and Hearst 2002) slide two probes, k positions apart, over a text of
n positions, and count the positions at which the predicted and the true segmentation disagree between the probes: P_k,
on whether there is a border; WindowDiff, on the number of borders. 0 is perfect; k is half of the mean length of a true
segment.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch

from longspan.data.turns import Dialogue
from longspan.errors import InputError
from longspan.models.losses import IGNORED
from longspan.settings import LARGEST, Count, Range
from longspan.tasks.base import Losses, Metrics, Outcome, Task, check_room, room_for
from longspan.tasks.language_modelling.masked_lm import around
from longspan.tasks.predicting import FeatureRows, batches, labels_of_batch, pad
from longspan.tasks.tokenizers import padding_id
from longspan_papers.dialogue.reading import read_dialogues

MEASURES = ("pk", "window_diff")


def half_segment(places: int, borders: Sequence[int]) -> int:
    """Returns k: half of the mean length of the segments between `borders`, rounded, and at least 1."""
    return max(1, math.floor(places / (2 * (len(set(borders)) + 1)) + 0.5))


def pk(places: int, true: Sequence[int], predicted: Sequence[int], k: int | None = None) -> float:
    """Computes P_k of borders, the positions other than 0 at which a segment begins, as a share of the probes.

    Args:
        places: n, positions of the text.
        true, predicted: borders, each above 0 and below n.
        k: distance of the two probes; `None` takes `half_segment` of the true borders.

    Raises:
        InputError: a border is outside the text, or k is below 1.
    """
    return _share(places, true, predicted, k, lambda here, there: (here == 0) != (there == 0))


def window_diff(places: int, true: Sequence[int], predicted: Sequence[int], k: int | None = None) -> float:
    """Computes WindowDiff of borders, as a share of the probes; arguments and errors as in `pk`."""
    return _share(places, true, predicted, k, lambda here, there: here != there)


def _share(
    places: int, true: Sequence[int], predicted: Sequence[int], k: int | None, differ: Callable[[int, int], bool]
) -> float:
    """Returns the share of probe pairs between which the numbers of borders differ."""
    for name, borders in (("true", true), ("predicted", predicted)):
        if outside := [border for border in borders if not 0 < border < places]:
            raise InputError(f"{name} holds {outside[0]}, which is no border between {places} places; leave it out")
    if k is not None and k < 1:
        raise InputError(f"k={k} is no distance between two probes; give 1 or more")
    k = min(half_segment(places, true) if k is None else k, places - 1)
    if k < 1:
        return 0.0
    counts = [list(accumulate(int(place in known) for place in range(places))) for known in (set(true), set(predicted))]
    wrong = sum(differ(*(count[place + k] - count[place] for count in counts)) for place in range(places - k))
    return wrong / (places - k)


TURN = "[TURN]"
"""Inserted before every turn."""

Piece = dict[str, Any]
"""`dialogue` and `first`, the indices of a dialogue and of its turn; `input_ids`, `labels`."""


@dataclass(frozen=True, kw_only=True)
class TopicSegmentation(Task):
    """Predicts the turns of a dialogue at which a new topic begins.

    Attributes:
        max_tokens: maximum tokens of a piece; longer dialogues are split at turns.
        max_turn_tokens: maximum tokens of a turn.
        turns_per_topic: average number of turns of a topic, which determines how many of the most likely borders are
            predicted; None predicts those with a probability above one half.
        global_tokens: "first" makes the first token global, "turns" the token before each turn, "none" none.
    """

    name: ClassVar[str] = "topic_segmentation"
    head: ClassVar[str | None] = "token_classification"
    metrics: ClassVar[Metrics] = Metrics(names=MEASURES, lower_is_better=MEASURES)

    max_tokens: Annotated[int, Range(8, LARGEST)] = 4096
    max_turn_tokens: Count = 64
    turns_per_topic: Count | None = None
    global_tokens: Literal["first", "turns", "none"] = "none"

    def new_tokens(self) -> Sequence[str]:
        """Returns the token inserted before each turn."""
        return [TURN]

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for pieces longer than the model's positions."""
        check_room(self.max_tokens, config)

    def fitted(self, config: Any) -> Self:
        """Limits pieces to the model's number of positions."""
        return replace(self, max_tokens=room_for(self.max_tokens, config))

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Sequence[Dialogue]:
        """Reads the dialogues with annotated topics."""
        limit = None if limit is None else max(limit, 0)
        dialogues = read_dialogues(source, split, limit if source == "synthetic" else None, on_error=on_error)
        return list(islice((row for row in dialogues if row.topics is not None), limit))

    def corpus(self, rows: Sequence[Dialogue]) -> Iterator[str]:
        """Yields every dialogue."""
        return (row.text for row in rows)

    def dataset(
        self, rows: Sequence[Dialogue], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> FeatureRows:
        """Returns every piece of every dialogue, in order."""
        pieces = [piece for number, row in enumerate(rows) for piece in self.pieces(number, row, tokenizer)]
        return FeatureRows(pieces, lambda piece: piece)

    def pieces(self, number: int, row: Dialogue, tokenizer: Any) -> Iterator[Piece]:
        """Yields the pieces of a dialogue; the label of a turn is on the token before it, 1 where a topic begins."""
        mark = tokenizer.convert_tokens_to_ids(TURN)
        if mark in (None, tokenizer.unk_token_id):
            raise InputError(f"the tokenizer lacks {TURN!r}; add it with add_tokens(…, special_tokens=True)")
        before, after = around(tokenizer)
        room = self.max_tokens - len(before) - len(after)
        # transformers' tokenizers fail on an empty list.
        turns = [f"{turn.line}\n" for turn in row.turns]
        lines = tokenizer(turns, add_special_tokens=False)["input_ids"] if turns else []
        # Only the inserted token is a marker, even if a turn contains its text.
        lines = [[token for token in line if token != mark] for line in lines]
        most = min(self.max_turn_tokens, room - 1)
        held: list[list[int]] = []
        for index, ids in enumerate([*(line[:most] for line in lines), None]):
            if held and (ids is None or sum(map(len, held)) + len(held) + len(ids) + 1 > room):
                first = index - len(held)
                yield self._piece(number, first, held, mark, set(row.topics or ()), (before, after))
                held = []
            held += [] if ids is None else [ids]

    def _piece(
        self, number: int, first: int, lines: list[list[int]], mark: int, topics: set[int], ends: tuple[list[int], ...]
    ) -> Piece:
        ids, labels = list(ends[0]), [IGNORED] * len(ends[0])
        for index, line in enumerate(lines, first):
            ids += [mark, *line]
            # The beginning of the first topic is not predicted.
            labels += [int(index in topics) if index else IGNORED, *[IGNORED] * len(line)]
        return {
            "dialogue": number,
            "first": first,
            "input_ids": [*ids, *ends[1]],
            "labels": labels + [IGNORED] * len(ends[1]),
        }

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Returns the collator, which pads pieces to `input_ids`, `labels` `(B, T)` int64 with both masks."""
        mark = tokenizer.convert_tokens_to_ids(TURN)
        return partial(self._collate, padding=padding_id(tokenizer), mark=mark)

    def _collate(self, pieces: list[Piece], *, padding: int, mark: int) -> dict[str, Any]:
        leading = [int(self.global_tokens == "first")] * len(pieces)
        batch = pad(pieces, {"input_ids": padding, "labels": IGNORED}, leading=leading)
        if self.global_tokens == "turns":
            batch["global_attention_mask"] = batch["input_ids"] == mark
        elif self.global_tokens == "none":
            del batch["global_attention_mask"]
        return batch

    def losses(self) -> Losses:
        """Averages over the turns that have a label."""
        return Losses(weight=labels_of_batch)

    def probabilities(self, model: Any, tokenizer: Any, rows: Sequence[Dialogue], batch_size: int) -> list[np.ndarray]:
        """Returns per dialogue the probability that a topic begins with each of its turns, `(turns,)`."""
        dataset = self.dataset(rows, tokenizer, training=False, seed=0, folder=Path())
        mark = tokenizer.convert_tokens_to_ids(TURN)
        shares: dict[int, list[np.ndarray]] = defaultdict(list)
        done = iter(dataset.rows)
        with torch.no_grad():
            for batch in batches(model, dataset, self.collator(tokenizer), batch_size):
                inputs = {name: value for name, value in batch.items() if name != "labels"}
                likely = model(**inputs).logits.float().softmax(-1)[..., 1].cpu().numpy()
                turns = (batch["input_ids"] == mark).cpu().numpy()
                for row, of in zip(likely, turns, strict=True):
                    shares[next(done)["dialogue"]].append(row[of])
        return [np.concatenate(shares[number]) if shares[number] else np.empty(0) for number in range(len(rows))]

    def borders(self, likely: np.ndarray) -> tuple[int, ...]:
        """Returns the turns that begin a topic, ascending and without the first; `likely` `(N,)` are the turns'
        probabilities."""
        rest = likely[1:]
        if self.turns_per_topic is None:
            chosen = np.flatnonzero(rest > 0.5)
        else:
            count = min(max(round(len(likely) / self.turns_per_topic) - 1, 0), len(rest))
            chosen = np.sort(np.argsort(-rest, kind="stable")[:count])
        return tuple(int(index) + 1 for index in chosen)

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[Dialogue], *, batch_size: int) -> Outcome:
        """Computes mean P_k and WindowDiff over the dialogues, in percent."""
        likely = self.probabilities(model, tokenizer, rows, batch_size)
        predicted = [self.borders(probabilities) for probabilities in likely]
        lines = [
            {"id": row.id, "turns": len(row.turns), "prediction": list(borders), "references": [list(row.topics or ())]}
            for row, borders in zip(rows, predicted, strict=True)
        ]
        scores = {
            name: 100
            * float(
                np.mean(
                    [
                        measure(len(row.turns), row.topics or (), borders)
                        for row, borders in zip(rows, predicted, strict=True)
                    ]
                )
            )
            for name, measure in (("pk", pk), ("window_diff", window_diff))
        }
        flavour = "P_k and WindowDiff over turns, in percent, lower is better; k is half the mean true topic"
        return Outcome(scores=scores, lines=lines, flavour=flavour)
