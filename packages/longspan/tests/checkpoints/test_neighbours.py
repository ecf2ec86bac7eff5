"""Neighbours of BERT and RoBERTa in, out and longer, against transformers' own classes: one table of tiny models."""

from __future__ import annotations

import pytest
import torch
import transformers

import longspan
from longspan import InputError
from longspan.checkpoints import from_transformers, lengthen, to_transformers

KINDS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
FAMILIES = ("Camembert", "DistilBert", "Electra")
CASES = {f"{family}{kind}": {} for family in FAMILIES for kind in KINDS} | {
    "RobertaForMaskedLM of six layers, DistilRoBERTa": {"num_hidden_layers": 6},
    "RobertaForSequenceClassification of six layers": {"num_hidden_layers": 6, "num_labels": 3},
}


@pytest.mark.parametrize("attention", ["longformer", pytest.param("poolingformer", marks=pytest.mark.variant)])
@pytest.mark.parametrize("case", CASES)
def test_lengthened_ones_keep_short_inputs(case, attention, published, batch, tmp_path, assert_equal, outputs):
    theirs = published(case.split(" ")[0], **CASES[case])
    theirs.save_pretrained(tmp_path)
    model = lengthen(tmp_path, attention, max_tokens=200)
    report = model.report
    assert (report.tokens_before, report.tokens_after, report.parity_tokens) == (53, 200, 53)
    assert max(report.parity_hidden, report.parity_logits or 0.0) <= 1e-5
    assert report.parameters["dropped"] == 0
    inputs = batch(theirs, 31)
    assert_equal(theirs, model, inputs)
    table, reserved = model.get_submodule(model_positions(model)).weight, report.reserved_rows
    learned = table[reserved : reserved + 53]
    assert torch.equal(table[reserved:], learned.repeat(4, 1)[:200])
    assert all(tensor.isfinite().all() for tensor in outputs(model, batch(theirs, 187)).values())


def model_positions(model):
    return next(name for name, _ in model.named_modules() if name.endswith("embeddings.position"))


@pytest.mark.parametrize("case", [*(f"{family}ForMaskedLM" for family in FAMILIES), "ElectraForPreTraining"])
def test_beyond_the_window_a_lengthened_one_is_its_source_with_a_band(case, published, widest):
    """transformers' own class, told by a mask of pairs to look 3 tokens to the left and 5 to the right."""
    theirs = published(case).double()
    model = lengthen(theirs, "longformer", max_tokens=200, left_tokens=3, right_tokens=5)
    ids = torch.randint(3, 61, (2, 47))
    offset = torch.arange(47)[None] - torch.arange(47)[:, None]
    band = ((offset >= -3) & (offset <= 5)).expand(2, 1, -1, -1)
    with torch.no_grad():
        assert widest(theirs(ids, attention_mask=band).logits, model(ids).logits) <= 1e-10


def test_token_types_of_electra_and_none_of_distilbert(published, widest):
    theirs = published("ElectraModel")
    ids, types = torch.randint(3, 61, (2, 13)), torch.randint(0, 2, (2, 13))
    want = theirs(ids, token_type_ids=types).last_hidden_state
    assert widest(want, from_transformers(theirs)(ids, token_type_ids=types).last_hidden_state) <= 1e-5
    with pytest.raises(InputError, match="type_vocab_size=0"):
        from_transformers(published("DistilBertModel"))(ids, token_type_ids=types)


def test_embeddings_can_be_given_at_their_own_width(published, widest):
    theirs = published("ElectraModel")
    ours, embeddings = from_transformers(theirs), torch.randn(2, 9, 16)
    want = theirs(inputs_embeds=embeddings).last_hidden_state
    assert widest(want, ours(inputs_embeds=embeddings).last_hidden_state) <= 1e-5


@pytest.mark.parametrize("name", ["ElectraForPreTraining", "ElectraForMaskedLM", "DistilBertForMaskedLM"])
def test_losses_are_equal(name, published, batch, widest):
    theirs = published(name)
    inputs = batch(theirs, 23)
    high = 2 if "PreTraining" in name else 61
    labels = torch.randint(0, high, (3, 23))
    inputs["labels"] = labels if "PreTraining" in name else labels.masked_fill(inputs["attention_mask"] == 0, -100)
    assert widest(theirs(**inputs).loss, from_transformers(theirs)(**inputs).loss) <= 1e-5


def test_labels_of_another_shape_are_refused(published):
    ours = from_transformers(published("ElectraForPreTraining"))
    with pytest.raises(InputError, match=r"labels has shape \(1, 4\), the predictions \(1, 5\)"):
        ours(torch.randint(3, 61, (1, 5)), labels=torch.zeros(1, 4))


def test_heads_keep_their_own_dropouts(published):
    options = {"seq_classif_dropout": 0.4, "dropout": 0.2, "qa_dropout": 0.3}
    head = from_transformers(published("DistilBertForSequenceClassification", **options)).classifier
    assert (head.input_dropout.p, head.dropout.p) == (0.0, 0.4)
    assert from_transformers(published("DistilBertForTokenClassification", **options)).dropout.p == 0.2
    answers = from_transformers(published("DistilBertForQuestionAnswering", **options))
    assert answers.dropout.p == 0.3
    assert to_transformers(answers, architecture="distilbert").config.qa_dropout == 0.3


def test_what_a_model_looks_like_decides_what_it_goes_out_as(published):
    for name in ("ElectraForMaskedLM", "DistilBertForMaskedLM"):
        ours = from_transformers(published(name))
        ours.config.source_model_type = None
        back = to_transformers(ours)
        assert type(back) is getattr(transformers, name)
    with pytest.raises(InputError, match=r"type_vocab_size=2 cannot be represented by transformers' distilbert"):
        to_transformers(from_transformers(published("BertForMaskedLM")), architecture="distilbert")
    with pytest.raises(InputError, match=r"embedding_size=16 cannot be represented by transformers' bert"):
        to_transformers(from_transformers(published("ElectraForMaskedLM")), architecture="bert")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding_size": 8, "decoder_layers": 1}, "embedding_size=8 differs from hidden_size=16.*with a decoder"),
        ({"embedding_size": 0}, "embedding_size is 0; it must be at least 1"),
        (
            {"embedding_projection": "between"},
            "embedding_projection is 'between'; choose 'after_norm' or 'before_norm'",
        ),
        ({"head": {"head": "question_answering", "dropout": 1.0}}, r"head.dropout is 1\.0; it must be below 1"),
    ],
)
def test_what_no_model_can_have_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        longspan.LongspanConfig(hidden_size=16, num_attention_heads=2, **options)


def test_embeddings_are_as_wide_as_the_model_unless_told_otherwise(published):
    assert from_transformers(published("BertModel")).config.embedding_size == 24
    assert from_transformers(published("ElectraModel")).config.embedding_size == 16
