"""Answers in SQuAD's format: windows with their labels, answers from the original text, no answer, a smoke run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from longspan.data.questions.spans import SpanRow
from longspan.errors import InputError
from longspan.tasks.questions.spans import SpanAnswers
from longspan.training.tokenizers import train_tokenizer

CONTEXT = "Anna planted roses in June. Karl dug a deep pond behind the house, and nine carps live there now."
ROW = SpanRow("a", "who dug the pond", CONTEXT, ((CONTEXT.index("deep pond"), "deep pond"),))
NO_ANSWER = SpanRow("b", "who sang", CONTEXT)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([CONTEXT, ROW.question], 300)


class Says:
    """A model that has seen the answers: it scores the token with the first and the last of some words highest."""

    training, device = False, torch.device("cpu")

    def __init__(self, tokenizer, words: str, none: float = 0.0) -> None:
        self.ids = tokenizer(" " + words, add_special_tokens=False)["input_ids"]
        self.none = none

    def eval(self):
        return self

    def train(self, mode):
        return self

    def __call__(self, input_ids, attention_mask):
        start, end = (torch.where(input_ids == token, 5.0, -5.0) for token in (self.ids[0], self.ids[-1]))
        start[:, 0] = end[:, 0] = self.none
        return SimpleNamespace(start_logits=start, end_logits=end)


@pytest.mark.parametrize("tokens", [64, 200])
def test_windows_hold_the_answer_where_their_labels_say(tokens, tokenizer):
    task = SpanAnswers(max_tokens=tokens, max_question_tokens=12, overlap=20)
    windows = task.windows(ROW, tokenizer)["rows"]
    found = 0
    for window in windows:
        assert len(window["input_ids"]) <= tokens
        start, end = window["start_positions"], window["end_positions"]
        if (start, end) != (0, 0):
            assert CONTEXT[window["spans"][start][0] : window["spans"][end][1]] == "deep pond"
            found += 1
    assert found
    covered = {
        place for window in windows for start, end in window["spans"] if start >= 0 for place in range(start, end)
    }
    assert {place for place, letter in enumerate(CONTEXT) if letter != " "} == covered
    assert all((w["start_positions"], w["end_positions"]) == (0, 0) for w in task.windows(NO_ANSWER, tokenizer)["rows"])


def test_a_long_question_is_cut_at_a_token(tokenizer):
    short = SpanAnswers(max_tokens=64, max_question_tokens=3, overlap=8)
    (window, *_) = short.windows(ROW, tokenizer)["rows"]
    border = window["input_ids"].index(2)
    assert border == 4
    assert tokenizer.decode(window["input_ids"][1:border]).strip() == tokenizer.decode(
        tokenizer(ROW.question, add_special_tokens=False)["input_ids"][:3]
    )


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("tokens", [48, 200])
def test_answers_are_words_of_the_context(batch_size, tokens, tokenizer):
    task = SpanAnswers(max_tokens=tokens, max_question_tokens=12, overlap=16)
    outcome = task.evaluate(Says(tokenizer, "deep pond"), tokenizer, [ROW, NO_ANSWER], batch_size=batch_size)
    assert outcome.files["predictions-squad.json"] == {"a": "deep pond", "b": "deep pond"}
    assert outcome.scores == {"f1": 50.0, "exact_match": 50.0}
    silent = SpanAnswers(max_tokens=tokens, max_question_tokens=12, overlap=16, unanswerable=True)
    outcome = silent.evaluate(Says(tokenizer, "deep pond", none=9.0), tokenizer, [ROW, NO_ANSWER], batch_size=2)
    assert [line["prediction"] for line in outcome.lines] == ["", ""]
    assert outcome.scores["exact_match"] == 50.0


def test_options_that_leave_no_room_are_refused():
    with pytest.raises(InputError, match="max_tokens=40 leaves no room for a context beside max_question_tokens=25"):
        SpanAnswers(max_tokens=40, overlap=16)
