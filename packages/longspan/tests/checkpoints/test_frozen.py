"""Frozen training moves new position rows alone."""

from __future__ import annotations

import pytest
import torch

from longspan import InputError
from longspan.checkpoints import from_transformers, hold_old_rows, lengthen, train_new_positions_only


@pytest.mark.parametrize("name", ["RobertaForMaskedLM", "BertForMaskedLM"])
def test_short_inputs_stay_bit_for_bit(name, published):
    model = lengthen(published(name), "longformer", max_tokens=120, left_tokens=5)
    short = torch.randint(3, 61, (2, 53))
    before, rows = model(short).logits, model.model.encoder.embeddings.position.weight.clone()
    table = train_new_positions_only(model)
    assert [p for p in model.parameters() if p.requires_grad] == [table]
    optimiser = torch.optim.AdamW([table], lr=0.1, weight_decay=0.0)
    long = torch.randint(3, 61, (2, 110))
    for _ in range(3):
        optimiser.zero_grad()
        model(long, labels=long).loss.backward()
        optimiser.step()
    assert torch.equal(model(short).logits, before)
    moved = (table != rows).any(1)
    old = 53 + model.config.position_offset
    assert not moved[:old].any()
    assert moved[old : 110 + model.config.position_offset].all()


def test_sequence_models_train_the_encoders_table(published):
    model = lengthen(published("BartForConditionalGeneration"), max_tokens=80)
    assert train_new_positions_only(model) is model.encoder.embeddings.position.weight


def test_mistakes_are_named(published):
    model = from_transformers(published("BertForMaskedLM"))
    with pytest.raises(InputError, match="trained_tokens=None needs the report"):
        train_new_positions_only(model)
    with pytest.raises(InputError, match="trained_tokens=53 leaves no new rows"):
        train_new_positions_only(model, 53)


def test_weight_decay_moves_new_rows_alone(published):
    model = lengthen(published("RobertaForMaskedLM"), "longformer", max_tokens=120, left_tokens=5)
    short = torch.randint(3, 61, (2, 53))
    before, rows = model(short).logits, model.model.encoder.embeddings.position.weight.clone()
    optimiser = torch.optim.AdamW([train_new_positions_only(model)], lr=0.1, weight_decay=0.5)
    hold_old_rows(optimiser, model)
    model(torch.randint(3, 61, (2, 70)), labels=torch.randint(3, 61, (2, 70))).loss.backward()
    optimiser.step()
    assert torch.equal(model(short).logits, before)
    # Rows that no input has reached have no gradient, and shrink by what is decayed.
    table = model.model.encoder.embeddings.position.weight
    torch.testing.assert_close(table[72:], rows[72:] * (1 - 0.1 * 0.5))
