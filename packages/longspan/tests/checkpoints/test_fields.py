"""What a configuration says comes back as it was, field by field, also what Longspan itself has no use for."""

from __future__ import annotations

import json

import pytest

from longspan import LongspanConfig
from longspan.checkpoints import from_transformers, lengthen, to_transformers

COMMON = {
    "use_cache": False,
    "task_specific_params": {"summarization": {"num_beams": 4, "max_length": 20}},
    "problem_type": "multi_label_classification",
    "classifier_dropout": 0.3,
    "bos_token_id": 7,
    "eos_token_id": 8,
    "sep_token_id": 9,
    "cls_token_id": 7,
    "prefix": "summarize: ",
    "finetuning_task": "rte",
    "tokenizer_class": "RobertaTokenizer",
    "output_hidden_states": True,
    "return_dict": False,
    "a_key_of_somebody": {"a": 1},
}
LABELS = {"id2label": {0: "no", 1: "yes", 2: "who"}, "label2id": {"no": 0, "yes": 1, "who": 2}}
WRITER = {"decoder_start_token_id": 6, "forced_bos_token_id": 5, "forced_eos_token_id": 8, "decoder_layerdrop": 0.1}
CHANGES = {
    "BertForSequenceClassification": COMMON | LABELS | {"hidden_act": "relu", "position_embedding_type": "absolute"},
    "RobertaForSequenceClassification": COMMON | LABELS | {"layer_norm_eps": 1e-6},
    "XLMRobertaForTokenClassification": COMMON | LABELS | {"initializer_range": 0.03},
    "LongformerForQuestionAnswering": COMMON | {"onnx_export": True},
    "DebertaForSequenceClassification": COMMON | LABELS | {"pooler_dropout": 0.3, "cls_dropout": 0.25},
    "BartForConditionalGeneration": COMMON | WRITER | LABELS,
    "MBartForConditionalGeneration": COMMON | WRITER | LABELS,
    "LEDForConditionalGeneration": COMMON | WRITER | LABELS,
}
OF_THE_FILE = {"architectures", "transformers_version", "dtype"}


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_comes_back(name, published, tmp_path):
    theirs = published(name, **CHANGES[name])
    from_transformers(theirs).save_pretrained(tmp_path)
    ours = from_transformers(theirs)
    ours = type(ours).from_pretrained(tmp_path)
    back = to_transformers(ours)
    before, after = theirs.config.to_dict(), back.config.to_dict()
    assert {k: v for k, v in before.items() if k not in OF_THE_FILE} == {
        k: v for k, v in after.items() if k not in OF_THE_FILE
    }
    if theirs.can_generate():
        assert back.generation_config.to_dict() == theirs.generation_config.to_dict()


def test_what_longspan_does_read_is_read(published):
    config = from_transformers(
        published("BartForConditionalGeneration", **CHANGES["BartForConditionalGeneration"])
    ).config
    assert config.use_cache is False
    assert config.output_hidden_states is True
    assert config.task_specific_params == COMMON["task_specific_params"]
    assert config.id2label == LABELS["id2label"]


def test_a_change_made_here_wins_over_what_the_source_said(published):
    ours = from_transformers(published("BertForSequenceClassification", classifier_dropout=None, cls_token_id=7))
    ours.config.head["dropout"], ours.config.use_cache = 0.4, False
    back = to_transformers(ours).config
    assert (back.classifier_dropout, back.use_cache, back.cls_token_id) == (0.4, False, 7)


def test_the_origin_survives_lengthening(published):
    long = lengthen(published("BartForConditionalGeneration", prefix="x"), "longformer", max_tokens=96)
    assert (long.config.source_model_type, long.config.prefix) == ("bart", "x")
    assert to_transformers(long).config.model_type == "led"


def test_a_configuration_made_here_has_no_origin():
    text = json.loads(LongspanConfig().to_json_string())
    assert text.get("source_model_type") is None
    assert text.get("source_fields") is None
