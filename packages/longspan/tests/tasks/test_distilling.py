"""Learning from a teacher: both losses by hand, a student that is its teacher, a teacher that stays as it is."""

from __future__ import annotations

import math

import pytest
import torch

from longspan import decompose
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForQuestionAnswering, LongspanForSequenceClassification
from longspan.tasks.distilling import Distilling, prediction_loss, states_loss

SIZES = {"vocab_size": 61, "hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 3, "attention": "full"}
SIZES |= {"intermediate_size": 20, "max_position_embeddings": 50, "init_std": 0.3}


def teacher_and_batch(kind=LongspanForQuestionAnswering, **fields):
    teacher = kind(LongspanConfig(**SIZES, **fields)).double()
    ids = torch.randint(3, 61, (2, 17))
    ids[:, 5] = 2
    mask = torch.arange(17) < torch.tensor([[17], [11]])
    batch = {"input_ids": ids.masked_fill(~mask, 1), "attention_mask": mask}
    if kind is LongspanForQuestionAnswering:
        return teacher, batch | {"start_positions": torch.tensor([7, 6]), "end_positions": torch.tensor([8, 10])}
    return teacher, batch | {"labels": torch.tensor([0, 1])}


def test_the_loss_of_predictions_worked_out_by_hand():
    """Of scores (0, T·log 3) the softmax at temperature T is (1/4, 3/4); the teacher's (0, 0) give (1/2, 1/2)."""
    real = torch.tensor([[True, True, False]])
    ours = {"start_logits": torch.tensor([[0.0, 2 * math.log(3), 50.0]]), "end_logits": torch.zeros(1, 3), "loss": None}
    theirs = {"start_logits": torch.zeros(1, 3), "end_logits": torch.zeros(1, 3)}
    divergence = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert float(prediction_loss(ours, theirs, real, 2.0)) == pytest.approx(4 * divergence / 2)


def test_the_loss_of_states_counts_real_tokens_of_upper_layers():
    real = torch.tensor([[True, True, False]])
    ours = [torch.zeros(1, 3, 2) for _ in range(4)]
    theirs = [torch.full((1, 3, 2), float(layer)) for layer in range(4)]
    theirs[2][0, 2] = 99.0
    assert float(states_loss(tuple(ours), tuple(theirs), real, 1)) == pytest.approx((4 + 9) / 2)
    assert float(states_loss(tuple(ours), tuple(theirs), real, 1, torch.tensor(2.0))) == pytest.approx((4 + 9 + 2) / 3)
    assert float(states_loss(tuple(ours), tuple(theirs), real, 3)) == 0


@pytest.mark.parametrize("kind", [LongspanForQuestionAnswering, LongspanForSequenceClassification])
def test_a_student_that_is_its_teacher_learns_from_the_labels_alone(kind):
    model, batch = teacher_and_batch(kind, dropout=0.0)
    loss = Distilling(gamma=0.7).teacher_of(model).loss(model.train(), batch)
    torch.testing.assert_close(loss, 0.7 * model(**batch).loss)


def test_the_parts_add_up_and_reach_the_student_alone():
    source, batch = teacher_and_batch(dropout=0.1)
    student = decompose(source, 2).eval()
    parts = {
        name: Distilling(**dict.fromkeys(("alpha", "beta", "gamma"), 0.0) | {name: 1.0}).teacher_of(student)
        for name in ("alpha", "beta", "gamma")
    }
    options = Distilling(alpha=0.5, beta=0.2, gamma=0.3)
    teacher = options.teacher_of(student)
    assert teacher.model.config.stack["stack"] == "sequential"
    losses = {name: part.loss(student, batch).item() for name, part in parts.items()}
    assert all(value > 0 for value in losses.values())
    total = teacher.loss(student, batch)
    assert total.item() == pytest.approx(sum(getattr(options, name) * value for name, value in losses.items()))
    student.train()
    teacher.loss(student, batch).backward()
    assert not teacher.model.training
    assert all(each.grad is None for each in teacher.model.parameters())
    assert all(each.grad is not None for each in student.parameters() if each.requires_grad)


def test_padding_does_not_change_the_loss():
    source, batch = teacher_and_batch(dropout=0.0)
    student, rows = decompose(source, 2), {name: value[1:] for name, value in batch.items()}
    short = {name: value[:, :11] if value.dim() == 2 else value for name, value in rows.items()}
    teacher = Distilling(gamma=0.0).teacher_of(student)
    torch.testing.assert_close(teacher.loss(student, rows), teacher.loss(student, short))


def test_the_pooled_vector_counts_as_one_layer_more():
    head = {"head": "sequence_classification", "layers": "pooler"}
    source, batch = teacher_and_batch(LongspanForSequenceClassification, pooler=True, head=head, dropout=0.0)
    student = decompose(source, 2)
    loss = Distilling(alpha=0.0, beta=1.0, gamma=0.0).teacher_of(student).loss(student, batch)
    ours, theirs = (model(**batch, output_hidden_states=True) for model in (student, source.eval()))
    vectors = [model.model.pooler(out.hidden_states[-1]) for model, out in ((student, ours), (source, theirs))]
    real = batch["attention_mask"]
    states = (ours.hidden_states[3] - theirs.hidden_states[3])[real].square().mean()
    torch.testing.assert_close(loss, (states + (vectors[0] - vectors[1]).square().mean()) / 2)


def test_weights_and_teachers_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(InputError, match="alpha, beta and gamma are all 0"):
        Distilling(alpha=0.0, beta=0.0, gamma=0.0)
    with pytest.raises(InputError, match="temperature is 0"):
        Distilling(temperature=0.0)
    source, _ = teacher_and_batch()
    source.save_pretrained(tmp_path)
    wider = LongspanForQuestionAnswering(LongspanConfig(**SIZES | {"hidden_size": 16}))
    with pytest.raises(InputError, match="whose hidden_size is 12, and the student's is 16; give the teacher that"):
        Distilling(teacher=str(tmp_path)).teacher_of(wider)
    assert Distilling(teacher=str(tmp_path)).teacher_of(source).options.teacher == str(tmp_path)
