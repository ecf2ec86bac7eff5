"""Longer models: positions tiled, projections copied, short inputs unchanged, and a report that says so."""

from __future__ import annotations

import pytest
import torch

import longspan
from closeness import check_outputs, check_weights
from installed import needs_papers
from longspan import InputError
from longspan.checkpoints import LengthenReport, from_transformers, lengthen
from longspan.checkpoints.lengthening.plan import tile_positions

NARROW = {"left_tokens": 2, "right_tokens": 3}
SOURCES = [
    "BertModel",
    "BertForMaskedLM",
    "BertForPreTraining",
    "BertForSequenceClassification",
    "RobertaForMaskedLM",
    "RobertaForQuestionAnswering",
    "XLMRobertaForTokenClassification",
    "LongformerForMaskedLM",
    "LongformerForSequenceClassification",
    "BartForConditionalGeneration",
    "BartModel",
    "MBartForConditionalGeneration",
    "LEDForConditionalGeneration",
]


def specs(model):
    return [model.config.layer_attention(layer) for layer in range(model.config.num_hidden_layers)]


@pytest.mark.parametrize("rows", [12, 13, 22, 27, 100])
def test_tiling_keeps_reserved_rows_and_repeats_the_rest(rows):
    table = torch.arange(12.0)[:, None] * torch.ones(1, 3)
    tiled = tile_positions(table, rows, reserved=2)
    assert tiled.shape == (rows, 3)
    want = [0, 1] + [2 + index % 10 for index in range(rows - 2)]
    assert tiled[:, 0].tolist() == want


@pytest.mark.parametrize(
    "attention",
    ["poolingformer", *(pytest.param(name, marks=pytest.mark.variant) for name in ("fusion", "longformer", "full"))],
)
@pytest.mark.parametrize("name", SOURCES)
def test_every_source_lengthens(name, attention, published, batch, widest, tmp_path):
    theirs = published(name)
    theirs.save_pretrained(tmp_path / "source")
    model = lengthen(tmp_path / "source", attention, max_tokens=150)
    report = model.report
    assert isinstance(report, LengthenReport)
    assert report.parity_hidden <= 1e-5
    assert (report.parity_logits or 0.0) <= 1e-5
    assert not model.training
    inputs = batch(theirs, 131, globals=attention != "full")
    with torch.no_grad():
        model(**inputs)
    # A short input comes out as before, with whatever the model itself chooses to be global, where windows are new.
    if "Longformer" not in name and "LED" not in name:
        inputs = batch(theirs, 29)
        want, got = theirs(**inputs), model(**inputs)
        key = next(k for k in ("logits", "start_logits", "last_hidden_state", "prediction_logits") if k in want)
        if name != "BartModel":
            mask = None if "decoder_input_ids" in inputs else inputs["attention_mask"]
            assert widest(want[key], got["logits" if key == "prediction_logits" else key], mask) <= 1e-5


@pytest.mark.parametrize("name", ["BertForMaskedLM", "RobertaForMaskedLM", "BartForConditionalGeneration"])
def test_positions_are_tiled_in_the_encoder_only(name, published):
    theirs = published(name)
    model = lengthen(theirs, max_tokens=120)
    reserved = 0 if name.startswith("Bert") else 2
    body = theirs.base_model
    old = (body.encoder.embed_positions if name.startswith("Bart") else body.embeddings.position_embeddings).weight
    new = (model.encoder if name.startswith("Bart") else model.model.encoder).embeddings.position.weight
    assert new.shape[0] == 120 + reserved
    learned = old.shape[0] - reserved
    assert torch.equal(new[: old.shape[0]], old)
    assert torch.equal(new[old.shape[0] : old.shape[0] + learned], old[reserved:])
    assert torch.equal(new[reserved + 2 * learned :], old[reserved : reserved + 120 - 2 * learned])
    if name.startswith("Bart"):
        assert torch.equal(model.decoder.embeddings.position.weight, body.decoder.embed_positions.weight)
        assert model.config.max_decoder_position_embeddings == theirs.config.max_position_embeddings


def test_poolingformer_takes_the_last_half_and_longformer_the_rest(published):
    theirs = published("BartForConditionalGeneration", encoder_layers=5)
    kinds = [spec.mechanism for spec in specs(lengthen(theirs, max_tokens=64, **NARROW))]
    assert kinds == ["longformer"] * 2 + ["poolingformer"] * 3
    assert {spec.left_tokens for spec in specs(lengthen(theirs, max_tokens=64, **NARROW))} == {2}
    chosen = [{"layers": [0, -1], "mechanism": "poolingformer"}, {"layers": "1-3", "mechanism": "longformer"}]
    kinds = [spec.mechanism for spec in specs(lengthen(theirs, chosen, max_tokens=64))]
    assert kinds == ["poolingformer"] + ["longformer"] * 3 + ["poolingformer"]
    kinds = [spec.mechanism for spec in specs(lengthen(theirs, "longformer", 64))]
    assert kinds == ["longformer"] * 5
    kinds = [spec.mechanism for spec in specs(lengthen(theirs, "longformer", 64, layers="0-1"))]
    assert kinds == ["longformer"] * 2 + ["full"] * 3
    listed = ["full", "longformer", "full", "poolingformer", "full"]
    assert [spec.mechanism for spec in specs(lengthen(theirs, listed, 64))] == listed


def test_new_projections_start_as_said(published):
    model = lengthen(published("RobertaForMaskedLM"), max_tokens=64)
    first, second = (layer.attention for layer in model.model.encoder.layers)
    for attention in (first, second):
        for name in ("query", "key", "value"):
            local, own = getattr(attention, name), getattr(attention, f"global_{name}")
            assert torch.equal(local.weight, own.weight)
            assert torch.equal(local.bias, own.bias)
            assert local.weight.data_ptr() != own.weight.data_ptr()
    assert not second.pooled_value.weight.any()
    assert second.pooled_query.weight.std() > 0.01
    copied = lengthen(published("RobertaForMaskedLM"), max_tokens=64, init="copy").model.encoder.layers[1].attention
    assert torch.equal(copied.pooled_value.weight, copied.value.weight)


def test_trained_global_projections_and_windows_of_a_long_model_stay(published):
    theirs = published("LEDForConditionalGeneration")
    model = lengthen(theirs, "longformer", max_tokens=128)
    assert [spec.left_tokens for spec in specs(model)] == [4, 2]
    source = theirs.led.encoder.layers[1].self_attn.longformer_self_attn.key_global
    assert torch.equal(model.encoder.layers[1].attention.global_key.weight, source.weight)
    assert model.report.parameters["from_local"] == 0
    wider = lengthen(theirs, "longformer", max_tokens=128, right_tokens=9)
    assert [(spec.left_tokens, spec.right_tokens) for spec in specs(wider)] == [(4, 9), (2, 9)]


@pytest.mark.parametrize("options", [{"init": "normal"}, {"init": "copy"}, {"tie_levels": True}, {"pooling": "mean"}])
def test_parity_leaves_out_what_starts_active(options, published):
    model = lengthen(published("RobertaForMaskedLM"), max_tokens=70, **NARROW, **options)
    assert model.report.parity_first_level is (options != {"pooling": "mean"})
    assert model.report.parity_tokens == 53
    # The model itself still has its second level and its narrow windows.
    attention = model.model.encoder.layers[1].attention
    assert attention.config.mechanism == "poolingformer"
    assert attention.config.left_tokens == 2


def test_a_longspan_model_lengthens_again_with_its_trained_second_level(published, widest, tmp_path):
    model = lengthen(published("RobertaForMaskedLM"), max_tokens=70, **NARROW)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "first")
    again = lengthen(tmp_path / "first", max_tokens=140)
    assert specs(again) == specs(model)
    ids = torch.randint(3, 61, (2, 67))
    assert widest(model(ids).logits, again(ids).logits) <= 1e-5
    assert again.report.parity_tokens == 64
    assert again.report.parameters["new"] == 0
    wider = specs(lengthen(model, max_tokens=140, left_tokens=5, stride=3))
    assert [spec.left_tokens for spec in wider] == [5, 5]
    assert wider[1].stride == 3
    again.save_pretrained(tmp_path / "second")
    loaded = longspan.LongspanForMaskedLM.from_pretrained(tmp_path / "second")
    long = torch.randint(3, 61, (2, 133))
    check_weights(loaded, again)
    check_outputs(loaded(long).logits, again(long).logits)


@pytest.mark.parametrize(
    "name", [pytest.param("LongspanForNaturalQuestions", marks=needs_papers), "LongspanForSentenceScoring"]
)
def test_models_whose_heads_want_more_than_tokens_lengthen_too(name, published, tmp_path):
    from_transformers(published("RobertaForMaskedLM")).save_pretrained(tmp_path)
    model = lengthen(getattr(longspan.models, name).from_pretrained(tmp_path), max_tokens=90)
    assert type(model).__name__ == name
    assert model.report.parity_hidden <= 1e-5
    assert model.report.parity_logits is None


def test_a_third_level_is_added_to_two_trained_ones(published, tmp_path):
    """Of a model whose second level was drawn at random, in the layers that have it."""
    two = {
        "mechanism": "poolingformer",
        "left_tokens": 9,
        "right_tokens": 9,
        "pooled_left_tokens": 16,
        "init": "normal",
    }
    model = lengthen(published("RobertaForMaskedLM"), two, max_tokens=64)
    with torch.no_grad():
        for value in (each for name, each in model.named_parameters() if "pooled_value" in name):
            value.normal_()
    levels = [
        {"left_tokens": 9, "right_tokens": 9},
        {"left_tokens": 16, "right_tokens": 512},
        {"left_tokens": 40, "right_tokens": 512, "kernel": 9, "stride": 7},
    ]
    longer = lengthen(model, "poolingformer", 96, levels=levels)
    assert longer.report.parity_logits <= longer.report.parity_tolerance
    assert not longer.report.parity_first_level
    kinds = {layer.attention.config.mechanism for layer in longer.model.encoder.layers}
    assert kinds == {"longformer", "poolingformer"}
    attention = longer.model.encoder.layers[-1].attention
    assert len(attention.pools) == 2
    assert attention.pooled_query_3.weight.any()
    assert not attention.pooled_value_3.weight.any()
    longer.save_pretrained(tmp_path)
    again = type(longer).from_pretrained(tmp_path)
    assert again.model.encoder.layers[-1].attention.config == attention.config


def test_dropping_a_trained_level_is_refused(published):
    model = lengthen(published("RobertaForMaskedLM"), max_tokens=70)
    with torch.no_grad():
        model.model.encoder.layers[1].attention.pooled_value.weight.normal_()
    with pytest.raises(InputError, match="does not keep the source's outputs"):
        lengthen(model, "longformer", max_tokens=80)


def test_default_globals_are_chosen_where_they_would_be_forgotten(published):
    assert lengthen(published("BartForConditionalGeneration"), max_tokens=64).config.global_tokens == "first"
    assert lengthen(published("BertForSequenceClassification"), max_tokens=64).config.global_tokens == "first"
    assert lengthen(published("RobertaForQuestionAnswering"), max_tokens=64).config.global_tokens == "first"
    theirs = published("LongformerForQuestionAnswering")
    assert lengthen(theirs, max_tokens=64).config.global_tokens == "question"
    assert lengthen(published("RobertaForMaskedLM"), max_tokens=64).config.global_tokens == "none"


def test_mechanisms_without_global_tokens_get_none(published):
    model = lengthen(published("BartForConditionalGeneration"), [{"layers": "0", "mechanism": "sinkhorn"}], 150)
    assert model.config.global_tokens == "none"
    assert model.generate(torch.full((1, 131), 5), max_new_tokens=2).shape[0] == 1


def test_generation_settings_come_along(published):
    theirs = published("BartForConditionalGeneration")
    theirs.generation_config.num_beams = 3
    assert lengthen(theirs, max_tokens=64).generation_config.num_beams == 3


def test_half_precision_and_training_mode_of_the_source(published):
    theirs = published("BartForConditionalGeneration").to(torch.bfloat16).train()
    model = lengthen(theirs, max_tokens=64)
    assert theirs.training
    assert theirs.dtype == model.dtype == torch.bfloat16
    assert model.report.parity_logits <= 1e-4


def test_the_report_reads_well_and_adds_up(published):
    theirs = published("BartForConditionalGeneration")
    model = lengthen(theirs, max_tokens=106, **NARROW)
    report = model.report
    kinds = report.parameters
    assert sum(kinds.values()) - kinds["dropped"] == sum(p.numel() for p in model.parameters())
    assert kinds["tiled"] == 108 * 24
    assert kinds["from_local"] == 2 * 3 * (24 * 24 + 24)
    text = str(report)
    assert "BartForConditionalGeneration → LongspanForConditionalGeneration" in text
    assert "53 → 106 tokens (position rows repeated 2 times; 2 reserved rows kept)" in text
    assert "layer 1: poolingformer(left_tokens=2, right_tokens=3, pooled_left_tokens=512" in text
    assert "equal on 53 random tokens" in text
    assert all(len(line) < 160 for line in text.splitlines())


def test_a_dilated_window_is_compared_without_its_holes(published):
    model = lengthen(published("BertForMaskedLM"), "longformer", max_tokens=90, dilation=[1, 2, 3], left_tokens=2)
    assert model.report.parity_tokens == 53
    assert specs(model)[0].dilation == (1, 2, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_tokens": 52}, "max_tokens=52 is less than the 53 tokens"),
        ({"max_tokens": "64"}, "max_tokens='64'"),
        ({"attention": "poolformer"}, "'poolformer', which is unknown; did you mean 'poolingformer'"),
        ({"attention": ["full"]}, "attention lists 1 mechanisms for 2 layers"),
        ({"attention": ["full", "full"], "left_tokens": 3}, "left_tokens cannot be combined with a list"),
        ({"attention": {"layers": 2, "mechanism": "full"}}, "layers names layer 2, but there are layers 0 to 1"),
        ({"attention": {"layers": "x", "mechanism": "full"}}, "layers='x' is not understood"),
        ({"layers": 2}, "layers names layer 2, but there are layers 0 to 1"),
        ({"left_token": 3}, "unknown key 'attention.left_token'; did you mean 'left_tokens'"),
        ({"left_tokens": -1}, "left_tokens is -1"),
        ({"stride": 9}, "stride=9 exceeds kernel=5"),
    ],
)
def test_mistakes_are_named(arguments, message, published):
    with pytest.raises(InputError, match=message):
        lengthen(published("BertForMaskedLM"), **({"max_tokens": 64} | arguments))


def test_full_attention_gives_no_new_weights(published):
    report = lengthen(published("BertForMaskedLM"), "full", max_tokens=64).report
    assert report.parameters["new"] == report.parameters["from_local"] == 0


def test_a_tied_second_level_that_the_source_has_takes_part_in_the_comparison(published):
    model = lengthen(published("RobertaForMaskedLM"), max_tokens=70, tie_levels=True, **NARROW)
    assert model.report.parity_first_level
    report = lengthen(model, max_tokens=140, left_tokens=5).report
    assert not report.parity_first_level
    assert report.parity_hidden <= 1e-5


def test_ranges_leave_what_they_do_not_name(published):
    theirs = published("BertForMaskedLM", num_hidden_layers=4)
    growing = {"layers": "1-", "mechanism": "longformer", "left_tokens": {"per_layer": [2, 4, 8]}}
    found = specs(lengthen(theirs, growing, max_tokens=64))
    assert [spec.mechanism for spec in found] == ["full"] + ["longformer"] * 3
    assert [spec.left_tokens for spec in found[1:]] == [2, 4, 8]


@pytest.mark.parametrize("name", ["RobertaForMaskedLM", "BertModel"])
def test_new_positions_can_be_drawn(name, published):
    source = published(name)
    torch.manual_seed(0)
    copied, drawn = (lengthen(source, "longformer", 150, new_positions=how) for how in ("copied", "random"))
    tables = [model.base_model.encoder.embeddings.position.weight for model in (copied, drawn)]
    old = 53 + copied.config.position_offset
    assert torch.equal(tables[0][:old], tables[1][:old])
    assert not (tables[0][old:] == tables[1][old:]).any()
    assert abs(float(tables[1][old:].detach().std() / source.config.initializer_range) - 1) < 0.1
    assert drawn.report.parameters["drawn"] == copied.report.parameters["tiled"] == tables[1].numel()
    assert "drawn at random" in str(drawn.report)
    assert drawn.report.parity_hidden <= 1e-5


def test_positions_that_cannot_be_drawn(published):
    with pytest.raises(InputError, match="new_positions='sines' is no way"):
        lengthen(published("BertModel"), "longformer", 150, new_positions="sines")
    with pytest.raises(InputError, match="needs a table of absolute positions"):
        lengthen(published("DebertaV2Model"), "fusion", 150, new_positions="random")
