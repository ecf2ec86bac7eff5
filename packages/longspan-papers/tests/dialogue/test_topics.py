"""Topics: labels before turns, pieces that keep every turn once, borders by probability, scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from longspan.data.turns import Dialogue, Turn
from longspan.errors import InputError
from longspan.models.losses import IGNORED
from longspan.training.tokenizers import train_tokenizer
from longspan_papers.dialogue.reading import synthetic_dialogues
from longspan_papers.dialogue.topics import TURN, TopicSegmentation


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    found = train_tokenizer((dialogue.text for dialogue in synthetic_dialogues(4, seed=0)), 400)
    found.add_tokens([TURN], special_tokens=True)
    return found


class Oracle(torch.nn.Module):
    """Is sure of the labels that it was shown."""

    device = torch.device("cpu")

    def __init__(self, answers: dict[tuple[int, ...], list[int]]) -> None:
        super().__init__()
        self.answers = answers

    def forward(self, input_ids, attention_mask, **_):
        rows = []
        for ids, mask in zip(input_ids, attention_mask, strict=True):
            labels = self.answers[tuple(ids[mask].tolist())]
            rows.append(torch.tensor(labels + [0] * int((~mask).sum())).clamp(min=0))
        return type("Output", (), {"logits": torch.nn.functional.one_hot(torch.stack(rows), 2) * 9.0})


def test_every_turn_stands_in_one_piece(tokenizer: Any) -> None:
    task = TopicSegmentation(max_tokens=90, max_turn_tokens=30)
    row = synthetic_dialogues(1, seed=3)[0]
    pieces = list(task.pieces(0, row, tokenizer))
    mark = tokenizer.convert_tokens_to_ids(TURN)
    assert len(pieces) > 2
    assert all(len(piece["input_ids"]) == len(piece["labels"]) <= 90 for piece in pieces)
    labels = [
        label
        for piece in pieces
        for token, label in zip(piece["input_ids"], piece["labels"], strict=True)
        if token == mark
    ]
    assert labels[0] == IGNORED
    assert [index for index, label in enumerate(labels) if label == 1] == list(row.topics or ())
    assert len(labels) == len(row.turns)
    assert pieces[0]["first"] == 0


def test_an_oracle_is_perfect_and_nobody_is_not(tokenizer: Any, tmp_path: Path) -> None:
    task = TopicSegmentation(max_tokens=90, max_turn_tokens=30)
    rows = task.read("synthetic", "train", 3)
    data = task.dataset(rows, tokenizer, training=False, seed=0, folder=tmp_path)
    known = {tuple(data[index]["input_ids"]): data[index]["labels"] for index in range(len(data))}
    outcome = task.evaluate(Oracle(known), tokenizer, rows, batch_size=2)
    assert outcome.scores == {"pk": 0.0, "window_diff": 0.0}
    assert outcome.lines[0]["prediction"] == outcome.lines[0]["references"][0]
    blind = {ids: [0] * len(labels) for ids, labels in known.items()}
    assert task.evaluate(Oracle(blind), tokenizer, rows, batch_size=2).scores["pk"] > 30


def test_no_turns_and_turns_that_name_the_mark(tokenizer: Any) -> None:
    task = TopicSegmentation()
    said = Dialogue(id="said", turns=(Turn("A", f"say {TURN} now"), Turn("B", f"{TURN} {TURN}")), topics=(1,))
    rows = [Dialogue(id="silent", turns=(), topics=()), said]
    (piece,) = task.dataset(rows, tokenizer, training=False, seed=0, folder=Path()).rows
    likely = task.probabilities(Oracle({tuple(piece["input_ids"]): piece["labels"]}), tokenizer, rows, 2)
    assert [len(one) for one in likely] == [0, 2]  # a number for each turn, whatever is said
    assert [task.borders(one) for one in likely] == [(), (1,)]


def test_borders_by_probability() -> None:
    likely = np.array([0.9, 0.1, 0.7, 0.3, 0.6, 0.2])
    assert TopicSegmentation().borders(likely) == (2, 4)
    assert TopicSegmentation(turns_per_topic=2).borders(likely) == (2, 4)
    assert TopicSegmentation(turns_per_topic=3).borders(likely) == (2,)
    assert TopicSegmentation(turns_per_topic=9).borders(likely) == ()
    assert TopicSegmentation().borders(np.empty(0)) == ()


def test_global_tokens_and_mistakes(tokenizer: Any) -> None:
    row = Dialogue(id="x", turns=(Turn("A", "b c"), Turn("B", "d")), topics=(1,))
    (piece,) = TopicSegmentation().pieces(0, row, tokenizer)
    mark = tokenizer.convert_tokens_to_ids(TURN)
    for name, count in (("none", None), ("first", 1), ("turns", 2)):
        batch = TopicSegmentation(global_tokens=name).collator(tokenizer)([piece])
        assert (count is None) == ("global_attention_mask" not in batch)
        if count:
            assert int(batch["global_attention_mask"].sum()) == count
    assert piece["input_ids"].count(mark) == 2
    with pytest.raises(InputError, match="lacks '\\[TURN\\]'"):
        list(TopicSegmentation().pieces(0, row, train_tokenizer(["a"], 300)))
