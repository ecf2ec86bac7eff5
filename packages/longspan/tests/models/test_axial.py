"""Axial positions: two tables by hand, in every kind of model, saved, drawn, and refused."""

from __future__ import annotations

import pytest
import torch

from closeness import check_outputs, check_weights
from longspan import InputError, LongspanConfig, LongspanForCausalLM, LongspanForConditionalGeneration, LongspanModel
from longspan.checkpoints import lengthen
from longspan.models import LongspanForMaskedLM, LongspanForSequenceClassification

SIZES = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "dropout": 0.0}
SIZES |= {"intermediate_size": 40, "position_offset": 0, "max_position_embeddings": 30, "attention": "full"}
AXIAL = {"position_embedding": "axial", "axial_shape": (5, 6), "axial_widths": (10, 14)}


def test_a_position_is_a_row_of_each_table():
    position = LongspanModel(LongspanConfig(**SIZES | AXIAL)).encoder.embeddings.position
    places = torch.tensor([[0, 5, 6, 29]])
    expected = [
        torch.cat([position.rows.weight[row], position.columns.weight[column]])
        for row, column in ((0, 0), (0, 5), (1, 0), (4, 5))
    ]
    assert torch.equal(position(places)[0], torch.stack(expected))


@torch.no_grad()
@pytest.mark.parametrize("kind", [LongspanModel, LongspanForCausalLM, LongspanForConditionalGeneration])
def test_any_model_has_them_and_keeps_them(kind, tmp_path):
    more = {"decoder_layers": 1} if kind is LongspanForConditionalGeneration else {}
    model = kind(LongspanConfig(**SIZES | AXIAL | more, axial_std=3.0)).eval()
    tables = {name: value for name, value in model.named_parameters() if ".position." in name}
    assert len(tables) == 2 + bool(more)  # a decoder beside an encoder has one of its own
    assert all(2 < value.std() < 4 for name, value in tables.items() if "decoder.embeddings.position.w" not in name)
    model.save_pretrained(tmp_path)
    ids = torch.randint(3, 61, (2, 23))
    out = {"decoder_input_ids": ids[:, :5]} if more else {}
    again = kind.from_pretrained(tmp_path).eval()
    assert again.config.axial_shape == [5, 6]
    check_weights(again, model)
    check_outputs(again(ids, **out)[0], model(ids, **out)[0])
    if kind is not LongspanModel:
        assert model.generate(ids[:, :4], max_new_tokens=5, min_new_tokens=5).shape[1] >= 6


def test_no_text_is_longer_than_the_model_says():
    model = LongspanModel(LongspanConfig(**SIZES | AXIAL | {"max_position_embeddings": 29}))
    with pytest.raises(InputError, match="30 tokens are more than max_position_embeddings=29"):
        model(torch.zeros(1, 30, dtype=torch.int64))
    with pytest.raises(InputError, match="position_ids goes from 0 to 30 but the table has rows 0 to 29"):
        model(torch.zeros(1, 2, dtype=torch.int64), position_ids=torch.tensor([[0, 30]]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axial_shape": (5, 5)}, r"axial_shape=\[5, 5\] has 25 places, but max_position_embeddings=30 .* needs 30"),
        ({"position_offset": 2}, r"axial_shape=\[5, 6\] has 30 places, .* position_offset=2 needs 32; give numbers"),
        ({"axial_widths": (10, 13)}, r"axial_widths=\[10, 13\] add up to 23, but the embeddings are 24 wide"),
        ({"axial_shape": None}, r"axial_shape is None, but position_embedding='axial' has two tables; give two"),
        ({"axial_widths": (8, 8, 8)}, r"axial_widths is \(8, 8, 8\), but position_embedding='axial' has two tables"),
        ({"axial_shape": (0, 6)}, r"axial_shape\[0\] is 0; it must be at least 1"),
        ({"position_embedding": "learned"}, r"axial_shape=\(5, 6\) is for position_embedding='axial', not 'learned'"),
    ],
)
def test_tables_that_do_not_fit_are_one_sentence(changes, message):
    with pytest.raises(InputError, match=message):
        LongspanConfig(**SIZES | AXIAL | changes)


def test_a_longer_model_needs_more_places():
    with pytest.raises(InputError, match=r"axial_shape=\[5, 6\] has 30 places, but max_position_embeddings=64"):
        lengthen(LongspanModel(LongspanConfig(**SIZES | AXIAL)), "full", max_tokens=64)


BOTH = {"stack": {"stack": "reversible", "join": "both"}, "normalization": "pre"}


def test_heads_read_both_streams_of_a_reversible_stack():
    ids = torch.randint(3, 61, (2, 9))
    for kind, more in (
        (LongspanForSequenceClassification, {}),
        (
            LongspanForSequenceClassification,
            {"pooler": True, "head": {"head": "sequence_classification", "layers": "pooler"}},
        ),
        (LongspanForMaskedLM, {}),
        (LongspanForMaskedLM, {"head": {"head": "masked_lm", "layers": "single"}, "tie_word_embeddings": False}),
        (LongspanForCausalLM, {"tie_word_embeddings": False}),
    ):
        model = kind(LongspanConfig(**SIZES | BOTH | more))
        assert model(ids)[0].isfinite().all()
    assert LongspanModel(LongspanConfig(**SIZES | BOTH))(ids)[0].shape == (2, 9, 48)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (LongspanForCausalLM, {}, "tie_word_embeddings=True ties a head that reads states of width 48 .* width 24"),
        (LongspanForMaskedLM, {"head": {"head": "masked_lm", "layers": "single"}}, "tie_word_embeddings=True ties"),
        (LongspanForConditionalGeneration, {"decoder_layers": 1}, "stack.join='both' gives states of twice the width"),
    ],
)
def test_what_cannot_read_both_streams_is_refused(kind, changes, message):
    with pytest.raises(InputError, match=message):
        kind(LongspanConfig(**SIZES | BOTH | changes))


def test_heads_of_their_own_width_need_not_divide_the_models():
    layer = {"mechanism": "reformer", "local": True, "head_width": 7}
    sizes = SIZES | {"num_attention_heads": 5, "attention": layer}
    assert LongspanModel(LongspanConfig(**sizes))(torch.zeros(1, 9, dtype=torch.int64))[0].shape == (1, 9, 24)
    with pytest.raises(InputError, match="num_attention_heads=5 does not divide hidden_size=24"):
        LongspanConfig(**sizes | {"attention": "full"})
    with pytest.raises(InputError, match="decoder_attention_heads=5 does not divide hidden_size=24"):
        LongspanConfig(**sizes | {"decoder_layers": 1})
