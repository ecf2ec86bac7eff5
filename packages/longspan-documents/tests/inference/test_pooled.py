"""Vectors from any encoder: transformers' own states, pooled; after lengthening as before, and long texts whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration, BertConfig, BertForMaskedLM, BertModel

from longspan.cli import main
from longspan.errors import InputError
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.inference.embed import embed, embed_document, load_encoder

TEXT = "The tenant pays for repairs. It rained all day. Nobody came to the house by the river!"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT of 48 tokens as published, pooled by the largest values."""
    folder = tmp_path_factory.mktemp("encoders") / "source"
    tokenizer = train_tokenizer([TEXT] * 9, 300)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=48,
        initializer_range=0.2,
        pad_token_id=1,
    )
    torch.manual_seed(0)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "max"}))
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


@pytest.fixture(scope="module")
def longer(source: Path) -> Path:
    folder = source.parent / "longer"
    options = ["--attention", "longformer", "--max-tokens", "300", "left_tokens=47", "right_tokens=47"]
    assert main(["lengthen", str(source), *options, "--output", str(folder)]) == 0
    return folder


def reference(source: Path, text: str) -> np.ndarray:
    tokens = AutoTokenizer.from_pretrained(source)(text, return_tensors="pt")
    with torch.no_grad():
        states = BertModel.from_pretrained(source).eval()(tokens["input_ids"]).last_hidden_state[0]
    vector = states.amax(0).numpy()
    return vector / np.linalg.norm(vector)


def test_vectors_are_the_published_ones_and_stay_so(source: Path, longer: Path) -> None:
    texts = [TEXT, "It rained.", TEXT[:40], "x"]  # of such unlike length that they are read in one row
    expected = np.stack([reference(source, text) for text in texts])
    for folder in (source, longer):
        np.testing.assert_allclose(embed(texts, folder), expected, atol=1e-6)
        # A document of one paragraph is read as the text that it is.
        found = embed_document(TEXT, folder)
        np.testing.assert_allclose(found.vector, expected[0], atol=1e-6)
        assert found.vectors.shape == (3, 24)
        np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=1), 1, atol=1e-6)


def test_long_documents_are_read_whole_or_not_at_all(
    source: Path, longer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [TEXT] * 5
    assert embed_document(" ".join(whole), longer).tokens > 100
    changed = [*whole[:-1], TEXT.replace("river", "sea")]
    one, two = (embed_document(" ".join(texts), longer) for texts in (whole, changed))
    assert np.abs(one.vectors[-1] - two.vectors[-1]).max() > 1e-3
    with pytest.raises(InputError, match=r"max_position_embeddings=48 .* longspan.lengthen"):
        embed_document(" ".join(whole), source)
    (tmp_path / "a.md").write_text(f"# A heading\n\n{TEXT}\n")
    command = ["embed", str(tmp_path / "a.md"), "--model", str(longer), "--sentences"]
    assert main([*command, "--output", str(tmp_path / "v.safetensors")]) == 0
    found = load_file(tmp_path / "v.safetensors")
    np.testing.assert_allclose(found["documents"][0], reference(source, f"A heading {TEXT}"), atol=1e-6)
    assert found["sentences.0"].shape == (3, 24)
    capsys.readouterr()
    assert main([*command, "--output", str(tmp_path / "nowhere" / "v.safetensors")]) == 2
    assert "nowhere' is no folder" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_heads_come_off_and_decoders_are_refused(source: Path, tmp_path: Path) -> None:
    tokenizer, config = AutoTokenizer.from_pretrained(source), BertConfig.from_pretrained(source)
    BertForMaskedLM(config).save_pretrained(tmp_path / "masked")
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    bart = BartConfig(vocab_size=len(tokenizer), d_model=8, encoder_ffn_dim=8, decoder_ffn_dim=8, **sizes)
    BartForConditionalGeneration(bart).save_pretrained(tmp_path / "bart")
    for folder in ("masked", "bart"):
        tokenizer.save_pretrained(tmp_path / folder)
    assert load_encoder(tmp_path / "masked").dimensions == 24
    with pytest.raises(InputError, match="LongspanForConditionalGeneration, which writes text and does not embed"):
        load_encoder(tmp_path / "bart")


def test_nothing_to_read(longer: Path) -> None:
    with pytest.raises(InputError, match="document is blank; give a text with words in it"):
        embed_document("  \n ", longer)
