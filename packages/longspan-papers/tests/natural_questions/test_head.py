"""The Natural Questions model: logits and loss against loops and hand-worked numbers, and every odd chunk."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from longspan.errors import InputError
from longspan.models import LongspanForNaturalQuestions
from longspan_papers.natural_questions.head import choice_loss
from longspan_papers.natural_questions.network import document_mean, paragraph_means

NONE = -100
# Two chunks: three paragraphs (the middle one of a single token), and one paragraph; −1 is question or between.
PARAGRAPHS = torch.tensor([[-1, -1, -1, 0, 0, 0, 1, -1, 2, 2, 2, 2, -1], [-1, -1, 0, 0, 0, -1, -1] + [-1] * 6])
LABELS = {
    "start_positions": torch.tensor([8, 0]),
    "end_positions": torch.tensor([10, 0]),
    "paragraph_labels": torch.tensor([2, NONE]),
    "answer_types": torch.tensor([1, 0]),
}


@pytest.fixture
def make_model(make_config):
    def make(head: dict | None = None, **changes) -> LongspanForNaturalQuestions:
        chosen = {"head": "natural_questions"} | (head or {})
        config = make_config(global_tokens="first", dropout=0.0, head=chosen, **changes)
        return LongspanForNaturalQuestions(config).eval()

    return make


@pytest.fixture
def batch(make_batch):
    ids, mask = make_batch(13, 7)
    return {"input_ids": ids, "attention_mask": mask, "paragraph_ids": PARAGRAPHS}


def loop_reference(model: LongspanForNaturalQuestions, batch: dict, labels: dict) -> tuple[list[dict], Tensor]:
    """Logits of every chunk and the loss, token by token, with nothing but lists and Python's own loops."""
    logits, losses = [], []
    weights = model.config.head["loss_weights"]
    for row, mask in enumerate(batch["attention_mask"]):
        length = int(mask.sum())
        ids = batch["input_ids"][row : row + 1, :length]
        hidden = model.model(ids).last_hidden_state[0]
        start, end = (hidden @ model.qa_outputs.weight.T + model.qa_outputs.bias).unbind(-1)
        found = {}
        for place, paragraph in enumerate(batch["paragraph_ids"][row, :length].tolist()):
            if paragraph >= 0:
                found.setdefault(paragraph, []).append(hidden[place])
        vectors = {paragraph: sum(states) / len(states) for paragraph, states in found.items()}
        bias = 0 if model.paragraph.bias is None else model.paragraph.bias[0]
        scores = {paragraph: model.paragraph.weight[0] @ vector + bias for paragraph, vector in vectors.items()}
        several = list(vectors.values()) or list(hidden)
        answer = model.answer.weight @ (sum(several) / len(several)) + model.answer.bias
        logits.append({"start": start, "end": end, "paragraph": scores, "answer": answer})
        at = {name: int(label[row]) for name, label in labels.items()}
        loss = -weights[0] * start.log_softmax(0)[at["start_positions"]]
        loss = loss - weights[1] * end.log_softmax(0)[at["end_positions"]]
        choices = [*scores.values()] + ([torch.tensor(0.0)] if model.config.head["null_paragraph"] else [])
        if at["paragraph_labels"] != NONE:
            loss = loss - weights[2] * (scores[at["paragraph_labels"]] - torch.stack(choices).logsumexp(0))
        elif model.config.head["null_paragraph"]:
            loss = loss - weights[2] * (0 - torch.stack(choices).logsumexp(0))
        losses.append(loss - weights[3] * answer.log_softmax(0)[at["answer_types"]])
    return logits, sum(losses) / len(losses)


@pytest.mark.parametrize("null", [False, True], ids=["dropped", "null-slot"])
@pytest.mark.parametrize("kinds", [2, 5])
def test_logits_and_loss_equal_a_loop(null, kinds, make_model, batch):
    model = make_model({"null_paragraph": null, "answer_types": kinds, "loss_weights": (1.0, 0.5, 2.0, 3.0)})
    if null:
        torch.nn.init.constant_(model.paragraph.bias, 0.7)
    output = model(**batch, **LABELS)
    expected, loss = loop_reference(model, batch, LABELS)
    assert output.start_logits.shape == output.end_logits.shape == (2, 13)
    assert output.paragraph_logits.shape == (2, 3)
    assert output.answer_logits.shape == (2, kinds)
    for row, chunk in enumerate(expected):
        length = len(chunk["start"])
        close(output.start_logits[row, :length], chunk["start"])
        close(output.end_logits[row, :length], chunk["end"])
        assert output.start_logits[row, length:].isneginf().all()
        assert output.end_logits[row, length:].isneginf().all()
        for paragraph in range(3):
            logit = output.paragraph_logits[row, paragraph]
            close(logit, chunk["paragraph"][paragraph]) if paragraph in chunk["paragraph"] else None
            assert logit.isneginf() == (paragraph not in chunk["paragraph"])
        close(output.answer_logits[row], chunk["answer"])
    close(output.loss, loss)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=2e-6)


def test_a_chunk_worked_by_hand():
    # One chunk of four tokens, states of width 2; paragraph 0 holds tokens 1 and 2, paragraph 1 token 3.
    hidden = torch.tensor([[[9.0, 9.0], [1.0, 3.0], [3.0, 5.0], [4.0, 0.0]]])
    ids, real = torch.tensor([[-1, 0, 0, 1]]), torch.ones(1, 4, dtype=torch.bool)
    means, exists = paragraph_means(hidden, ids, real, None)
    assert means.tolist() == [[[2.0, 4.0], [4.0, 0.0]]]  # ((1+3)/2, (3+5)/2) and the third token itself
    assert exists.tolist() == [[True, True]]
    assert document_mean(means, exists, hidden, real).tolist() == [[3.0, 2.0]]  # of the two means, not of three tokens
    # The same cut after token 2: paragraph 0 has one token left, paragraph 1 none.
    real[0, 2:] = False
    means, exists = paragraph_means(hidden, ids, real, 2)
    assert means.tolist() == [[[1.0, 3.0], [0.0, 0.0]]]
    assert exists.tolist() == [[True, False]]
    assert document_mean(means, exists, hidden, real).tolist() == [[1.0, 3.0]]
    # No paragraph at all: the mean of the two real tokens, ((9+1)/2, (9+3)/2).
    means, exists = paragraph_means(hidden, torch.full_like(ids, -1), real, None)
    assert means.shape == (1, 0, 2)
    assert document_mean(means, exists, hidden, real).tolist() == [[5.0, 6.0]]
    # Nothing but padding.
    assert document_mean(means, exists, hidden, real & False).tolist() == [[0.0, 0.0]]


def test_the_loss_of_choices_worked_by_hand():
    # Softmax of (0, ln 3) is (1/4, 3/4); the second row has one choice, which costs nothing.
    logits = torch.tensor([[0.0, math.log(3), -math.inf], [5.0, -math.inf, -math.inf]])
    loss = choice_loss(logits, torch.tensor([0, 0]), "labels")
    assert loss.item() == pytest.approx(math.log(4) / 2)
    assert choice_loss(logits, torch.tensor([1, NONE]), "labels").item() == pytest.approx(math.log(4 / 3) / 2)
    # With the null slot at 0 the first row is (0, 0, ln 3), one fifth each for the zeros; the second is (0, 5).
    loss = choice_loss(logits, torch.tensor([NONE, NONE]), "labels", null_slot=True)
    assert loss.item() == pytest.approx((math.log(5) + math.log(1 + math.exp(5))) / 2, rel=1e-6)
    # Nothing to choose from, and nothing chosen.
    empty = torch.zeros(2, 0)
    assert choice_loss(empty, torch.tensor([NONE, NONE]), "labels") == 0
    assert choice_loss(empty, torch.tensor([NONE, NONE]), "labels", null_slot=True) == 0  # one choice costs nothing


@pytest.mark.parametrize("null", [False, True], ids=["dropped", "null-slot"])
@pytest.mark.parametrize(
    "paragraphs",
    [PARAGRAPHS, torch.full_like(PARAGRAPHS, -1), PARAGRAPHS.roll(1, 0), PARAGRAPHS.masked_fill(PARAGRAPHS == 1, -1)],
    ids=["some", "none-anywhere", "only-on-padding", "a-gap"],
)
def test_gradients_are_finite(null, paragraphs, make_model, make_batch):
    model = make_model({"null_paragraph": null}).train()
    ids, mask = make_batch(13, 1)
    labels = {name: torch.zeros(2, dtype=torch.long) for name in LABELS}
    labels["paragraph_labels"] = torch.full((2,), NONE)
    output = model(ids, mask, paragraph_ids=paragraphs, **labels)
    output.loss.backward()
    assert output.loss.isfinite()
    assert output.answer_logits.isfinite().all()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert gradients["answer.weight"].abs().sum() > 0
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_gradcheck_of_means_and_choices():
    hidden = torch.randn(2, 13, 3, dtype=torch.float64, requires_grad=True)
    real = torch.arange(13) < torch.tensor([[13], [7]])

    def vectors(states: Tensor) -> Tensor:
        means, exists = paragraph_means(states, PARAGRAPHS, real, 5)
        return document_mean(means, exists, states, real)

    assert torch.autograd.gradcheck(vectors, hidden)


@pytest.mark.slow
@given(padding=st.integers(0, 11), paragraphs=st.integers(3, 8), order=st.permutations([0, 1, 2]))
def test_a_chunk_alone_padded_or_batched(padding, paragraphs, order):
    from longspan.models import LongspanConfig

    torch.manual_seed(1)
    window = {"mechanism": "longformer", "left_tokens": 3, "right_tokens": 5}
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = LongspanConfig(**sizes, intermediate_size=40, max_position_embeddings=97, attention=window, init_std=0.2)
    model = LongspanForNaturalQuestions(config).double().eval()
    lengths = [13, 7, 2]
    rows = [torch.randint(3, 61, (length,)) for length in lengths]
    ids = [[-1, 0, 0, 2, 2, 2, 1, -1, -1, 1, 1, -1, -1], [-1, -1, 0, 0, 0, -1, -1], [-1, -1]]
    wanted = [(3, 5, 2, 1), (0, 0, NONE, 0), (0, 0, NONE, 0)]
    names = tuple(LABELS)

    def run(chosen: list[int], extra: int, count: int | None):
        width = max(lengths[row] for row in chosen) + extra
        stack = lambda values, fill: torch.stack(  # noqa: E731
            [functional.pad(torch.as_tensor(values[row]), (0, width - lengths[row]), value=fill) for row in chosen]
        )
        mask = torch.arange(width) < torch.tensor([lengths[row] for row in chosen])[:, None]
        labels = {name: torch.tensor([wanted[row][at] for row in chosen]) for at, name in enumerate(names)}
        # Padding claims to belong to a paragraph: it must not count.
        return model(stack(rows, 1), mask, paragraph_ids=stack(ids, 1), max_paragraphs=count, **labels)

    alone = [run([row], 0, None) for row in range(3)]
    together = run(list(order), padding, paragraphs)
    for place, row in enumerate(order):
        length, count = lengths[row], alone[row].paragraph_logits.shape[1]
        for name in ("start_logits", "end_logits"):
            torch.testing.assert_close(together[name][place, :length], alone[row][name][0])
        torch.testing.assert_close(together.paragraph_logits[place, :count], alone[row].paragraph_logits[0])
        assert together.paragraph_logits[place, count:].isneginf().all()
        torch.testing.assert_close(together.answer_logits[place], alone[row].answer_logits[0])
    expected = sum(output.loss for output in alone) / 3
    torch.testing.assert_close(together.loss, expected, rtol=1e-5, atol=1e-6)


def test_no_tensor_of_tokens_by_paragraphs(memory):
    """T × C numbers would be T²/2 here: as many paragraphs as half the tokens."""
    length, width = 1009, 24
    hidden, real = torch.randn(1, length, width, requires_grad=True), torch.ones(1, length, dtype=torch.bool)
    with memory() as made:
        means, exists = paragraph_means(hidden, (torch.arange(length) // 2)[None], real, None)
        document_mean(means, exists, hidden, real).sum().backward()
    assert means.shape == (1, 505, width)
    assert made.largest <= 2 * length * width


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"end_positions": None}, "end_positions is missing"),
        ({"start_positions": torch.tensor([13, 0])}, "start_positions is 13 in chunk 0"),
        ({"end_positions": torch.tensor([8, 7])}, "end_positions is 7 in chunk 1"),  # that token is padding
        ({"paragraph_labels": torch.tensor([2, 1])}, "paragraph_labels is 1 in chunk 1"),  # it has no token there
        ({"answer_types": torch.tensor([2, 0])}, "answer_types is 2 in chunk 0"),
        ({"answer_types": torch.tensor([-1, 0])}, "answer_types is -1 in chunk 0"),
        ({"answer_types": torch.tensor([1, 0, 0])}, "answer_types has shape"),
        ({"paragraph_ids": None}, "paragraph_ids is missing"),
        ({"paragraph_ids": PARAGRAPHS[:, 1:]}, "paragraph_ids has shape"),
        ({"max_paragraphs": 2}, "max_paragraphs=2"),
    ],
)
def test_mistakes_are_named(changes, words, make_model, batch):
    with pytest.raises(InputError, match=words):
        make_model()(**(batch | LABELS | changes))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"answer_types": 3}, "head.answer_types is 3; choose 2 or 5"),
        ({"null_paragraph": 3}, "head.null_paragraph is 3; it must be true or false"),
        ({"loss_weights": [1, 1]}, r"loss_weights is \(1\.0, 1\.0\); give four"),
        ({"loss_weights": ["1", 1, 1, 1]}, r"head.loss_weights\[0\] is '1'; it must be a number"),
        ({"null_paragraphs": True}, "unknown key 'head.null_paragraphs'; did you mean 'null_paragraph'"),
    ],
)
def test_impossible_options(options, words, make_model):
    with pytest.raises(InputError, match=words):
        make_model(options)
