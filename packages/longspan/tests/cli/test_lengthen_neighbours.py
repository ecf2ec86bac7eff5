"""`longspan lengthen FOLDER` finds out what lies there: each neighbour of BERT and RoBERTa, with its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoModelForMaskedLM, AutoTokenizer

from longspan.cli import main

LONGEST = {"max_position_embeddings": 32}
SIZES: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= LONGEST | {"intermediate_size": 24}
WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", *"abcdefg"]
PIECES = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((a, -1.0) for a in "abcdefg")]
VOCABULARY = {word: index for index, word in enumerate(WORDS)}
DISENTANGLED = {"relative_attention": True, "pos_att_type": "p2c|c2p", "position_biased_input": False}
LATER = {"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
CASES: dict[str, dict[str, Any]] = {
    "distilbert": {
        "family": "DistilBert",
        "sizes": {"vocab_size": 40, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24} | LONGEST,
        "tokenizer": ("BertTokenizer", {"vocab": VOCABULARY}),
    },
    "electra": {
        "family": "Electra",
        "sizes": SIZES | {"embedding_size": 8},
        "tokenizer": ("BertTokenizer", {"vocab": VOCABULARY}),
    },
    "camembert": {
        "family": "Camembert",
        "sizes": SIZES | {"max_position_embeddings": 34, "type_vocab_size": 1},
        "tokenizer": ("CamembertTokenizer", {"vocab": PIECES}),
    },
    "distilroberta": {
        "family": "Roberta",
        "sizes": SIZES | {"max_position_embeddings": 34, "type_vocab_size": 1, "num_hidden_layers": 6},
        "tokenizer": ("CamembertTokenizer", {"vocab": PIECES}),
    },
    "deberta": {
        "family": "Deberta",
        "sizes": SIZES | DISENTANGLED,
        "tokenizer": ("DebertaTokenizer", {"vocab": VOCABULARY, "merges": []}),
        "attention": "fusion",
    },
    "deberta-v3": {
        "family": "DebertaV2",
        "sizes": SIZES | DISENTANGLED | LATER,
        "tokenizer": ("DebertaV2Tokenizer", {"vocab": [("[PAD]", 0.0), ("[UNK]", 0.0), ("[CLS]", 0.0), *PIECES[4:]]}),
        "attention": "fusion",
    },
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_is_recognised_and_lengthened_with_its_tokenizer(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family, source, output = case["family"], tmp_path / "source", tmp_path / "long"
    config = getattr(transformers, f"{family}Config")(**case["sizes"])
    getattr(transformers, f"{family}ForMaskedLM")(config).save_pretrained(source)
    name, options = case["tokenizer"]
    getattr(transformers, name)(**options).save_pretrained(source)
    attention = case.get("attention", "longformer")
    arguments = ["--attention", attention, "--max-tokens", "150", "--output", str(output), "left_tokens=4"]
    assert main(["lengthen", str(source), *arguments]) == 0
    out = capsys.readouterr().out
    assert f"{family}ForMaskedLM → LongspanForMaskedLM" in out
    assert "32 → 150 tokens" in out
    assert f"{attention}(left_tokens=4" in out
    assert "equal on 32 random tokens" in out
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert tokenizer.model_max_length == 150
    inputs = tokenizer("ab cd " * 24, return_tensors="pt")
    assert inputs["input_ids"].shape[1] > 32
    model = AutoModelForMaskedLM.from_pretrained(output).eval()
    assert model(**inputs).logits.isfinite().all()
