"""Every family with every head, tied and untied: taken in from disk, equal at every length, given back unchanged."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedConfig

import longspan
from longspan import InputError
from longspan.checkpoints import from_transformers, to_transformers
from longspan.checkpoints.architectures import ARCHITECTURES

KINDS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
FAMILIES = (
    *("Bert", "Roberta", "XLMRoberta", "Camembert", "DistilBert"),
    *("Electra", "Longformer", "Deberta", "DebertaV2"),
)
SEQUENCE = ("BartForConditionalGeneration", "MBartForConditionalGeneration", "LEDForConditionalGeneration")
TIED = [*(f"{family}{kind}" for family in FAMILIES for kind in KINDS), *SEQUENCE]
PLAIN: dict[str, dict[str, Any]] = {name: {} for name in TIED}
PLAIN |= {f"Deberta{kind} without relative positions": {"relative_attention": False} for kind in KINDS}
UNTIED = {
    f"{name} untied" if " " not in name else f"{name}, untied": options | {"tie_word_embeddings": False}
    for name, options in PLAIN.items()
}
SPECIAL: dict[str, dict[str, Any]] = {
    "ElectraForPreTraining": {},
    "ElectraForPreTraining of wider embeddings": {"embedding_size": 40, "hidden_act": "silu"},
    "ElectraModel of one width": {"embedding_size": 24},
    "ElectraForMaskedLM of one width": {"embedding_size": 24, "hidden_act": "relu"},
    "ElectraForSequenceClassification of five": {"num_labels": 5, "classifier_dropout": 0.3},
    "DistilBertForMaskedLM of relu, untied": {"tie_word_embeddings": False, "activation": "relu"},
    "DistilBertModel of sinusoids": {"sinusoidal_pos_embds": True},
    "DistilBertForSequenceClassification of one": {"num_labels": 1, "seq_classif_dropout": 0.35},
    "RobertaForMaskedLM of six layers, DistilRoBERTa": {"num_hidden_layers": 6},
    "RobertaForSequenceClassification of six layers": {"num_hidden_layers": 6, "num_labels": 3},
}
CASES = PLAIN | UNTIED | SPECIAL
OF_THE_FILE = {"architectures", "transformers_version", "dtype", "sinusoidal_pos_embds"}
"""Not compared; a table of sinusoids goes out as the numbers that it holds."""


def seldom(case: str) -> bool:
    """A head that writes no words has nothing to tie: there the tied setting is looked at less often, and the untied
    one in families whose network is that of another."""
    twin = case.startswith(("XLMRoberta", "Camembert", "DistilBert", "Deberta"))
    return not case.split(" ")[0].endswith(("MaskedLM", "Generation")) and (case in TIED or (case in UNTIED and twin))


def known(config: PreTrainedConfig) -> dict[str, Any]:
    return {name: value for name, value in config.to_dict().items() if name not in OF_THE_FILE}


@pytest.mark.usefixtures("exact_scale")
@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, marks=[pytest.mark.slow] if seldom(case) else []) for case in PLAIN | UNTIED),
        *(pytest.param(case, marks=pytest.mark.variant) for case in SPECIAL),
    ],
)
def test_equal_on_disk_in_both_directions_at_every_length(case, published, batch, assert_equal, tmp_path, monkeypatch):
    name, long = case.split(" ")[0], case.startswith(("Longformer", "LED"))
    in_part_rounded = long or case.startswith(("DebertaFor", "DebertaModel"))  # to float32, by transformers
    theirs = published(name, **CASES[case]).double()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = from_transformers(tmp_path / "theirs")
    assert (ours.dtype, ours.training) == (torch.float64, False)
    ours.save_pretrained(tmp_path / "ours")
    ours = type(ours).from_pretrained(tmp_path / "ours").eval()
    given = to_transformers(ours)
    given.save_pretrained(tmp_path / "back")
    back, info = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    state, back = back.state_dict(), back.eval()
    assert state.keys() == theirs.state_dict().keys()
    changed = {name for name, tensor in theirs.state_dict().items() if not torch.equal(tensor, state[name])}
    # Untied, there are second biases and tables that nothing reads; they go out as the first. Without positions DeBERTa
    # divides scores by less, which the queries that go out make up for.
    unread = ("lm_head.bias", "predictions.bias", "shared.weight") if "untied" in case else ()
    assert all(name.endswith(unread + ("in_proj.weight", "q_bias") * ("without" in case)) for name in changed)
    said = {"pos_att_type": []} if "without" in case else {}  # which is not read there
    wanted = known(theirs.config) | said
    assert {name: value for name, value in known(given.config).items() if name in wanted} == wanted
    for tokens in (1, 7, 16, 31, 53):
        for marked in (False, True) if long else (False,):
            inputs = batch(theirs, tokens, globals=marked)
            if long:  # Longformer's heads choose global tokens themselves; that rule has its own test
                inputs.setdefault("global_attention_mask", torch.zeros_like(inputs["attention_mask"]))
            assert_equal(theirs, ours, inputs, 1e-6 if in_part_rounded else 1e-10)
            assert_equal(theirs, back, inputs, 1e-6 if in_part_rounded else 1e-12)
    monkeypatch.undo()
    assert_equal(theirs.float(), ours.float(), inputs, 1e-5)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "RobertaForMaskedLM", "BartForConditionalGeneration"])
def test_untied_embeddings_do_differ_here(name, published):
    ours = from_transformers(published(name, tie_word_embeddings=False))
    tables = {
        key: value for key, value in ours.state_dict().items() if key.endswith(("token.weight", "decoder.weight"))
    }
    assert len({tensor.data_ptr() for tensor in tables.values()}) == len(tables) > 1
    assert not any(first.equal(other) for first, other in itertools.pairwise(tables.values()))


def test_a_bare_untied_sequence_model_has_no_head_to_write_with(published):
    with pytest.raises(InputError, match=r"no tensor for 'lm_head\.weight'"):
        from_transformers(published("BartModel", tie_word_embeddings=False))


def test_what_an_architecture_has_and_the_model_lacks_is_one_sentence():
    config = longspan.LongspanConfig(
        vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=2, intermediate_size=4, attention="full",
        type_vocab_size=0, position_offset=0, max_position_embeddings=8,
    )  # fmt: skip
    ours = longspan.LongspanForMaskedLM(config)
    with pytest.raises(InputError, match=r"has bert\.embeddings\.token_type_embeddings\.weight, for which"):
        to_transformers(ours, architecture="bert")


def test_every_architecture_has_a_test():
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py"))
    for model_type in ARCHITECTURES:
        heads = list(ARCHITECTURES[model_type].heads)
        family = re.split(r"For|Model|LM", heads[0])[0]
        assert re.search(rf"\b{family}", tests), f"no test in {Path(__file__).parent} names a model of {family}"


def test_every_class_of_the_tables_exists_and_is_tested():
    for model_type in map(str.lower, ("Camembert", "DistilBert", "Electra")):
        for name in ARCHITECTURES[model_type].heads:
            assert hasattr(transformers, name)
            assert name in CASES or name.endswith("ForMultipleChoice")  # those: test_multiple_choice.py
