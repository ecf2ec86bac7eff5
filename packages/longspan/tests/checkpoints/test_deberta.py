"""DeBERTa (version 1) in, out and longer, against transformers' own classes."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch.nn import functional as F

import longspan
from closeness import check_outputs, check_weights
from longspan import InputError, LongspanForMaskedLM
from longspan.attention import LongformerConfig
from longspan.checkpoints import from_transformers, lengthen, to_transformers
from longspan.checkpoints.architectures.deberta import DEBERTA
from longspan.checkpoints.architectures.deberta_v2 import DEBERTA_V2

CLASSES = [*DEBERTA.heads, *DEBERTA_V2.heads]
SMALL = {"left_tokens": 5, "right_tokens": 7}
VARIANTS = {
    "both": {},
    "newer head": {"legacy": False},
    "no absolute positions": {"position_biased_input": False},
    "token types": {"type_vocab_size": 2},
    "as a string": {"pos_att_type": "p2c|c2p"},
    "c2p alone": {"pos_att_type": ["c2p"]},
    "p2c alone": {"pos_att_type": "p2c"},
    "a term that is never read": {"pos_att_type": "c2p|p2p"},
    "no term": {"pos_att_type": None},
    "not relative": {"relative_attention": False},
    "not relative, no term": {"relative_attention": False, "pos_att_type": []},
    "a longer table": {"max_relative_positions": 67},
    "a table just long enough": {"max_relative_positions": 52},
    "another activation": {"hidden_act": "relu", "pooler_hidden_act": "silu"},
}


@pytest.mark.variant
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("name", ["DebertaForMaskedLM", "DebertaForSequenceClassification"])
def test_every_variant_on_disk_is_equal(name, options, published, batch, tmp_path, assert_equal):
    theirs = published(name, **options)
    theirs.save_pretrained(tmp_path)
    try:
        type(theirs).from_pretrained(tmp_path)
    except AttributeError as error:  # the newer head in 5.17
        pytest.skip(f"transformers {transformers.__version__} cannot load its own {name}: {error}")
    ours = from_transformers(tmp_path)
    for tokens in (1, 2, 29, 53):
        inputs = batch(theirs, tokens)
        assert_equal(theirs, ours, inputs)
        assert_equal(theirs, ours, {k: v[:1] for k, v in inputs.items()})
    if theirs.config.type_vocab_size:
        inputs["token_type_ids"] = torch.randint(0, 2, inputs["input_ids"].shape)
        assert_equal(theirs, ours, inputs)


def test_half_precision_is_kept(published):
    assert from_transformers(published("DebertaModel").bfloat16()).dtype == torch.bfloat16


def test_a_layer_is_the_formula(published):
    """One layer, worked from the paper's terms with the source's own fused weights and the row i − j + k for both."""
    theirs = published("DebertaModel", num_hidden_layers=1)
    own = theirs.encoder.layer[0].attention.self
    attention = from_transformers(theirs).encoder.layers[0].attention
    hidden = torch.randn(1, 19, 24)
    fused = F.linear(hidden[0], own.in_proj.weight).view(19, 3, 3, 8)  # tokens, heads, (query, key, value), width
    query, key, value = fused.unbind(2)
    query, value = query + own.q_bias.view(3, 8), value + own.v_bias.view(3, 8)
    place = torch.arange(19)
    row = (place[:, None] - place[None] + 53).clamp(0, 105)
    positions = theirs.encoder.rel_embeddings.weight
    to_position = own.pos_proj(positions)[row].view(19, 19, 3, 8)
    from_position = own.pos_q_proj(positions)[row].view(19, 19, 3, 8)
    scores = torch.einsum("ihd,jhd->hij", query, key)
    scores = scores + torch.einsum("ihd,ijhd->hij", query, to_position)
    scores = scores + torch.einsum("jhd,ijhd->hij", key, from_position)
    context = torch.einsum("hij,jhd->ihd", (scores / (3 * 8) ** 0.5).softmax(-1), value).flatten(1)
    want = theirs.encoder.layer[0].attention.output.dense(context)
    tables = from_transformers(theirs).encoder.relative()
    got = attention(hidden, longspan.Tokens(relative=tables))
    assert torch.allclose(got[0], want, atol=1e-5)


def test_losses_are_equal(published, batch, widest):
    theirs = published("DebertaForMaskedLM")
    inputs = batch(theirs, 23)
    labels = torch.randint(3, 61, (3, 23)).index_fill(1, torch.arange(0, 23, 2), -100)
    inputs["labels"] = labels.masked_fill(inputs["attention_mask"] == 0, -100)
    assert widest(theirs(**inputs).loss, from_transformers(theirs)(**inputs).loss) <= 1e-5


def test_the_classifier_keeps_its_own_dropouts(published):
    theirs = published("DebertaForSequenceClassification", pooler_dropout=0.3, cls_dropout=0.4, hidden_dropout_prob=0.2)
    ours = from_transformers(theirs)
    assert (ours.classifier.input_dropout.p, ours.classifier.dropout.p) == (0.3, 0.4)
    assert {layer.attention.config.position_dropout for layer in ours.model.encoder.layers} == {0.2}
    tokens = from_transformers(published("DebertaForTokenClassification", cls_dropout=0.4, hidden_dropout_prob=0.2))
    assert tokens.dropout.p == 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding_size": 16}, "embedding_size=16 differs from hidden_size=24"),
        ({"talking_head": True}, "talking_head=True"),
        ({"max_relative_positions": 51}, "max_relative_positions=51 is shorter than the 53 tokens"),
    ],
)
def test_what_longspan_lacks_is_refused_in_one_sentence(options, message, published):
    with pytest.raises(InputError, match=message) as caught:
        from_transformers(published("DebertaModel", **options))
    assert "\n" not in str(caught.value)


def test_inputs_longer_than_the_table_serves_are_refused(published):
    ours = from_transformers(published("DebertaModel", position_biased_input=False))
    with pytest.raises(InputError, match="54 tokens are more than max_position_embeddings=53"):
        ours(torch.randint(3, 61, (1, 54)))


def test_use_attention_refuses(published):
    with pytest.raises(InputError, match=r"DebertaModel has an attention of its own.*from_transformers"):
        longspan.use_attention(published("DebertaModel"), "window(3)")


# Out


@pytest.mark.parametrize("options", [{"pos_att_type": ["c2p"]}, {"pos_att_type": ["p2c"]}, {"legacy": False}])
def test_variants_go_out_as_the_general_form(options, published, batch, assert_equal):
    theirs = published("DebertaForMaskedLM", position_biased_input=False, **options)
    back = to_transformers(from_transformers(theirs))
    assert_equal(theirs, back, batch(theirs, 37))
    assert back.config.pos_att_type == ["c2p", "p2c"]


def test_dropouts_and_labels_go_out(published, tmp_path):
    options = {"pooler_dropout": 0.3, "cls_dropout": 0.4, "num_labels": 5, "attention_probs_dropout_prob": 0.25}
    back = to_transformers(from_transformers(published("DebertaForSequenceClassification", **options)))
    assert {name: getattr(back.config, name) for name in options} == options


def narrowed(model, **changes):
    for spec in model.config.attention if isinstance(model.config.attention, list) else [model.config.attention]:
        spec.update(changes)
    return model


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"left_tokens": 51}, "layer 0 has a window of 51 and 53 tokens, not the whole input"),
        ({"two_level": True}, "layer 0 has two_level=True"),
        ({"p2c_index": "paper"}, "p2c_index='paper'"),
        ({"dropout": 0.5}, "a dropout of 0.5, not attention_dropout=0.1"),
        ({"position_dropout": 0.0}, "position_dropout=0.0, not dropout=0.1"),
    ],
)
def test_what_is_not_debertas_stays_here(changes, message, published):
    model = narrowed(from_transformers(published("DebertaModel")), **changes)
    with pytest.raises(InputError, match=f"{message}.*cannot represent"):
        to_transformers(model)


def test_a_trained_key_bias_and_globals_stay_here(published):
    model = from_transformers(published("DebertaModel"))
    model.config.global_tokens = "first"
    with pytest.raises(InputError, match="global_tokens='first'"):
        to_transformers(model)
    model.config.global_tokens = "none"
    model.encoder.layers[1].attention.key.bias.data[5] = 0.1
    with pytest.raises(InputError, match=r"the key projection in encoder\.layer\.1\.attention is not zero"):
        to_transformers(model)
    with pytest.raises(InputError, match=r"pooler\.dense\.weight.* has no place"):
        to_transformers(from_transformers(published("BertModel")), architecture="deberta")


# Longer


@pytest.mark.variant
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_lengthens_and_keeps_short_inputs(name, published, batch, widest, tmp_path, outputs):
    theirs = published(name, num_hidden_layers=4)
    theirs.save_pretrained(tmp_path / "source")
    model = lengthen(tmp_path / "source", "fusion", max_tokens=200, **SMALL)
    assert model.report.parity_tokens == 53
    assert model.report.parity_hidden <= 1e-5
    assert (model.report.parity_logits or 0.0) <= 1e-5
    assert model.report.parameters["dropped"] == 0
    assert [layer.two_level for layer in model.report.attention] == [False, False, True, True]
    assert {layer.left_tokens for layer in model.report.attention} == {5}
    # Six tokens are within every window: without a global token the model itself is still its source.
    inputs = batch(theirs, 6)
    none = {"global_attention_mask": torch.zeros_like(inputs["input_ids"])}
    want, got = outputs(theirs, inputs), outputs(model, inputs | none)
    assert all(widest(want[key], got[key], inputs["attention_mask"]) <= 1e-5 for key in want)
    assert all(tensor.isfinite().all() for tensor in outputs(model, batch(theirs, 193, globals=True)).values())


@pytest.mark.parametrize("position_biased_input", [True, False])
def test_what_becomes_of_each_tensor(position_biased_input, published):
    theirs = published("DebertaForMaskedLM", position_biased_input=position_biased_input)
    model = lengthen(theirs, "fusion", max_tokens=128, **SMALL)
    encoder, source = model.model.encoder, theirs.deberta
    near, far = encoder.relative()
    assert torch.equal(near, source.encoder.rel_embeddings.weight)
    # 64 buckets on each side share 128 distances: two each, of which the upper one stands in the middle.
    assert far.shape == (128, 24)
    for code in range(64):
        assert torch.equal(far[64 + code], near[min(53 + 2 * code + 1, 105)])
        assert torch.equal(far[63 - code], near[max(53 - 2 * code - 1, 0)])
    for layer, own in zip(encoder.layers, source.encoder.layer, strict=True):
        attention = layer.attention
        for name, there in (("position_key", "pos_proj"), ("position_query", "pos_q_proj")):
            weight = getattr(own.attention.self, there).weight
            assert torch.equal(getattr(attention, name).weight, weight)
            assert torch.equal(getattr(attention, f"global_{name}").weight, weight)
        assert attention.config.position_dropout == 0.1
    assert not encoder.layers[1].attention.pooled_value.weight.any()
    counts = model.report.parameters
    assert counts["bucketed"] == 128 * 24
    assert counts["from_local"] == 2 * (2 * 24 * 24 + 24)
    assert counts["tiled"] == (128 * 24 if position_biased_input else 0)
    assert counts["dropped"] == 0
    assert sum(counts.values()) == sum(parameter.numel() for parameter in model.parameters())
    if position_biased_input:
        table = source.embeddings.position_embeddings.weight
        assert torch.equal(encoder.embeddings.position.weight, torch.cat([table, table, table])[:128])
    else:
        assert "53 → 128 tokens (there is no table of absolute positions)" in str(model.report)
        with pytest.raises(InputError, match="has no table to train"):
            longspan.checkpoints.train_new_positions_only(model)


def test_windows_are_128_and_buckets_cover_the_new_length(published):
    theirs = published("DebertaModel", max_position_embeddings=200)
    first, second = lengthen(theirs, "fusion", max_tokens=1000).report.attention
    for spec in (first, second):
        assert (spec.left_tokens, spec.right_tokens) == (128, 128)
        assert (spec.relative_span, spec.global_buckets, spec.global_span) == (200, 64, 1000)
    assert (second.pooled_left_tokens, second.kernel, second.stride, second.init) == (512, 5, 4, "zero_value")
    # A table that reaches less far than the usual window narrows it, unless one was asked for.
    assert lengthen(published("DebertaModel"), "fusion", max_tokens=90).report.attention[0].left_tokens == 53
    with pytest.raises(InputError, match="right_tokens=128 exceeds relative_span=53"):
        lengthen(published("DebertaModel"), "fusion", max_tokens=90, right_tokens=128)


def test_layers_choose_the_second_level(published):
    theirs = published("DebertaModel", num_hidden_layers=5)
    both = {"mechanism": "fusion", "two_level": {"0,-2": True, "1-2,4": False}}
    plan = lengthen(theirs, both, max_tokens=90).report.attention
    assert [spec.two_level for spec in plan] == [True, False, False, True, False]
    plan = lengthen(theirs, "fusion", max_tokens=90, two_level=False, **SMALL).report.attention
    assert [spec.two_level for spec in plan] == [False] * 5
    assert {spec.left_tokens for spec in plan} == {5}
    listed = [{"mechanism": "fusion", "two_level": layer == 1, "left_tokens": 3 + layer} for layer in range(5)]
    plan = lengthen(theirs, listed, max_tokens=90).report.attention
    assert [(spec.two_level, spec.left_tokens, spec.relative_span) for spec in plan][:2] == [
        (False, 3, 53),
        (True, 4, 53),
    ]


def test_an_active_second_level_is_left_out_of_the_comparison(published):
    report = lengthen(published("DebertaModel"), "fusion", max_tokens=90, init="normal").report
    assert report.parity_first_level
    assert report.parity_hidden <= 1e-5


def test_a_saved_conversion_lengthens_like_its_source(published, batch, widest, tmp_path):
    theirs = published("DebertaForMaskedLM")
    from_transformers(theirs).save_pretrained(tmp_path)
    once, twice = (lengthen(source, "fusion", max_tokens=128, **SMALL) for source in (theirs, tmp_path))
    assert once.report.attention == twice.report.attention
    inputs = batch(theirs, 101)
    assert widest(once(**inputs).logits, twice(**inputs).logits, inputs["attention_mask"]) <= 1e-6


def test_a_fusion_model_lengthens_again_with_its_tables(published, widest, tmp_path):
    model = lengthen(published("DebertaForMaskedLM"), "fusion", max_tokens=90, **SMALL)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "first")
    again = lengthen(tmp_path / "first", "fusion", max_tokens=180)
    assert again.report.attention == model.report.attention
    assert again.report.parameters["new"] == again.report.parameters["bucketed"] == 0
    ids = torch.randint(3, 61, (2, 83))
    marked = torch.zeros_like(ids).index_fill(1, torch.tensor([0, 40]), 1)
    want = model(ids, global_attention_mask=marked).logits
    assert widest(want, again(ids, global_attention_mask=marked).logits) <= 1e-5
    again.save_pretrained(tmp_path / "second")
    loaded = LongspanForMaskedLM.from_pretrained(tmp_path / "second").eval()
    check_weights(loaded, again)
    check_outputs(loaded(ids).logits, again(ids).logits)
    # Other buckets take over what the old ones had learned at their places.
    wider = lengthen(model, "fusion", max_tokens=180, global_span=180)
    assert wider.report.parameters["bucketed"] == 128 * 24
    old, new = model.model.encoder.relative.far.weight, wider.model.encoder.relative.far.weight
    # 64 buckets over 90 and over 180 distances: distance 1.4 is in bucket 0 of the new ones and 0 or 1 of the old.
    assert torch.equal(new[64], old[64])
    assert torch.equal(new[127], old[127])
    assert torch.equal(new[0], old[0])


@pytest.mark.parametrize(
    ("attention", "options", "message"),
    [
        ("poolingformer", {}, "attention='poolingformer' leaves layer 0 without the relative positions"),
        ("full", {}, "attention='full' leaves layer 0"),
        (["fusion", "longformer"], {}, "attention='longformer' leaves layer 1"),
        ("fusion", {"relative_span": 99}, "relative_span=99 does not fit the source.*has relative_span=53"),
        ("fusion", {"left_tokens": 60}, "left_tokens=60 exceeds relative_span=53"),
        ("fusion", {"two_level": "no"}, "two_level is 'no'; it must be true or false"),
        ("fusion", {"global_buckets": "x"}, "global_buckets is 'x'"),
        ("fusion", {"relative_spam": 3}, "unknown key 'attention.relative_spam'; did you mean 'relative_span'"),
    ],
)
def test_mistakes_are_named(attention, options, message, published):
    with pytest.raises(InputError, match=message):
        lengthen(published("DebertaModel"), attention, max_tokens=90, **options)


def test_another_mechanism_at_loading_keeps_the_table_or_says_that_it_cannot(published, batch, assert_equal):
    theirs = published("DebertaModel")
    ours = from_transformers(theirs, attention="fusion")
    assert {layer.attention.config.relative_span for layer in ours.encoder.layers} == {53}
    assert ours.encoder.layers[0].attention.config.two_level
    assert_equal(theirs, ours, batch(theirs, 53))  # the window reaches 53 tokens, the second level is silent
    with pytest.raises(InputError, match="relative_span=70 does not fit"):
        from_transformers(theirs, attention={"mechanism": "fusion", "relative_span": 70})
    for other in ("longformer", {"mechanism": "longformer"}, LongformerConfig(), ["fusion", "longformer"]):
        with pytest.raises(InputError, match="attention='longformer' has no relative positions"):
            from_transformers(theirs, attention=other)
    with pytest.raises(InputError, match="'fusoin', which is unknown"):
        from_transformers(theirs, attention="fusoin")
    with pytest.raises(InputError, match="attention is 3; give a name"):
        from_transformers(theirs, attention=3)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "RobertaForMaskedLM", "BartForConditionalGeneration"])
@pytest.mark.parametrize("separate", [False, True])
def test_a_source_without_relative_positions_starts_with_silent_ones(name, separate, published, batch):
    theirs = published(name)
    model = lengthen(theirs, "fusion", max_tokens=128, separate_global_projections=separate, **SMALL)
    assert model.report.parity_tokens == 53
    assert max(model.report.parity_hidden, model.report.parity_logits) <= 1e-5
    encoder = model.encoder if name.startswith("Bart") else model.model.encoder
    first = encoder.layers[0].attention
    assert not first.position_key.weight.any()
    assert encoder.relative.near.weight.std() > 0.01
    if separate:
        assert torch.equal(first.global_query.weight, first.query.weight)
    # The table and its projections learn: gradients reach the zeros at once.
    inputs = batch(theirs, 61)
    model.train()
    next(iter(model(**inputs).values())).square().sum().backward()
    assert first.position_key.weight.grad.abs().sum() > 0
    assert first.position_query.weight.grad.abs().sum() > 0


def test_a_mixed_model_becomes_fusion_throughout(published):
    theirs = published("BertModel")
    mixed = lengthen(theirs, ["fusion", "full"], max_tokens=64)
    with torch.no_grad():
        mixed.encoder.layers[0].attention.position_key.weight.normal_()
        mixed.encoder.relative.near.weight.normal_()
    both = lengthen(mixed, "fusion", max_tokens=64, two_level=False)
    assert [spec.mechanism for spec in both.report.attention] == ["fusion", "fusion"]
    assert both.report.parity_hidden <= 1e-5
