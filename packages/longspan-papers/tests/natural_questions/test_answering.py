"""From logits over chunks to an answer: against brute force, against a hand-worked row, and in any batch."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForNaturalQuestions, NaturalQuestionsOutput
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.questions.made_up import synthetic_questions
from longspan_documents.questions.rows import Candidate, QuestionRow, Span, plain_row
from longspan_documents.questions.scores import best_spans
from longspan_papers.natural_questions.answering import Answer, answer_row, answer_rows
from longspan_papers.natural_questions.features import chunk_features, collate
from longspan_papers.natural_questions.options import QuestionOptions, marker_tokens


@dataclass(frozen=True, kw_only=True)
class Options(QuestionOptions):
    max_answer_tokens: int = 7


SMALL = Options(max_tokens=61, stride=23, max_candidates=11)


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = train_tokenizer((row.text for row in synthetic_questions(4, seed=0)), 400)
    tokenizer.add_tokens(marker_tokens(SMALL), special_tokens=True)
    return tokenizer


def tiny_model(tokenizer, **changes) -> LongspanForNaturalQuestions:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    window = {"mechanism": "longformer", "left_tokens": 5, "right_tokens": 5}
    config = LongspanConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=101,
        attention=window,
        global_tokens="question",
        init_std=0.3,
        **sizes,
        **changes,
    )
    torch.manual_seed(3)
    return LongspanForNaturalQuestions(config).double().eval()


def brute_force(model, tokenizer, row: QuestionRow, options: Options) -> Answer:
    """Every chunk alone, every passage, every pair of tokens."""
    long, short, kinds = {}, {}, {}
    for chunk in chunk_features(row, tokenizer, options):
        output = model(**collate([chunk], padding=tokenizer.pad_token_id))
        start, end = output.start_logits[0].tolist(), output.end_logits[0].tolist()
        types = output.answer_logits[0].tolist()
        odds = math.log(sum(math.exp(logit) for logit in types[1:])) - types[0]
        logits = output.paragraph_logits[0].tolist()
        for local, candidate in enumerate(chunk["candidates"]):
            if logits[local] + odds > long.get(candidate, -math.inf):
                long[candidate] = logits[local] + odds
                kinds[candidate] = (types, odds)
            tokens = [
                token
                for token, owner in enumerate(chunk["paragraph_ids"])
                if owner == local and chunk["token_spans"][token] != (-1, -1)
            ]
            for i, j in product(tokens, tokens):
                score = start[i] + end[j] - start[0] - end[0]
                if 0 <= j - i < options.max_answer_tokens and score > short.get(candidate, (-math.inf,))[0]:
                    short[candidate] = (score, Span(chunk["token_spans"][i][0], chunk["token_spans"][j][1]))
    best = max(long, key=lambda candidate: long[candidate])
    types, odds = kinds[best]
    probability = 1 / (1 + math.exp(-odds))
    weights = {candidate: math.exp(score) for candidate, score in long.items()}
    shares = {candidate: weight / sum(weights.values()) for candidate, weight in weights.items()}
    yes_no, (score, span) = "none", short[best]
    if len(types) == 5 and max(types[1:]) in types[1:3]:
        yes_no = ("yes", "no")[types.index(max(types[1:])) - 1]
        score = max(types[1:]) - types[0]
    return Answer(
        candidate=best,
        long_score=long[best],
        short=(span,) if yes_no == "none" else (),
        short_score=score,
        yes_no=yes_no,
        probability=probability,
        candidate_scores=tuple(long.get(index) for index in range(len(row.candidates))),
        candidate_probabilities=tuple(probability * shares.get(index, 0.0) for index in range(len(row.candidates))),
    )


def same(answer: Answer, expected: Answer) -> None:
    for field in dataclasses.fields(Answer):
        one, other = getattr(answer, field.name), getattr(expected, field.name)
        if field.name == "candidate_scores":
            assert [score is None for score in one] == [score is None for score in other]
            one, other = ([score for score in scores if score is not None] for scores in (one, other))
        if field.name in ("candidate", "short", "yes_no"):
            assert one == other, field.name
        else:
            assert one == pytest.approx(other, rel=1e-5, abs=1e-5), field.name


@pytest.mark.slow
@pytest.mark.parametrize("markers", [True, False])
@pytest.mark.parametrize("kinds", [2, 5])
def test_equals_brute_force_in_any_batch(kinds, markers, tokenizer):
    options = dataclasses.replace(SMALL, answer_types=kinds, markers=markers)
    model = tiny_model(tokenizer, head={"head": "natural_questions", "answer_types": kinds})
    rows = synthetic_questions(5, seed=5)
    expected = [brute_force(model, tokenizer, row, options) for row in rows]
    assert len(chunk_features(rows[0], tokenizer, options)) > 5  # passages lie in several chunks, and across borders
    assert any(None in answer.candidate_scores for answer in expected)  # beyond max_candidates
    if kinds == 5:
        assert {answer.yes_no for answer in expected} != {"none"}
    for batch_size in (1, 2, 7, 100):
        for answer, other in zip(answer_rows(model, tokenizer, rows, options, batch_size), expected, strict=True):
            same(answer, other)
    same(answer_row(model, tokenizer, rows[2], options), expected[2])
    for row, answer in zip(rows, expected, strict=True):
        for span in answer.short:
            passage = row.candidates[answer.candidate].span
            assert passage.start <= span.start < span.end <= passage.end
            assert row.answer(span) == row.answer(span).strip()


def test_the_model_keeps_its_mode(tokenizer):
    model = tiny_model(tokenizer).train()
    answer_row(model, tokenizer, synthetic_questions(1, seed=1)[0], SMALL)
    assert model.training


class Scripted:
    """A model whose logits are written down for each chunk in turn."""

    device = torch.device("cpu")
    training = False

    def __init__(self, *outputs: tuple[dict[int, float], dict[int, float], list[float], list[float]]) -> None:
        self.outputs = list(outputs)

    def eval(self):
        return self

    def train(self, mode: bool = True):
        return self

    def __call__(self, input_ids, paragraph_ids, max_paragraphs, **inputs) -> NaturalQuestionsOutput:
        starts, ends, paragraphs, types = self.outputs.pop(0)
        start, end = torch.zeros(1, input_ids.shape[1]), torch.zeros(1, input_ids.shape[1])
        for logits, written in ((start, starts), (end, ends)):
            for token, value in written.items():
                logits[0, token] = value
        return NaturalQuestionsOutput(
            start_logits=start,
            end_logits=end,
            paragraph_logits=torch.tensor([paragraphs]),
            answer_logits=torch.tensor([types]),
        )


def two_passages() -> QuestionRow:
    return plain_row("one two three\n\nfour five six", "what")


class Words:
    """One token per word: `<s>` 0, `</s>` 2, others 3 upwards."""

    is_fast, cls_token_id, sep_token_id, pad_token_id = True, 0, 2, 1
    bos_token_id, eos_token_id = 0, 2

    def __call__(self, text, **options):
        import re

        words = list(re.finditer(r"\S+", text))
        return {"input_ids": [3 + len(word.group()) for word in words], "offset_mapping": [w.span() for w in words]}


def test_one_chunk_by_hand():
    # <s> what </s> one two three four five six </s>: tokens 3–5 are the first passage, 6–8 the second.
    options = Options(markers=False, max_tokens=16, stride=8, max_answer_tokens=2)
    starts, ends = {0: 1.0, 3: 2.0, 6: 3.0, 7: 0.5, 5: 9.0}, {0: 0.5, 8: 4.0, 7: 2.0, 3: 1.0, 6: -5.0}
    model = Scripted((starts, ends, [0.25, 1.25], [1.0, 3.0]))
    answer = answer_row(model, Words(), two_passages(), options)
    # Long: 1.25 + (3 − 1). Inside the second passage, at most two tokens: 6–7 has 3 + 2, 7–8 has 0.5 + 4, 6–8 (3 + 4)
    # is too long, 5–6 crosses the border. So 5 − (1 + 0.5).
    assert answer.candidate == 1
    assert answer.long_score == pytest.approx(3.25)
    assert answer.short == (Span(15, 24),)
    assert two_passages().answer(answer.short[0]) == "four five"
    assert answer.short_score == pytest.approx(3.5)
    assert answer.probability == pytest.approx(1 / (1 + math.exp(-2)))
    assert answer.candidate_scores == pytest.approx((2.25, 3.25))
    share = 1 / (1 + math.exp(-1))  # of the softmax of (0.25, 1.25)
    assert answer.candidate_probabilities == pytest.approx(
        (answer.probability * (1 - share), answer.probability * share)
    )
    assert answer.yes_no == "none"


def test_the_best_chunk_counts_for_each_passage():
    # Chunks of three document tokens that begin every two: "one two three", "three four five", "five six".
    options = Options(markers=False, max_tokens=8, stride=2, max_answer_tokens=9)
    row = QuestionRow(
        id="a", question="what who", text="one two three four five six", candidates=(Candidate(Span(4, 23)),)
    )
    chunks = chunk_features(row, Words(), options)
    assert [len(chunk["input_ids"]) - 5 for chunk in chunks] == [3, 3, 2]
    model = Scripted(
        ({5: 1.0}, {6: 1.0}, [5.0], [0.0, -4.0]),  # long 1, short 2
        ({4: 2.0, 0: 1.0}, {6: 2.0}, [1.0], [0.0, 2.0]),  # long 3, short 3: "three … five"
        ({4: 0.5}, {4: 0.5}, [2.0], [0.0, -1.0]),  # long 1, short 1
    )
    answer = answer_row(model, Words(), row, options)
    assert answer.candidate == 0
    assert answer.long_score == pytest.approx(3)
    assert answer.short_score == pytest.approx(3)
    assert row.answer(answer.short[0]) == "three four five"
    assert answer.probability == pytest.approx(1 / (1 + math.exp(-2)))


def test_yes_and_no_by_hand():
    options = Options(markers=False, max_tokens=16, stride=8, answer_types=5)
    for types, yes_no, score in (
        ([2.0, 5.0, 1.0, 4.0, 0.0], "yes", 3.0),
        ([2.0, 1.0, 1.5, 1.0, 0.0], "no", -0.5),  # still the likeliest kind of answer; the score says how sure
        ([2.0, 1.0, 0.0, 1.5, 0.0], "none", 0.0),
        ([2.0, 1.0, 0.0, 0.5, 1.5], "none", 0.0),
    ):
        answer = answer_row(Scripted(({}, {}, [0.0, 1.0], types)), Words(), two_passages(), options)
        assert (answer.yes_no, answer.short_score) == (yes_no, pytest.approx(score))
        assert bool(answer.short) == (yes_no == "none")
        odds = math.log(sum(math.exp(logit) for logit in types[1:])) - types[0]
        assert answer.long_score == pytest.approx(1 + odds)


def test_nothing_to_choose_from():
    row = QuestionRow(id="a", question="what", text="one two", candidates=(Candidate(Span(3, 3)),))
    answer = answer_row(Scripted(), Words(), row, Options(markers=False, max_tokens=16, stride=8))
    assert answer == Answer(candidate_scores=(None,), candidate_probabilities=(0.0,))
    assert answer.candidate is None
    assert answer.short == ()
    assert answer_rows(Scripted(), Words(), [], Options(markers=False)) == []


@given(st.data())
def test_best_spans_equal_every_pair(data):
    length = data.draw(st.integers(1, 13))
    limit = data.draw(st.integers(1, 15))
    small = st.integers(-2, 2)  # many ties
    start = [data.draw(st.lists(small, min_size=length, max_size=length)) for _ in range(2)]
    end = [data.draw(st.lists(small, min_size=length, max_size=length)) for _ in range(2)]
    owners = [data.draw(st.lists(st.integers(-1, 2), min_size=length, max_size=length)) for _ in range(2)]
    scores, first, last = best_spans(
        torch.tensor(start).float(), torch.tensor(end).float(), torch.tensor(owners), 4, limit
    )
    for row, paragraph in product(range(2), range(4)):
        pairs = [
            (-start[row][i] - end[row][j], i, j)
            for i, j in product(range(length), repeat=2)
            if i <= j < i + limit and owners[row][i] == owners[row][j] == paragraph
        ]
        best = min(pairs, default=(math.inf, 0, 0))
        assert (-scores[row, paragraph], first[row, paragraph], last[row, paragraph]) == best


def test_a_long_document_in_little_memory(tokenizer):
    """Tens of thousands of tokens: many chunks, none of them more than max_tokens wide."""
    paragraph = synthetic_questions(1, seed=9)[0].text.replace("\n\n", " ")
    row = plain_row("\n\n".join([paragraph] * 40), "what is it")
    options = Options(max_tokens=509, stride=251, max_candidates=0, markers=False)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = LongspanConfig(vocab_size=len(tokenizer), max_position_embeddings=509, **sizes)
    answer = answer_row(LongspanForNaturalQuestions(config), tokenizer, row, options, batch_size=4)
    assert len(chunk_features(row, tokenizer, options)) > 40
    assert None not in answer.candidate_scores


def test_mistakes_are_named(tokenizer):
    row = synthetic_questions(1, seed=1)[0]
    with pytest.raises(InputError, match="batch_size=0"):
        answer_row(tiny_model(tokenizer), tokenizer, row, SMALL, batch_size=0)
    words = Words()
    words.pad_token_id = None  # type: ignore[assignment]
    with pytest.raises(InputError, match="pad_token"):
        answer_row(Scripted(), words, row, SMALL)
