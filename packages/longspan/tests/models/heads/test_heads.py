"""The task heads: shapes, losses against first principles, and mistakes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from transformers import RobertaConfig, RobertaForQuestionAnswering

from longspan.checkpoints import from_transformers
from longspan.errors import InputError
from longspan.models import (
    LongspanForMaskedLM,
    LongspanForQuestionAnswering,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
)


@pytest.fixture
def batch(make_batch):
    return make_batch(17, 11)


def test_masked_lm(make_config, batch):
    model = LongspanForMaskedLM(make_config(head={"head": "masked_lm", "activation": "relu"})).eval()
    ids, mask = batch
    labels = ids.masked_fill(torch.rand(ids.shape) < 0.7, -100)
    output = model(ids, mask, labels=labels)
    assert output.logits.shape == (2, 17, 61)
    torch.testing.assert_close(output.loss, functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten()))
    doubled = model(ids, mask, labels=labels, num_items_in_batch=(labels != -100).sum() / 2)
    torch.testing.assert_close(doubled.loss, output.loss * 2)
    assert model.lm_head.decoder.weight is model.model.encoder.embeddings.token.weight


@pytest.mark.parametrize("layers", ["dense", "pooler"])
def test_sequence_classification(layers, make_config, batch):
    ids, mask = batch
    config = make_config(
        head={"head": "sequence_classification", "layers": layers},
        pooler=layers == "pooler",
        num_labels=5,
        global_tokens="first",
    )
    model = LongspanForSequenceClassification(config).eval()
    output = model(ids, mask, labels=torch.tensor([4, 0]))
    assert output.logits.shape == (2, 5)
    torch.testing.assert_close(output.loss, functional.cross_entropy(output.logits, torch.tensor([4, 0])))


def test_the_problem_follows_from_the_labels_or_the_configuration(make_config, batch):
    ids, mask = batch
    several = LongspanForSequenceClassification(make_config(num_labels=3)).eval()
    labels = torch.tensor([[0.0, 1, 1], [1, 0, 0]])
    output = several(ids, mask, labels=labels)
    torch.testing.assert_close(output.loss, functional.binary_cross_entropy_with_logits(output.logits, labels))
    several.config.problem_type = "regression"
    torch.testing.assert_close(several(ids, mask, labels=labels).loss, functional.mse_loss(output.logits, labels))
    one = LongspanForSequenceClassification(make_config(num_labels=1)).eval()
    output = one(ids, mask, labels=torch.tensor([0.5, 2]))
    torch.testing.assert_close(output.loss, functional.mse_loss(output.logits[:, 0], torch.tensor([0.5, 2])))
    with pytest.raises(InputError, match=r"labels has shape \(2, 2\)"):
        one(ids, mask, labels=torch.zeros(2, 2))


def test_token_classification(make_config, batch):
    ids, mask = batch
    model = LongspanForTokenClassification(make_config(num_labels=4)).eval()
    labels = torch.randint(0, 4, ids.shape).masked_fill(mask == 0, -100)
    output = model(ids, mask, labels=labels)
    assert output.logits.shape == (2, 17, 4)
    torch.testing.assert_close(output.loss, functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten()))
    with pytest.raises(InputError, match="labels has shape"):
        model(ids, mask, labels=labels[:, 1:])


def test_question_answering(make_config, batch):
    ids, mask = batch
    model = LongspanForQuestionAnswering(make_config()).eval()
    start, end = torch.tensor([3, 99]), torch.tensor([5, -1])
    output = model(ids, mask, start_positions=start, end_positions=end)
    assert output.start_logits.shape == output.end_logits.shape == (2, 17)
    ends = [(output.start_logits, start), (output.end_logits, end)]
    expected = sum(functional.cross_entropy(logits[:1], positions[:1]) for logits, positions in ends) / 2
    torch.testing.assert_close(output.loss, expected)
    with pytest.raises(InputError, match="end_positions is missing"):
        model(ids, mask, start_positions=start)


def test_the_loss_of_a_span_is_that_of_transformers_over_the_real_tokens():
    """Alone both are equal; in a padded batch ours stays the mean of them, and that of transformers does not."""
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(5)
    config = RobertaConfig(**sizes, intermediate_size=40, max_position_embeddings=40, initializer_range=0.4)
    theirs = RobertaForQuestionAnswering(config).double().eval()
    ours = from_transformers(theirs)
    ids, start, end = torch.randint(3, 61, (2, 23)), torch.tensor([4, 2]), torch.tensor([19, 6])
    lengths, alone = (23, 9), []
    for row, length in enumerate(lengths):
        only = {"start_positions": start[row, None], "end_positions": end[row, None]}
        expected = theirs(ids[row, None, :length], **only).loss
        torch.testing.assert_close(ours(ids[row, None, :length], **only).loss, expected)
        alone.append(expected)
    mask = (torch.arange(23) < torch.tensor(lengths)[:, None]).long()
    batch = {"attention_mask": mask, "start_positions": start, "end_positions": end}
    ids = ids.masked_fill(mask == 0, 1)
    torch.testing.assert_close(ours(ids, **batch).loss, torch.stack(alone).mean())
    assert abs(theirs(ids, **batch).loss - torch.stack(alone).mean()) > 0.01


def test_an_empty_document_is_refused_where_the_first_token_is_read(make_config):
    model = LongspanForSequenceClassification(make_config()).eval()
    with pytest.raises(InputError, match="0 tokens"):
        model(torch.ones(2, 0, dtype=torch.long))


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        (LongspanForMaskedLM, torch.full((2, 17), -100)),
        (LongspanForTokenClassification, torch.full((2, 17), -100)),
        (LongspanForSequenceClassification, torch.full((2,), -100)),
    ],
)
def test_without_any_label_the_loss_is_zero_and_finite(kind, labels, make_config, batch):
    model = kind(make_config())
    loss = model(*batch, labels=labels).loss
    loss.backward()
    assert loss == 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_any_of_several_places_is_right(make_config, batch):
    """By hand: the probability of all right places together; doubles count once, padding is no place, and a row
    without a place adds nothing."""
    ids, mask = (torch.cat([each, each[:1]]) for each in batch)
    model = LongspanForQuestionAnswering(make_config()).eval()
    start = torch.tensor([[3, 5, 5], [2, 99, -100], [-100, -1, 17]])
    end = torch.tensor([[6, 6, 4], [2, -100, 12], [-100, -100, -100]])  # token 12 of the second row is padding
    output = model(ids, mask, start_positions=start, end_positions=end)
    first, second = (logits[0].softmax(-1) for logits in (output.start_logits, output.end_logits))
    third, fourth = (logits[1, :11].softmax(-1) for logits in (output.start_logits, output.end_logits))
    starts = -(first[[3, 5]].sum().log() + third[2].log()) / 2
    ends = -(second[[6, 4]].sum().log() + fourth[2].log()) / 2
    torch.testing.assert_close(output.loss, (starts + ends) / 2)
    nothing = torch.full((3, 2), -100)
    loss = model(ids, mask, start_positions=nothing, end_positions=nothing).loss
    loss.backward()
    assert loss == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
