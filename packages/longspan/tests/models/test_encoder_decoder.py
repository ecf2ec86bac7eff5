"""The encoder–decoder as a function: losses, masks, caches and beams that share one source."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from transformers import BartConfig, BartForConditionalGeneration, DynamicCache, EncoderDecoderCache, StaticCache

from longspan import from_transformers
from longspan.errors import InputError
from longspan.models import LongspanForConditionalGeneration


@pytest.fixture
def make_model(make_config):
    def make(**changes):
        sizes = {"decoder_layers": 2, "decoder_attention_heads": 2, "decoder_intermediate_size": 32}
        return LongspanForConditionalGeneration(make_config(**(sizes | {"global_tokens": "first"} | changes))).eval()

    return make


@pytest.fixture
def targets():
    labels = torch.randint(3, 61, (2, 7))
    labels[1, 4:] = -100
    return labels


def test_loss_is_the_mean_over_real_labels(make_model, make_batch, targets):
    model = make_model()
    ids, mask = make_batch(17, 11)
    output = model(ids, mask, labels=targets)
    expected = functional.cross_entropy(output.logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(model(ids, mask, labels=targets, num_items_in_batch=10).loss, expected * 1.1)
    assert output.cache is None
    nothing = model(ids, mask, labels=torch.full_like(targets, -100)).loss
    assert nothing == 0
    nothing.backward()


def test_label_smoothing(make_model, make_batch, targets):
    model = make_model(label_smoothing=0.1)
    ids, mask = make_batch(17, 11)
    output = model(ids, mask, labels=targets)
    logits, labels = output.logits.flatten(0, 1), targets.flatten()
    torch.testing.assert_close(output.loss, functional.cross_entropy(logits, labels, label_smoothing=0.1))


def test_labels_are_shifted_behind_the_start(make_model, make_batch, targets):
    model = make_model()
    ids, mask = make_batch(17, 11)
    shifted = model.prepare_decoder_input_ids_from_labels(targets)
    assert shifted[0].tolist() == [2, *targets[0, :-1].tolist()]
    assert shifted[1].tolist() == [2, *targets[1, :4].tolist(), 1, 1]
    assert torch.equal(model(ids, mask, labels=targets).logits, model(ids, mask, decoder_input_ids=shifted).logits)


def test_without_labels_the_source_is_shifted_as_in_bart(make_config, make_batch):
    torch.manual_seed(7)
    sizes = {"vocab_size": 61, "d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 97}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40}
    theirs = BartForConditionalGeneration(BartConfig(**sizes, **heads, dropout=0.0, init_std=0.3)).eval()
    ids, mask = make_batch(17, 11)
    ours = from_transformers(theirs).eval()
    with torch.no_grad():
        wanted, found = theirs(ids, mask).logits, ours(ids, mask).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_labels_may_be_wrapped_around_a_language_code(make_model, targets):
    shifted = make_model(wrap_labels=True).prepare_decoder_input_ids_from_labels(targets)
    assert shifted[0].tolist() == [targets[0, -1], *targets[0, :-1].tolist()]
    assert shifted[1].tolist() == [targets[1, 3], *targets[1, :4].tolist(), 1, 1]


@pytest.mark.parametrize("normalization", ["post", "pre"])
def test_the_future_stays_unseen_and_every_parameter_learns(normalization, make_model, make_batch):
    model = make_model(normalization=normalization)
    ids, mask = make_batch(17, 11)
    out = torch.randint(3, 61, (2, 9))
    changed = out.clone()
    changed[:, 5:] = torch.randint(3, 61, (2, 4))
    first, second = (model(ids, mask, decoder_input_ids=x).logits for x in (out, changed))
    assert torch.equal(first[:, :5], second[:, :5])
    assert not torch.equal(first[:, 5:], second[:, 5:])
    model(ids, mask, labels=out).loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padded", [False, True])
def test_cached_steps_equal_the_full_pass(cache, padded, make_model, make_batch):
    model = make_model()
    ids, mask = make_batch(17, 11)
    out = torch.randint(3, 61, (2, 9))
    seen = torch.ones_like(out)
    if padded:
        seen[1, 2] = 0
    encoded = model.get_encoder()(ids, mask)
    options = {"attention_mask": mask, "encoder_outputs": encoded, "use_cache": True}
    full = model(decoder_input_ids=out, decoder_attention_mask=seen if padded else None, **options).logits
    own = StaticCache(config=model.config, max_cache_len=13) if cache == "static" else DynamicCache()
    past = EncoderDecoderCache(own, DynamicCache())
    steps = []
    for first, last in ((0, 1), (1, 2), (2, 6), (6, 9)):
        step = model(
            decoder_input_ids=out[:, first:last],
            decoder_attention_mask=seen[:, :last] if padded else None,
            cache=past,
            **options,
        )
        steps.append(step.logits)
    torch.testing.assert_close(torch.cat(steps, 1), full, atol=1e-5, rtol=1e-5)


def test_beams_share_one_source(make_model, make_batch):
    model = make_model()
    ids, mask = make_batch(17, 11)
    out = torch.randint(3, 61, (6, 5))
    shared = model(ids, mask, decoder_input_ids=out, use_cache=True)
    copied = model(ids.repeat_interleave(3, 0), mask.repeat_interleave(3, 0), decoder_input_ids=out)
    torch.testing.assert_close(shared.logits, copied.logits, atol=1e-5, rtol=1e-5)
    held = shared.cache.cross_attention_cache.layers
    assert [tuple(layer.keys.shape) for layer in held] == [(2, 2, 17, 12)] * 2


def test_sources_without_a_real_token_are_finite(make_model, make_batch):
    model = make_model()
    ids, mask = make_batch(17, 11)
    mask[1] = 0
    out = torch.randint(3, 61, (2, 5))
    seen = torch.ones_like(out)
    seen[:, :2] = 0
    logits = model(ids, mask, decoder_input_ids=out, decoder_attention_mask=seen).logits
    assert logits.isfinite().all()
    empty = torch.zeros(2, 0, dtype=torch.long)
    nothing = model(empty, decoder_input_ids=out).logits
    torch.testing.assert_close(nothing[1], model(ids, mask, decoder_input_ids=out).logits[1], atol=1e-5, rtol=1e-5)
    assert model.generate(input_ids=empty, attention_mask=empty, num_beams=3, max_new_tokens=4).shape[0] == 2


def test_mistakes_are_named(make_model, make_config, make_batch):
    model = make_model(max_decoder_position_embeddings=13)
    ids, mask = make_batch(17, 11)
    with pytest.raises(InputError, match="decoder_layers=0"):
        LongspanForConditionalGeneration(make_config())
    with pytest.raises(InputError, match="none given"):
        model(encoder_outputs=model.encoder(ids, mask), attention_mask=mask)
    with pytest.raises(InputError, match="3 rows but the encoder states have 2"):
        model(ids, mask, decoder_input_ids=torch.ones(3, 2, dtype=torch.long))
    with pytest.raises(InputError, match=r"14 tokens .* max_decoder_position_embeddings=13"):
        model(ids, mask, decoder_input_ids=torch.ones(2, 14, dtype=torch.long))
    with pytest.raises(InputError, match="decoder_attention_mask covers 3 of 2"):
        model(ids, mask, decoder_input_ids=ids[:, :2], decoder_attention_mask=mask[:, :3])
    with pytest.raises(InputError, match="labels has shape"):
        model(ids, mask, decoder_input_ids=ids[:, :2], labels=ids[:, :3])
    with pytest.raises(InputError, match=r"attention_mask has shape .* but the source is"):
        model(attention_mask=mask, encoder_outputs=model.encoder(ids[:, :9]), labels=ids[:, :3])
