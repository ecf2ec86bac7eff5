"""A whole model of every mechanism: any batch, gradient checkpointing, saved and loaded, and text from it."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open

from closeness import check_outputs, check_weights
from longspan.attention.support import supports
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForConditionalGeneration, LongspanModel
from longspan.models.transformers_names import enable_checkpointing


def marked(config) -> str:
    """Which tokens are global, where the mechanism takes any."""
    return "first" if supports(config, "globals") else "none"


def build(config, kind=LongspanModel, **changes):
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40, "init_std": 0.2}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 97, "global_tokens": marked(config)}
    return kind(LongspanConfig(attention=config, **(sizes | changes))).eval()


def batch(*lengths):
    """Random ids `(B, T)` and their mask."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randint(3, 61, mask.shape).masked_fill(~mask, 1), mask.long()


@torch.no_grad()
@pytest.mark.parametrize("global_tokens", ["none", "first"])
def test_a_document_alone_padded_or_batched_gives_the_same(two_way_form, global_tokens):
    if global_tokens == "first":
        global_tokens = marked(two_way_form.config)
    model, (ids, mask) = build(two_way_form.config, global_tokens=global_tokens), batch(31, 1, 17, 8)
    together = model(ids, mask)[0]
    for row, length in enumerate(mask.sum(1).tolist()):
        torch.testing.assert_close(
            together[row, :length], model(ids[row : row + 1, :length])[0][0], atol=2e-5, rtol=1e-5
        )


@torch.no_grad()
def test_padding_on_the_left_changes_nothing(two_way_form):
    """Positions, windows, blocks and buckets are counted from the first real token."""
    model, (ids, mask) = build(two_way_form.config), batch(31, 17, 8)
    left = [row.roll(31 - int(real)) for row, real in zip(ids, mask.sum(1), strict=True)]
    together = model(torch.stack(left), mask.flip(1))[0]
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = model(ids[row : row + 1, :length])[0][0]
        torch.testing.assert_close(together[row, 31 - length :], alone, atol=2e-5, rtol=1e-5)


@torch.no_grad()
def test_any_length_and_a_row_of_padding_alone_are_finite(two_way_form):
    model = build(two_way_form.config)
    for length in (0, 1, 2, 13):
        hidden = model(torch.randint(3, 61, (2, length)))[0]
        assert hidden.shape == (2, length, 24)
        assert hidden.isfinite().all()
    ids, mask = batch(11, 5)
    assert model(ids, mask * torch.tensor([[1], [0]]))[0].isfinite().all()


@pytest.mark.parametrize("kind", [LongspanModel, LongspanForConditionalGeneration])
@pytest.mark.parametrize("reentrant", [False, pytest.param(True, marks=pytest.mark.variant)])
def test_gradient_checkpointing_changes_nothing(two_way_form, kind, reentrant):
    options = {"global_tokens": marked(two_way_form.config)}
    if kind is LongspanForConditionalGeneration:
        options["decoder_layers"] = 2
    check_checkpointing(two_way_form, kind, reentrant, options)


@pytest.mark.parametrize("reentrant", [False, pytest.param(True, marks=pytest.mark.variant)])
def test_gradient_checkpointing_of_a_decoder_changes_nothing(causal_form, reentrant):
    check_checkpointing(causal_form, LongspanForCausalLM, reentrant, {"global_tokens": "none"})


def check_checkpointing(form, kind, reentrant, options):
    options |= {"dropout": 0.1, "attention_dropout": 0.2}
    model, (ids, mask) = build(form.config, kind, **options).train(), batch(23, 14)
    out = {"decoder_input_ids": ids[:, :7]} if "decoder_layers" in options else {}

    def gradients():
        torch.manual_seed(7)
        model.zero_grad()
        model(ids, mask, **out)[0].square().mean().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    plain = gradients()
    # transformers renamed the method between 5.17 and 5.23.
    enable_checkpointing(model, use_reentrant=reentrant)
    torch.testing.assert_close(gradients(), plain, atol=1e-6, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", [LongspanModel, LongspanForConditionalGeneration])
def test_models_are_saved_and_found_again(two_way_form, kind, tmp_path):
    model, (ids, mask) = build(two_way_form.config, kind, decoder_layers=1), batch(23, 11)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path)
    loaded, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.config.layer_attention(1) == two_way_form.config
    out = {} if kind is LongspanModel else {"decoder_input_ids": ids}
    check_weights(loaded, model)
    check_outputs(loaded.eval()(ids, mask, **out)[0], model(ids, mask, **out)[0])
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert set(file.keys()) <= set(model.state_dict())


@torch.no_grad()
def test_an_encoder_decoder_writes_the_same_alone_and_batched(two_way_form):
    model, (ids, mask) = build(two_way_form.config, LongspanForConditionalGeneration, decoder_layers=1), batch(23, 11)
    options = {"max_new_tokens": 7, "min_new_tokens": 7, "num_beams": 2, "do_sample": False}
    together = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(model.generate(ids[1:, :11], attention_mask=mask[1:, :11], **options), together[1:])
