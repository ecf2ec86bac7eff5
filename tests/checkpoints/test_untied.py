"""Every family, tied and untied, with every head: written to disk, loaded by transformers, and taken in again."""

from __future__ import annotations

import itertools

import pytest
import torch
import transformers

import longspan
from longspan import InputError
from longspan.checkpoints import from_transformers, to_transformers

HEADS = ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
FAMILIES = {
    "Bert": {},
    "Roberta": {},
    "XLMRoberta": {},
    "Longformer": {},
    "Deberta": {},
    "Deberta without relative positions": {"relative_attention": False},
}
MODELS = [(name.split()[0] + head, options) for name, options in FAMILIES.items() for head in HEADS]
MODELS += [(f"{name}ForConditionalGeneration", {}) for name in ("Bart", "MBart", "LED")]
OUTPUTS = ("logits", "start_logits", "end_logits", "last_hidden_state", "pooler_output")


def outputs(model, inputs):
    with torch.no_grad():
        found = model(**inputs)
    return {name: found[name] for name in OUTPUTS if found.get(name) is not None}


# A head that writes no words has nothing to tie: there the second setting is looked at less often.
CASES = [
    pytest.param(
        name,
        options,
        tied,
        id=f"{name}{options or ''}-{'tied' if tied else 'untied'}",
        marks=[pytest.mark.slow] if tied and not name.endswith(("MaskedLM", "Generation")) else [],
    )
    for name, options in MODELS
    for tied in (True, False)
]


@pytest.mark.parametrize(("name", "options", "tied"), CASES)
def test_equal_on_disk_in_both_directions(name, options, tied, published, batch, widest, tmp_path):
    theirs = published(name, tie_word_embeddings=tied, **options)
    inputs = batch(theirs, 13, globals=name.startswith(("Longformer", "LED")))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = from_transformers(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    ours = type(ours).from_pretrained(tmp_path / "ours").eval()
    to_transformers(ours).save_pretrained(tmp_path / "back")
    back = getattr(transformers, name).from_pretrained(tmp_path / "back").eval()
    want = outputs(theirs, inputs)
    for got in (outputs(ours, inputs), outputs(back, inputs)):
        assert got.keys() == want.keys()
        mask = None if "decoder_input_ids" in inputs else inputs["attention_mask"]
        assert all(widest(want[key], got[key], mask) <= 2e-6 for key in want)
    assert back.config.tie_word_embeddings is tied


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
