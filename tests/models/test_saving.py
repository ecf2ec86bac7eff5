"""Saving and loading: safetensors only, tied weights once, Auto classes, mechanisms that change between the two."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from closeness import check_outputs, check_weights
from longspan import models
from longspan.errors import InputError

AUTO = {
    models.LongspanModel: AutoModel,
    models.LongspanForMaskedLM: AutoModelForMaskedLM,
    models.LongspanForConditionalGeneration: AutoModelForSeq2SeqLM,
    models.LongspanForSequenceClassification: AutoModelForSequenceClassification,
    models.LongspanForTokenClassification: AutoModelForTokenClassification,
    models.LongspanForQuestionAnswering: AutoModelForQuestionAnswering,
    models.LongspanForSentenceScoring: models.LongspanForSentenceScoring,
}


def load(kind, folder, **options):
    model, report = kind.from_pretrained(folder, output_loading_info=True, **options)
    return model.eval(), report


@pytest.mark.parametrize("kind", AUTO, ids=lambda kind: kind.__name__)
def test_round_trip(kind, make_config, tmp_path):
    config = make_config(
        decoder_layers=1, num_hidden_layers=3, pooler=True, attention=["longformer", "poolingformer", "fusion"]
    )
    saved = kind(config).eval()
    saved.save_pretrained(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".safetensors"}
    loaded, report = load(AUTO[kind], tmp_path)
    assert type(loaded) is kind
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert isinstance(AutoConfig.from_pretrained(tmp_path), models.LongspanConfig)
    check_weights(loaded, saved)


def test_tied_weights_are_saved_once_and_tied_again(make_config, tmp_path):
    model = models.LongspanForConditionalGeneration(make_config(decoder_layers=1))
    model.final_logits_bias.normal_()
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert "encoder.embeddings.token.weight" in names
    assert not names & {"decoder.embeddings.token.weight", "lm_head.weight"}
    loaded, _ = load(models.LongspanForConditionalGeneration, tmp_path)
    table = loaded.encoder.embeddings.token.weight
    assert loaded.decoder.embeddings.token.weight is table
    assert loaded.lm_head.weight is table
    assert torch.equal(loaded.final_logits_bias, model.final_logits_bias)


def test_untied_weights_stay_apart(make_config, tmp_path):
    model = models.LongspanForConditionalGeneration(make_config(decoder_layers=1, tie_word_embeddings=False))
    model.save_pretrained(tmp_path)
    loaded, report = load(models.LongspanForConditionalGeneration, tmp_path)
    assert not report["missing_keys"]
    assert not torch.equal(loaded.lm_head.weight, loaded.encoder.embeddings.token.weight)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


def test_the_encoder_comes_out_of_an_encoder_decoder(make_config, tmp_path):
    model = models.LongspanForConditionalGeneration(make_config(decoder_layers=1)).eval()
    model.save_pretrained(tmp_path)
    encoder, report = load(models.LongspanModel, tmp_path)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ids = torch.randint(3, 61, (2, 13))
    check_outputs(encoder(ids)[0], model.encoder(ids)[0])
    classifier, report = load(models.LongspanForSequenceClassification, tmp_path)
    assert all(name.startswith("classifier.") for name in report["missing_keys"])
    check_outputs(classifier.model(ids)[0], model.encoder(ids)[0])


def test_a_second_level_that_was_not_saved_starts_by_its_own_rules(make_config, tmp_path):
    """A window model loaded as Poolingformer keeps every weight, and the new level has no effect yet."""
    window = models.LongspanModel(make_config()).eval()
    with torch.no_grad():
        window.encoder.layers[0].attention.global_query.weight.add_(1)
    window.save_pretrained(tmp_path)
    spec = {"mechanism": "poolingformer", "left_tokens": 3, "right_tokens": 5}
    pooling, report = load(models.LongspanModel, tmp_path, attention=spec)
    assert report["missing_keys"]
    assert all("pool" in name for name in report["missing_keys"])
    attention = pooling.encoder.layers[0].attention
    assert torch.equal(attention.global_query.weight, window.encoder.layers[0].attention.global_query.weight)
    assert attention.pooled_value.weight.abs().max() == 0
    ids = torch.randint(3, 61, (2, 13))
    torch.testing.assert_close(pooling(ids)[0], window(ids)[0], atol=1e-5, rtol=1e-5)


def test_half_precision(make_config, tmp_path):
    model = models.LongspanModel(make_config(global_tokens="first")).eval()
    model.save_pretrained(tmp_path)
    loaded, _ = load(models.LongspanModel, tmp_path, dtype=torch.bfloat16)
    ids = torch.randint(3, 61, (2, 13))
    hidden = loaded(ids)[0]
    assert hidden.dtype == torch.bfloat16
    torch.testing.assert_close(hidden.float(), model(ids)[0], atol=0.15, rtol=0.1)


def test_a_vocabulary_may_grow_and_shrink(make_config):
    model = models.LongspanForConditionalGeneration(make_config(decoder_layers=1)).eval()
    model.final_logits_bias.normal_()
    bias = model.final_logits_bias.clone()
    for size in (67, 59):
        model.resize_token_embeddings(size, mean_resizing=False)
        ids = torch.randint(3, size, (2, 5))
        assert model(ids, decoder_input_ids=ids).logits.shape == (2, 5, size)
        assert model.lm_head.weight is model.encoder.embeddings.token.weight
        assert model.config.vocab_size == size
    assert torch.equal(model.final_logits_bias, bias[:, :59])


def test_an_unknown_option_of_a_saved_configuration_is_named(make_config, tmp_path):
    make_config().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"left_tokens"', '"left_tokenz"'))
    with pytest.raises(InputError, match="left_tokenz"):
        AutoConfig.from_pretrained(tmp_path)
