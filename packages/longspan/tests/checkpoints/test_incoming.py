"""Published models give the same outputs in Longspan's classes."""

from __future__ import annotations

import pytest
import torch

from longspan import InputError
from longspan.checkpoints import from_transformers, to_transformers

SEQUENCE = ["BartForConditionalGeneration", "MBartForConditionalGeneration", "LEDForConditionalGeneration"]


def test_a_model_of_pre_training_is_its_masked_language_model(published, batch, assert_equal):
    theirs = published("BertForPreTraining").double()
    for tokens in (1, 7, 16, 31):
        assert_equal(theirs, from_transformers(theirs), batch(theirs, tokens), 1e-10)


def test_longformer_heads_choose_the_same_globals_by_themselves(published, batch, assert_equal):
    theirs = published("LongformerForSequenceClassification", num_labels=4)
    ours = from_transformers(theirs)
    assert_equal(theirs, ours, batch(theirs, 19))
    theirs = published("LongformerForQuestionAnswering", sep_token_id=3)
    ours = from_transformers(theirs)
    inputs = batch(theirs, 21)
    inputs["input_ids"].masked_fill_(inputs["input_ids"] == 3, 4)
    # The official rule wants three separators per row: one behind the question, two around the context.
    inputs["input_ids"][:, [4, 5, 8]] = 3
    assert_equal(theirs, ours, inputs)


def test_token_types_and_missing_masks_are_read_alike(published, widest):
    theirs = published("BertModel")
    ours = from_transformers(theirs)
    ids, types = torch.randint(3, 61, (2, 13)), torch.randint(0, 2, (2, 13))
    want, got = theirs(ids, token_type_ids=types), ours(ids, token_type_ids=types)
    assert widest(want.last_hidden_state, got.last_hidden_state) <= 1e-5
    # RoBERTa gives padding ids the padding position even where no mask says that they are padding.
    theirs = published("RobertaModel")
    ids[:, 9:] = theirs.config.pad_token_id
    assert widest(theirs(ids).last_hidden_state, from_transformers(theirs)(ids).last_hidden_state) <= 1e-5


@pytest.mark.parametrize("name", SEQUENCE)
@pytest.mark.parametrize(
    "options",
    [{"num_beams": 1}, {"num_beams": 4, "length_penalty": 2.0, "no_repeat_ngram_size": 2}],
    ids=["greedy", "beams"],
)
def test_generated_tokens_are_equal(name, options, published, batch):
    theirs = published(name)
    theirs.generation_config.forced_eos_token_id = 2
    ours = from_transformers(theirs)
    inputs = batch(theirs, 19, globals=name.startswith("LED"))
    del inputs["decoder_input_ids"]
    want = theirs.generate(**inputs, max_new_tokens=12, do_sample=False, **options)
    got = ours.generate(**inputs, max_new_tokens=12, do_sample=False, **options)
    assert torch.equal(want, got)


@pytest.mark.parametrize("name", ["BartModel", "MBartModel", "LEDModel"])
def test_a_sequence_model_without_head_gets_the_tied_one(name, published, batch, widest):
    theirs = published(name)
    ours = from_transformers(theirs)
    inputs = batch(theirs, 11)
    want, got = theirs(**inputs), ours(**inputs)
    assert widest(want.encoder_last_hidden_state, got.encoder_last_hidden_state, inputs["attention_mask"]) <= 1e-5
    embeddings = theirs.get_input_embeddings().weight
    assert widest(want.last_hidden_state @ embeddings.T, got.logits) <= 1e-5
    assert ours.lm_head.weight is ours.encoder.embeddings.token.weight


def test_labels_and_their_names_come_along(published):
    names = {0: "short", 1: "long", 2: "longer"}
    theirs = published("RobertaForTokenClassification", id2label=names, label2id={b: a for a, b in names.items()})
    ours = from_transformers(theirs)
    assert ours.config.id2label == names
    assert ours.config.num_labels == 3


def test_the_loss_is_equal_too(published, batch, widest):
    for name in SEQUENCE:
        theirs = published(name)
        inputs = batch(theirs, 12)
        del inputs["decoder_input_ids"]
        inputs["labels"] = torch.randint(6, 61, (3, 5))
        inputs["labels"][1, 3:] = -100
        assert widest(theirs(**inputs).loss, from_transformers(theirs)(**inputs).loss) <= 1e-5, name


def test_a_body_saved_from_a_head_has_no_random_pooler(published, tmp_path):
    theirs = published("RobertaForMaskedLM")
    theirs.config.architectures = ["RobertaModel"]
    theirs.roberta.save_pretrained(tmp_path)
    ours = from_transformers(tmp_path)
    assert ours.pooler is None
    assert to_transformers(ours).pooler is None


def test_the_source_is_left_alone_and_shares_nothing(published):
    theirs = published("BertForMaskedLM").train()
    before = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    ours = from_transformers(theirs)
    for parameter in ours.parameters():
        parameter.data.zero_()
    assert theirs.training
    assert all(torch.equal(before[name], tensor) for name, tensor in theirs.state_dict().items())


def test_half_precision_is_kept(published):
    assert from_transformers(published("BertModel").bfloat16()).dtype == torch.bfloat16


def test_another_mechanism_starts_with_copied_global_projections(published, batch, widest, assert_equal):
    theirs = published("BartForConditionalGeneration")
    ours = from_transformers(theirs, attention={"mechanism": "longformer", "left_tokens": 40, "right_tokens": 40})
    attention = ours.encoder.layers[1].attention
    assert torch.equal(attention.global_key.weight, attention.key.weight)
    # Under windows that cover the input, local and global rows are full attention.
    inputs = batch(theirs, 33)
    assert_equal(theirs, ours, inputs)
    inputs["global_attention_mask"] = torch.zeros(3, 33).index_fill(1, torch.tensor([0, 5]), 1)
    got = ours(**inputs)
    del inputs["global_attention_mask"]
    assert widest(theirs(**inputs).logits, got.logits) <= 1e-5


def test_a_mechanism_keeps_what_the_source_has_trained(published):
    theirs = published("LEDForConditionalGeneration")
    ours = from_transformers(theirs, attention={"mechanism": "poolingformer", "left_tokens": 4, "right_tokens": 4})
    attention = ours.encoder.layers[0].attention
    source = theirs.led.encoder.layers[0].self_attn.longformer_self_attn
    assert torch.equal(attention.global_query.weight, source.query_global.weight)
    assert not attention.pooled_value.weight.any()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("BartForSequenceClassification", "BartForSequenceClassification.*loads BartForConditionalGeneration"),
        ("PegasusXForConditionalGeneration", "'pegasus_x' is not supported: `longspan summarize --model` runs it"),
        (
            "GPT2Model",
            "model_type='gpt2'.*choose one of bart, bert, big_bird, bigbird_pegasus, .*roberta, xlm",
        ),
    ],
)
def test_unknown_architectures_are_named(name, message):
    import transformers

    config_class = getattr(transformers, name).config_class
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 1}
    sizes |= {"decoder_attention_heads": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    if "gpt2" in config_class.model_type:
        sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1}
    model = getattr(transformers, name)(config_class(vocab_size=20, **sizes))
    with pytest.raises(InputError, match=message):
        from_transformers(model)


def test_decoders_and_longspan_models_are_refused(published):
    with pytest.raises(InputError, match="is_decoder=True"):
        from_transformers(published("BertModel", is_decoder=True))
    with pytest.raises(InputError, match="already a Longspan model"):
        from_transformers(from_transformers(published("BertModel")))
    with pytest.raises(InputError, match="unknown"):
        from_transformers(published("BertModel"), attention="longfomer")
