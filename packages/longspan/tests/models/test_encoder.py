"""The encoder: any length, any batch, padding without effect, globals that cannot be forgotten."""

from __future__ import annotations

import pytest
import torch

from closeness import check_outputs
from longspan.errors import InputError
from longspan.models import LongspanForConditionalGeneration, LongspanModel
from longspan.models.embeddings import warn_of_left_padding


def run(model, ids, mask=None, **options):
    with torch.no_grad():
        return model(ids, mask, **options).last_hidden_state


@pytest.fixture(params=[("pre", False), ("post", True)], ids=["pre", "skip-padding"])
def conventions(request):
    normalization, skip = request.param
    return {"normalization": normalization, "positions_skip_padding": skip}


def test_a_document_alone_padded_or_batched_gives_the_same(conventions, make_config, make_batch):
    model = LongspanModel(make_config(global_tokens="first", **conventions)).eval()
    ids, mask = make_batch(31, 1, 17, 8)
    together = run(model, ids, mask)
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = run(model, ids[row : row + 1, :length])
        torch.testing.assert_close(together[row, :length], alone[0], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "positions",
    [
        {},
        {"position_embedding": "sinusoidal"},
        {"position_embedding": "none", "attention": {"mechanism": "full", "positions": "relative"}},
        {"positions_skip_padding": True},
    ],
    ids=["learned", "sinusoidal", "relative", "skip-padding"],
)
def test_padding_on_the_left_changes_nothing(positions, make_config, make_batch):
    model = LongspanModel(make_config(global_tokens="none", pooler=True, **positions)).eval()
    ids, mask = make_batch(31, 17)
    ids[ids == model.config.pad_token_id] = 5  # padding is what the mask says
    ids = ids if "positions_skip_padding" not in positions else ids.masked_fill(mask == 0, model.config.pad_token_id)
    with torch.no_grad():
        together = model(ids.flip(1), mask.flip(1))
        by_embeddings = model(
            inputs_embeds=model.encoder.embeddings.of_tokens(ids.flip(1)), attention_mask=mask.flip(1)
        )
        for row, length in enumerate(mask.sum(1).tolist()):
            alone = model(ids[row : row + 1, :length].flip(1))
            for found in (together, by_embeddings):
                ours = found.last_hidden_state[row, -length:]
                torch.testing.assert_close(ours, alone.last_hidden_state[0], atol=2e-5, rtol=1e-5)
                torch.testing.assert_close(found.pooler_output[row], alone.pooler_output[0], atol=2e-5, rtol=1e-5)


def test_a_published_model_counts_as_transformers_and_says_so_once(make_config, make_batch, caplog):
    warn_of_left_padding.cache_clear()
    ids, mask = make_batch(31, 17)
    for source, count in ((None, 0), ("bert", 1)):
        model = LongspanModel(make_config(source_model_type=source)).eval()
        for _ in range(2):
            run(model, ids.flip(1), mask.flip(1))
            run(model, ids, mask)
        said = [record.getMessage() for record in caplog.records if "padding on the left" in record.getMessage()]
        assert len(said) == count
    assert "positions of bert count from the beginning of the row, as in transformers" in said[0]
    rows = torch.arange(ids.shape[1])[None] + model.config.position_offset
    check_outputs(run(model, ids.flip(1), mask.flip(1)), run(model, ids.flip(1), mask.flip(1), position_ids=rows))


def test_padding_before_and_within_a_row_moves_no_token_against_another(make_config):
    """Positions by hand: from the first real token on, padding in between counted."""
    model = LongspanModel(make_config(dropout=0.0)).eval()
    ids = torch.tensor([[9, 9, 5, 6, 9, 7]])
    mask = torch.tensor([[0, 0, 1, 1, 0, 1]])
    rows = torch.tensor([[0, 0, 0, 1, 2, 3]]) + model.config.position_offset
    check_outputs(run(model, ids, mask), run(model, ids, mask, position_ids=rows))


def test_padding_on_the_left_leaves_the_first_real_token_global(make_config, make_batch):
    model = LongspanModel(make_config(global_tokens="first")).eval()
    ids, mask = make_batch(31, 17)
    together = run(model, ids.flip(1), mask.flip(1))
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = run(model, ids[row : row + 1, :length].flip(1))
        torch.testing.assert_close(together[row, -length:], alone[0], atol=2e-5, rtol=1e-5)


def test_global_tokens_first_equals_the_mask_and_reaches_everyone(make_config, make_batch):
    ids, mask = make_batch(29, 19)
    chosen = torch.zeros_like(mask)
    chosen[:, 0] = 1
    first = LongspanModel(make_config(global_tokens="first")).eval()
    plain = LongspanModel(make_config(global_tokens="none")).eval()
    plain.load_state_dict(first.state_dict())
    expected = run(plain, ids, mask, global_attention_mask=chosen)
    check_outputs(run(first, ids, mask), expected)
    assert not torch.allclose(run(plain, ids, mask), expected)
    # An explicit mask wins over the rule, also one without any global token.
    nothing = torch.zeros_like(mask)
    check_outputs(run(first, ids, mask, global_attention_mask=nothing), run(plain, ids, mask))


def test_global_tokens_question_covers_what_stands_before_the_separator(make_config):
    ids = torch.tensor([[0, 7, 8, 2, 2, 9, 10, 11, 2], [0, 7, 2, 2, 9, 10, 11, 12, 2]])
    model = LongspanModel(make_config(global_tokens="question")).eval()
    chosen = torch.tensor([[1, 1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0, 0]])
    assert torch.equal(run(model, ids), run(model, ids, global_attention_mask=chosen))
    with pytest.raises(InputError, match="no sep_token_id=2"):
        run(model, ids.clamp(min=3))


def test_masks_may_be_bool_or_int(make_config, make_batch):
    model = LongspanModel(make_config()).eval()
    ids, mask = make_batch(9, 6)
    assert torch.equal(run(model, ids, mask), run(model, ids, mask.bool()))


def test_mistakes_are_named(make_config, make_batch):
    model = LongspanModel(make_config()).eval()
    ids, mask = make_batch(9, 6)
    with pytest.raises(InputError, match=r"98 tokens .* max_position_embeddings=97.*lengthen"):
        run(model, torch.ones(1, 98, dtype=torch.long))
    with pytest.raises(InputError, match=r"attention_mask has shape \(2, 8\)"):
        run(model, ids, mask[:, :8])
    with pytest.raises(InputError, match="global_attention_mask has shape"):
        run(model, ids, mask, global_attention_mask=mask[:1])
    with pytest.raises(InputError, match="neither given"):
        model()
    with pytest.raises(InputError, match="type_vocab_size=0"):
        run(model, ids, token_type_ids=mask)
    narrow = LongspanModel(make_config(max_global_tokens=2)).eval()
    with pytest.raises(InputError, match="3"):
        run(narrow, ids, global_attention_mask=torch.arange(9).expand(2, 9) < 3)


def test_a_token_may_have_several_types(make_config, make_batch):
    model = LongspanModel(make_config(type_vocab_size=5)).eval()
    ids, _ = make_batch(7)
    types = torch.tensor([[0, 3], [4, 4], [1, 2], [0, 0], [2, 1], [3, 0], [4, 1]]).expand(len(ids), -1, -1)
    table = model.encoder.embeddings.token_type
    words = model.encoder.embeddings.token(ids)
    # Two types are the first one on top of words to which the second was added.
    expected = run(model, None, token_type_ids=types[..., 0], inputs_embeds=words + table(types[..., 1]))
    torch.testing.assert_close(run(model, ids, token_type_ids=types), expected)


def test_sinusoidal_positions_have_no_longest_input(make_config, make_batch):
    model = LongspanModel(make_config(position_embedding="sinusoidal", max_position_embeddings=8)).eval()
    ids, mask = make_batch(301, 40)
    together = run(model, ids, mask)
    torch.testing.assert_close(together[1:, :40], run(model, ids[1:, :40]), atol=1e-5, rtol=1e-5)


def test_embeddings_may_be_given(make_config, make_batch):
    model = LongspanModel(make_config()).eval()
    ids, mask = make_batch(9, 6)
    embeds = model.get_input_embeddings()(ids)
    assert torch.equal(run(model, ids, mask), run(model, None, mask, inputs_embeds=embeds))


def test_hidden_states_and_tuples(make_config, make_batch):
    model = LongspanModel(make_config(pooler=True, normalization="pre")).eval()
    ids, mask = make_batch(9, 6)
    output = model(ids, mask, output_hidden_states=True)
    assert len(output.hidden_states) == 3
    assert torch.equal(output.hidden_states[-1], output.last_hidden_state)
    assert output.pooler_output.shape == (2, 24)
    assert len(model(ids, mask, return_dict=False)) == 2


def test_initialisation_is_normal_and_leaves_a_mechanisms_own_rules(make_config):
    config = make_config(attention=["longformer", "poolingformer"], init_std=0.3, hidden_size=48)
    model = LongspanModel(config)
    first, second = (layer.attention for layer in model.encoder.layers)
    assert abs(first.query.weight.std() - 0.3) < 0.03
    assert first.query.bias.abs().max() == 0
    assert torch.equal(first.global_query.weight, first.query.weight)
    # "zero_value": the second level starts without effect.
    assert second.pooled_value.weight.abs().max() == 0
    assert model.encoder.embeddings.token.weight[1].abs().max() == 0


def test_without_absolute_positions_only_the_configuration_limits_the_length(make_config):
    config = make_config(position_embedding="none", max_position_embeddings=13, global_tokens="none")
    model = LongspanModel(config).eval()
    assert not any("position" in name for name in model.state_dict())
    ids = torch.randint(3, 61, (1, 13))
    # No layer knows places, so inputs that every window covers come out turned around when they are turned around.
    turned = run(model, ids[:, :4].flip(1)).flip(1)
    assert torch.allclose(run(model, ids[:, :4]), turned, atol=1e-6)
    with pytest.raises(InputError, match="14 tokens are more than max_position_embeddings=13"):
        model(torch.randint(3, 61, (1, 14)))


def test_a_decoder_keeps_its_positions_when_the_encoder_has_none(make_config):
    model = LongspanForConditionalGeneration(make_config(position_embedding="none", decoder_layers=1))
    tables = [name for name in model.state_dict() if "embeddings.position" in name]
    assert tables == ["decoder.embeddings.position.weight"]
