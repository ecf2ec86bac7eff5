"""DeBERTa-v2, v3 and mDeBERTa in, out and longer, against transformers' own classes."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DebertaV2ForMaskedLM
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

import longspan
from longspan import InputError
from longspan.attention.parts.relative import near_row
from longspan.checkpoints import from_transformers, lengthen, to_transformers

SMALL = {"left_tokens": 5, "right_tokens": 7}
PLAIN = {"position_buckets": -1, "max_relative_positions": -1, "share_att_key": False, "norm_rel_ebd": "none"}
VARIANTS = {
    "v3": {},
    "token types": {"type_vocab_size": 2},
    "absolute positions": {"position_biased_input": True},
    "projections of its own": {"share_att_key": False},
    "no norm": {"norm_rel_ebd": "none"},
    "buckets that reach further than the input": {"max_relative_positions": 90},
    "buckets without a limit of their own": {"max_relative_positions": -1},
    "an odd number of buckets": {"position_buckets": 11},
    "two buckets": {"position_buckets": 2},
    "no buckets": PLAIN,
    "no buckets, longer table": PLAIN | {"max_relative_positions": 67},
    "no buckets, shared": PLAIN | {"share_att_key": True},
    "c2p alone": {"pos_att_type": "c2p", "share_att_key": False},
    "p2c alone": {"pos_att_type": ["p2c"], "share_att_key": False},
    "c2p alone, shared": {"pos_att_type": ["c2p"]},
    "p2c alone, shared": {"pos_att_type": ["p2c"]},
    "a term that is never read": {"pos_att_type": "c2p|p2p"},
    "no term": {"pos_att_type": None, "share_att_key": False},
    "not relative": {"relative_attention": False, "share_att_key": False},
    "not relative, no term": {"relative_attention": False, "pos_att_type": []},
    "narrow embeddings": {"embedding_size": 16},
    "narrow embeddings, all tables": {"embedding_size": 16, "position_biased_input": True, "type_vocab_size": 3},
    "another activation": {"hidden_act": "relu", "pooler_hidden_act": "silu"},
}


@pytest.mark.variant
@pytest.mark.parametrize(
    ("buckets", "span"), [(8, 30), (11, 30), (2, 7), (256, 512), (256, 1000), (32, 512), (255, 511)]
)
def test_every_offset_reads_the_row_of_the_published_code(buckets, span):
    length = 3 * span
    theirs = build_relative_position(torch.empty(length, 1), torch.empty(length, 1), buckets, span)[0]
    want = (theirs + buckets).clamp(0, 2 * buckets - 1)
    place = torch.arange(length)
    assert torch.equal(near_row(place[:, None] - place, span, buckets), want)
    assert set(want.unique().tolist()) >= set(range(1, 2 * buckets))


@pytest.mark.variant
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.usefixtures("exact_scale")
def test_every_variant_on_disk_is_equal(options, published, batch, tmp_path, monkeypatch, assert_equal):
    theirs = published("DebertaV2ForMaskedLM", **options).double()
    theirs.save_pretrained(tmp_path)
    ours = from_transformers(tmp_path)
    for tokens in (1, 2, 29, 53):
        inputs = batch(theirs, tokens)
        assert_equal(theirs, ours, inputs, 1e-10)
    if theirs.config.type_vocab_size:
        inputs["token_type_ids"] = torch.randint(0, 2, inputs["input_ids"].shape)
        assert_equal(theirs, ours, inputs, 1e-10)
    monkeypatch.undo()
    assert_equal(theirs.float(), ours.float(), inputs)


@pytest.mark.parametrize(
    "options",
    [
        {"pos_att_type": ["c2p"]},
        {"pos_att_type": ["p2c"], "share_att_key": False},
        {"legacy": False},
        PLAIN,
        {"share_att_key": False, "norm_rel_ebd": "none"},
        {"embedding_size": 16},
        {"tie_word_embeddings": False},
    ],
)
def test_variants_go_out_with_equal_outputs(options, published, batch, assert_equal):
    theirs = published("DebertaV2ForMaskedLM", **options)
    back = to_transformers(from_transformers(theirs))
    assert type(back) is DebertaV2ForMaskedLM
    assert_equal(theirs, back, batch(theirs, 37))
    assert back.config.pos_att_type == ["c2p", "p2c"]


def test_a_position_bias_that_changes_nothing_goes_out_as_zero(published):
    theirs = published("DebertaV2Model", share_att_key=False)
    back = to_transformers(from_transformers(theirs))
    assert theirs.encoder.layer[0].attention.self.pos_key_proj.bias.any()
    assert not back.encoder.layer[0].attention.self.pos_key_proj.bias.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"conv_kernel_size": 3}, "conv_kernel_size=3 in this deberta-v2 checkpoint adds a convolution"),
        ({"attention_head_size": 16}, "attention_head_size=16 in this deberta-v2 checkpoint"),
        (PLAIN | {"max_relative_positions": 51}, "max_relative_positions=51 without position_buckets is shorter than"),
        ({"position_buckets": 80}, "position_buckets=80 leaves no offset of relative_span=30"),
    ],
)
def test_what_longspan_lacks_is_refused_in_one_sentence(options, message, published):
    with pytest.raises(InputError, match=message) as caught:
        from_transformers(published("DebertaV2Model", **options))
    assert "\n" not in str(caught.value)


def test_it_is_known_by_its_options(published):
    ours = from_transformers(published("DebertaV2ForMaskedLM"))
    ours.config.source_model_type = None
    assert type(to_transformers(ours)) is DebertaV2ForMaskedLM


@pytest.mark.parametrize("options", [{"relative_attention": False}, {"pos_att_type": []}])
def test_without_relative_positions_it_goes_out_too(options, published, batch, assert_equal):
    theirs = published("DebertaV2ForTokenClassification", share_att_key=False, **options)
    back = to_transformers(from_transformers(theirs))
    assert type(back) is type(theirs)
    assert not back.config.relative_attention
    assert_equal(theirs, back, batch(theirs, 37))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "has position_buckets=8, which transformers' deberta cannot represent"),
        ({"position_buckets": -1}, "has position_norm_eps=1e-07, which"),
        ({"position_buckets": -1, "norm_rel_ebd": "none"}, "has tie_position_projections=True, which"),
    ],
)
def test_it_does_not_go_out_as_the_first_deberta(options, message, published):
    ours = from_transformers(published("DebertaV2Model", **({"max_relative_positions": -1} | options)))
    with pytest.raises(InputError, match=message):
        to_transformers(ours, architecture="deberta")


# Longer


@pytest.mark.usefixtures("exact_scale")
@pytest.mark.parametrize("options", [{}, {"share_att_key": False, "norm_rel_ebd": "none"}])
def test_beyond_the_window_it_is_its_source_with_a_band(options, published, widest):
    """transformers' own layers, which a mask of pairs tells to look 5 tokens to the left and 7 to the right."""
    theirs = published("DebertaV2Model", **options).double()
    model = lengthen(theirs, "fusion", max_tokens=300, two_level=False, **SMALL)
    ids = torch.randint(3, 61, (2, 211))
    offset = torch.arange(211)[None] - torch.arange(211)[:, None]
    band = ((offset >= -5) & (offset <= 7)).long().expand(2, -1, -1)
    with torch.no_grad():
        want = theirs.encoder(theirs.embeddings(ids), band).last_hidden_state
        assert widest(want, model(ids).last_hidden_state) <= 1e-10


@pytest.mark.usefixtures("exact_scale")
def test_a_window_may_reach_beyond_the_table(published, widest):
    """Offsets beyond `max_relative_positions` share the last row, as in transformers, at any length."""
    theirs = published("DebertaV2Model").double()
    model = lengthen(theirs, "fusion", max_tokens=300, two_level=False, left_tokens=299, right_tokens=299)
    ids = torch.randint(3, 61, (2, 211))
    with torch.no_grad():
        assert widest(theirs(ids).last_hidden_state, model(ids).last_hidden_state) <= 1e-10


def test_what_becomes_of_each_tensor(published):
    theirs = published("DebertaV2ForMaskedLM")
    model = lengthen(theirs, "fusion", max_tokens=128, **SMALL)
    relative, source = model.model.encoder.relative, theirs.deberta.encoder
    assert torch.equal(relative.near.weight, source.rel_embeddings.weight)
    assert torch.equal(relative.norm.weight, source.LayerNorm.weight)
    # 64 buckets on each side share 128 distances, two each, of which the upper one stands in the middle: 1, 29 and 127.
    # Of the table's 8 rows on each side 29 has 4 + ⌈3·ln(29 / 4) / ln(29 / 4)⌉ = 7, and all that is further the last.
    assert torch.equal(relative.far.weight[64], relative.near.weight[8 + 1])
    assert torch.equal(relative.far.weight[64 + 14], relative.near.weight[8 + 7])
    assert torch.equal(relative.far.weight[127], relative.near.weight[15])
    assert torch.equal(relative.far.weight[0], relative.near.weight[0])
    near, far = model.model.encoder.relative()
    assert torch.allclose(near, source.get_rel_embedding())
    assert torch.equal(far[127], near[15])
    for layer in model.model.encoder.layers:
        assert not any("position_" in name for name, _ in layer.attention.named_parameters())
    counts = model.report.parameters
    assert (counts["bucketed"], counts["tiled"], counts["dropped"]) == (128 * 24, 0, 0)
    assert sum(counts.values()) == sum(parameter.numel() for parameter in model.parameters())


def test_its_options_come_along_and_cannot_change(published, widest, tmp_path):
    theirs = published("DebertaV2ForMaskedLM")
    lengthen(theirs, "fusion", max_tokens=90, **SMALL).save_pretrained(tmp_path)
    again = lengthen(tmp_path, "fusion", max_tokens=180, global_span=90)
    ids = torch.randint(3, 61, (2, 83))
    marked = torch.zeros_like(ids).index_fill(1, torch.tensor([0, 40]), 1)
    want = lengthen(theirs, "fusion", max_tokens=90, **SMALL)(ids, global_attention_mask=marked).logits
    assert widest(want, again(ids, global_attention_mask=marked).logits) <= 1e-5
    windows = lengthen(theirs, "fusion", max_tokens=900).report.attention[0]
    assert (windows.left_tokens, windows.relative_span, windows.position_buckets) == (128, 30, 8)
    changes = {"relative_span": 31, "position_buckets": 9, "position_norm_eps": 1e-5, "tie_position_projections": False}
    for name, value in changes.items():
        with pytest.raises(InputError, match=rf"{name}={value} does not fit the source.*has {name}="):
            lengthen(theirs, "fusion", max_tokens=90, **{name: value})
    with pytest.raises(InputError, match="choose attention='fusion'"):
        lengthen(theirs, "longformer", max_tokens=90)


@pytest.mark.parametrize("options", [{"position_buckets": 32}, {"position_norm_eps": 1e-5}])
def test_encoders_without_relative_positions_can_have_these_too(options, published):
    report = lengthen(published("BertModel"), "fusion", max_tokens=128, relative_span=64, **SMALL, **options).report
    assert report.parity_hidden <= 1e-5


def test_but_not_tied_ones_which_could_not_start_silently(published):
    with pytest.raises(InputError, match="tie_position_projections=True leaves nothing"):
        lengthen(published("BertModel"), "fusion", max_tokens=128, tie_position_projections=True, **SMALL)


def test_it_learns_and_keeps_its_tables_together(published):
    model = lengthen(published("DebertaV2ForMaskedLM"), "fusion", max_tokens=128, **SMALL).train()
    ids = torch.randint(3, 61, (2, 101))
    model(ids, labels=ids, global_attention_mask=torch.eye(2, 101).long()).loss.backward()
    for name in ("near", "far", "norm"):
        assert model.get_parameter(f"model.encoder.relative.{name}.weight").grad.abs().sum() > 0


def test_half_precision_is_kept(published, batch):
    theirs = published("DebertaV2Model").bfloat16()
    model = lengthen(theirs, "fusion", max_tokens=128, **SMALL)
    assert model.dtype == torch.bfloat16
    assert model(**batch(theirs, 70)).last_hidden_state.isfinite().all()


def test_files_without_a_head_are_the_bare_model(published, tmp_path):
    """As the published v3 files are: no `architectures`, and the heads of pre-training beside the weights."""
    theirs = published("DebertaV2ForMaskedLM", legacy=False)
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {"mask_predictions.dense.weight": torch.zeros(24, 24), "mask_predictions.dense.bias": torch.zeros(24)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ours = from_transformers(tmp_path)
    assert type(ours) is longspan.LongspanModel
    assert type(theirs) is DebertaV2ForMaskedLM
