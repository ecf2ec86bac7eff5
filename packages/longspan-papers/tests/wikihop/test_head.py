"""Scoring candidates in pieces: by hand, and the two-pass gradient against the joint one, in values and in memory."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from longspan.errors import InputError
from longspan.models import LongspanForCandidateScoring
from longspan.models.transformers_names import enable_checkpointing

PIECES, EXAMPLES = 5, torch.tensor([0, 0, 0, 1, 1])
LABELS = torch.tensor([1, 2])


@pytest.fixture
def batch(make_batch):
    """Five pieces of two questions, whose first tokens stand for three candidates; the fourth piece is the longest."""
    ids, mask = make_batch(23, 17, 11, 29, 13)
    candidates = torch.full_like(ids, -1)
    candidates[:, 2], candidates[:, 5], candidates[:, 7] = 0, 1, 2
    leading = torch.arange(ids.shape[1]) < 9
    given = {"input_ids": ids, "attention_mask": mask, "candidate_ids": candidates, "example_ids": EXAMPLES}
    return given | {"global_attention_mask": leading.expand(ids.shape) & mask.bool(), "labels": LABELS}


def build(make_config, at_once, dropout=0.0):
    torch.manual_seed(3)
    head = {"head": "candidate_scoring", "pieces_at_once": at_once}
    config = make_config(head=head, dropout=dropout, attention_dropout=dropout)
    return LongspanForCandidateScoring(config).double().train()


def gradients(model):
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def by_hand(model, batch):
    """The definition, one piece after the other, all of them kept: mean logits over pieces, then cross-entropy."""
    rows = []
    for row in range(PIECES):
        width = int(batch["attention_mask"][row].sum())
        part = {name: value[row : row + 1, :width] for name, value in batch.items() if value.dim() == 2}
        places = [part["candidate_ids"][0].tolist().index(candidate) for candidate in range(3)]
        part.pop("candidate_ids")
        rows.append(model.score(model.model(**part).last_hidden_state[0, places])[:, 0])
    means = torch.stack([torch.stack(rows[:3]).mean(0), torch.stack(rows[3:]).mean(0)])
    return means, functional.cross_entropy(means, LABELS)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("accumulated", [False, True])
def test_two_passes_give_the_joint_gradient_and_the_same_dropout(make_config, batch, dropout, accumulated):
    found, loss = [], None
    for joint in (True, False):
        model = build(make_config, 1, dropout)
        for seed in (5, 6) if accumulated else (5,):
            torch.manual_seed(seed)
            loss = by_hand(model, batch)[1] if joint else model(**batch).loss
            (loss / 2).backward()
        found.append((loss, gradients(model)))
    torch.testing.assert_close(*(loss for loss, _ in found), rtol=1e-12, atol=1e-12)
    assert found[0][1].keys() == found[1][1].keys() == dict(model.named_parameters()).keys()
    assert sum(bool(wanted.any()) for wanted in found[0][1].values()) > 30  # what the last layer's others see has none
    for name, wanted in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], wanted, rtol=1e-10, atol=1e-13)


def test_neither_pieces_at_once_nor_checkpoints_of_layers_change_anything(make_config, batch):
    found = []
    for at_once, layers_twice in ((1, False), (1, True), (2, False), (None, False)):
        model = build(make_config, at_once)
        if layers_twice:
            enable_checkpointing(model)
        output = model(**batch)
        output.loss.backward()
        found.append((output.logits.detach(), gradients(model)))
    means, _ = by_hand(model, batch)
    for logits, weights in found:
        torch.testing.assert_close(logits, means.detach(), rtol=1e-10, atol=1e-12)
        for name, wanted in found[0][1].items():
            torch.testing.assert_close(weights[name], wanted, rtol=1e-9, atol=1e-12)


def test_memory_is_that_of_one_piece(make_config, memory):
    """Weights apart, whose gradients are there once."""

    def peak(at_once, pieces):
        model = build(make_config, at_once)
        ids = torch.randint(3, 61, (pieces, 64))
        candidates = torch.full_like(ids, -1)
        candidates[:, :2] = torch.arange(2)
        given = {"candidate_ids": candidates, "example_ids": torch.zeros(pieces, dtype=torch.long)}
        with memory() as made:
            model(ids, torch.ones_like(ids), labels=torch.tensor([1]), **given).loss.backward()
        return made.peak

    assert peak(1, 16) < 1.15 * peak(1, 2)
    assert peak(None, 16) > 4 * peak(None, 2)


def test_under_bfloat16_both_passes_compute_alike(make_config, batch):
    found = []
    for at_once in (1, None):
        model = build(make_config, at_once).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        assert loss.dtype == torch.float32
        found.append(gradients(model)["score.weight"])
    torch.testing.assert_close(*found, rtol=0.05, atol=0.02)


def test_one_candidate_is_right_and_teaches_nothing(make_config, batch):
    model = build(make_config, 1)
    candidates = batch["candidate_ids"].masked_fill(batch["candidate_ids"] > 0, -1)
    output = model(**{**batch, "candidate_ids": candidates, "labels": torch.tensor([0, 0])})
    output.loss.backward()
    assert output.loss == 0
    assert output.logits.shape == (2, 1)
    assert all(not grad.any() for grad in gradients(model).values())


def test_questions_may_have_other_numbers_of_candidates(make_config, batch):
    model = build(make_config, 1)
    candidates = batch["candidate_ids"].clone()
    candidates[3:][candidates[3:] == 2] = -1
    output = model(**{**batch, "candidate_ids": candidates, "labels": torch.tensor([1, 1])})
    assert output.logits[1, 2] == float("-inf")
    assert output.logits.isfinite().sum() == 5
    assert output.loss.isfinite()


def test_pieces_of_no_question_are_refused(make_config, batch):
    with pytest.raises(InputError, match=r"example_ids has shape \(4,\) but there are 5 pieces"):
        build(make_config, None)(**{**batch, "example_ids": EXAMPLES[:4]})
