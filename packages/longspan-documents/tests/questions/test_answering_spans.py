"""Answers in SQuAD's format: windows with their labels, answers from the original text, no answer, a smoke run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from longspan.errors import InputError
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.questions.spans import SpanRow
from longspan_documents.questions.task import SpanAnswers
from longspan_documents.questions.triviaqa import occurrences

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
        (start,), (end,) = window["start_positions"], window["end_positions"]
        if (start, end) != (0, 0):
            assert CONTEXT[window["spans"][start][0] : window["spans"][end][1]] == "deep pond"
            found += 1
    assert found
    covered = {
        place for window in windows for start, end in window["spans"] if start >= 0 for place in range(start, end)
    }
    assert {place for place, letter in enumerate(CONTEXT) if letter != " "} == covered
    assert all(
        (w["start_positions"], w["end_positions"]) == ([0], [0]) for w in task.windows(NO_ANSWER, tokenizer)["rows"]
    )


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
    with pytest.raises(
        InputError, match="max_tokens=40 leaves no room for a context in addition to max_question_tokens=25"
    ):
        SpanAnswers(max_tokens=40, overlap=16)


TRIVIA = "The pond was dug by Karl. Karl's wife Anna planted roses; an Anna rose and Karl the Digger are famous."
ALIASES = ("karl", "karl digger", "karl digger are")
NAMED = SpanRow("a", "who dug the pond", TRIVIA, tuple(occurrences(TRIVIA, ALIASES)), ALIASES)
LONG: dict[str, Any] = {"max_tokens": 200, "max_question_tokens": 12, "overlap": 16, "max_windows": 1}


def test_any_span_learns_every_occurrence_once(tokenizer):
    task = SpanAnswers(**LONG, loss="any_span", global_question=True)
    (window,) = task.windows(NAMED, tokenizer)["rows"]
    places = [TRIVIA.index("Karl"), TRIVIA.index("Karl's"), TRIVIA.index("Karl the")]
    starts = [window["spans"][token][0] for token in window["start_positions"]]
    assert starts == places  # the last of them begins three answers
    ends = [window["spans"][token][1] for token in window["end_positions"]]
    assert sorted(ends) == [*(place + 4 for place in places), TRIVIA.index("are") - 1, TRIVIA.index("are") + 3]
    few = SpanAnswers(**LONG, loss="any_span", max_answers=2).windows(NAMED, tokenizer)["rows"][0]
    assert few["start_positions"] == window["start_positions"][:2]
    assert task.model_fields()["global_tokens"] == "question"
    batch = task.collator(tokenizer)([task.windows(row, tokenizer) for row in (NAMED, NO_ANSWER)])
    assert batch["start_positions"][1].tolist() == [-100] * 3
    assert task.losses().weight(batch) == 1


def test_per_span_draws_one_in_each_epoch(tokenizer, tmp_path):
    task = SpanAnswers(**LONG, loss="per_span")
    data = task.dataset([NAMED], tokenizer, training=True, seed=1, folder=tmp_path)
    drawn = []
    for epoch in range(12):
        data.set_epoch(epoch)
        (start,), (end,) = (data[0]["rows"][0][name] for name in ("start_positions", "end_positions"))
        assert data[0] == data[0]
        drawn.append((start, end))
    assert len(set(drawn)) > 2
    whole = SpanAnswers(**LONG, loss="any_span").windows(NAMED, tokenizer)["rows"][0]
    assert {start for start, _ in drawn} <= set(whole["start_positions"])


def test_rows_without_an_answer_are_counted_and_left_out_of_training(tokenizer, tmp_path, caplog):
    task = SpanAnswers(**LONG, loss="any_span")
    assert len(task.dataset([NAMED, NO_ANSWER], tokenizer, training=True, seed=1, folder=tmp_path)) == 1
    assert "left out for want of an answer: 1 of 2 rows" in caplog.text
    assert len(task.dataset([NAMED, NO_ANSWER], tokenizer, training=False, seed=1, folder=tmp_path)) == 2
    with pytest.raises(InputError, match="none of the 1 training rows holds an answer"):
        task.dataset([NO_ANSWER], tokenizer, training=True, seed=1, folder=tmp_path)


@pytest.fixture(scope="module")
def words_whole():
    """A tokenizer whose tokens are words."""
    return train_tokenizer([f" {CONTEXT} {TRIVIA} Nobody knows. Some say Anna."], 800)


class Scores(Says):
    """A model that scores some words as starts and others as ends."""

    def __init__(self, tokenizer, starts, ends):
        self.scores = [
            {tokenizer(word, add_special_tokens=False)["input_ids"][0]: value for word, value in words.items()}
            for words in (starts, ends)
        ]

    def __call__(self, input_ids, attention_mask):
        start, end = (torch.full(input_ids.shape, -9.0) for _ in range(2))
        for logits, scores in zip((start, end), self.scores, strict=True):
            for token, value in scores.items():
                logits[input_ids == token] = value
        return SimpleNamespace(start_logits=start, end_logits=end)


def test_the_best_of_a_questions_contexts_counts(words_whole):
    other = SpanRow("a", NAMED.question, "Nobody knows. Some say Anna.", (), ALIASES)
    model = Scores(words_whole, {" Anna": 2.0, " Karl": 3.0}, {" Anna": 1.0, " Karl": 1.5})
    outcome = SpanAnswers(**LONG).evaluate(model, words_whole, [other, NAMED, NO_ANSWER], batch_size=2)
    assert outcome.files["predictions-triviaqa.json"]["a"] == "Karl"
    assert [line["id"] for line in outcome.lines] == ["a", "b"]
    assert outcome.scores["exact_match"] == 50.0
    assert outcome.flavour == "TriviaQA's metric, over 2 questions."
    empty = replace(NAMED, accepted=("the",))  # TriviaQA's script: the empty texts match, without a shared word
    silent = Scores(words_whole, {" roses": 9.0}, {" planted": 5.0})
    outcome = SpanAnswers(**LONG, n_best=1).evaluate(silent, words_whole, [empty], batch_size=1)
    assert (outcome.lines[0]["prediction"], outcome.scores) == ("", {"f1": 0.0, "exact_match": 100.0})
    asked = replace(NAMED, answers=(), accepted=())  # of the test questions nobody says what is right
    outcome = SpanAnswers(**LONG).evaluate(model, words_whole, [asked], batch_size=1)
    assert (outcome.scores, outcome.files) == ({}, {"predictions-triviaqa.json": {"a": "Karl"}})


def test_only_the_best_starts_and_ends_are_paired(words_whole):
    """The best start, "roses", has no end behind it among the two best: with all pairs its own end is found."""
    starts, ends = {" roses": 9.0, " planted": 1.0}, {"Anna": 5.0, " planted": 4.0, " roses": 3.0}
    row = SpanRow("a", "who", CONTEXT)
    for count, words in ((2, "planted"), (3, "roses"), (None, "roses")):
        outcome = SpanAnswers(**LONG, n_best=count).evaluate(
            Scores(words_whole, starts, ends), words_whole, [row], batch_size=1
        )
        assert outcome.lines[0]["prediction"] == words
    starts, ends = {" roses": 9.0}, {" planted": 5.0}
    outcome = SpanAnswers(**LONG, n_best=1).evaluate(
        Scores(words_whole, starts, ends), words_whole, [row], batch_size=1
    )
    assert outcome.lines[0]["prediction"] == ""
