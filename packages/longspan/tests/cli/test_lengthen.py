"""`longspan lengthen`: a model and its tokenizer in, a long model out, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from installed import needs_documents
from longspan.cli import main
from tiny_writers import TEXT, write_folder

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def write_tokenizer(folder: Path, words: int, pad: str = "<pad>") -> None:
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *(f"w{n}" for n in range(words))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, unk_token="<unk>", eos_token="</s>", bos_token="<s>"
    ).save_pretrained(folder)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    sizes = {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24}
    config = BartConfig(
        vocab_size=40, encoder_layers=2, decoder_layers=1, decoder_ffn_dim=24, max_position_embeddings=32, **sizes
    )
    BartForConditionalGeneration(config).save_pretrained(tmp_path / "source")
    write_tokenizer(tmp_path / "source", words=30)
    return tmp_path / "source"


def run(*arguments: object) -> int:
    return main(["lengthen", *map(str, arguments)])


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_model_and_its_tokenizer_are_written(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    output = tmp_path / "new" / "long"
    assert run(source, "--max-tokens", 100, "--output", output, "left_tokens=4", "pooling=mean") == 0
    out = capsys.readouterr().out
    assert "32 → 100 tokens" in out
    assert "poolingformer(left_tokens=4" in out
    assert "equal on 32 random tokens" in out
    assert str(output) in out
    model = AutoModelForSeq2SeqLM.from_pretrained(output).eval()
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert tokenizer.model_max_length == 100
    assert model.config.layer_attention(1).pooling == "mean"
    ids = torch.tensor([tokenizer("w1 w2 w3 " * 32)["input_ids"]])
    assert ids.shape == (1, 96)
    assert model.generate(ids, max_new_tokens=5).shape[0] == 1
    assert left_over(tmp_path / "new") == ["long"]


def test_layers_and_another_mechanism(source: Path, tmp_path: Path):
    output = tmp_path / "long"
    output.mkdir()
    assert (
        run(source, "--attention", "{layers: -1, mechanism: longformer}", "--max-tokens", 64, "--output", output) == 0
    )
    config = AutoModelForSeq2SeqLM.from_pretrained(output).config
    assert [config.layer_attention(layer).mechanism for layer in (0, 1)] == ["full", "longformer"]
    # A Longspan model is a source like any other.
    assert run(output, "--attention", "longformer", "--max-tokens", 96, "--output", tmp_path / "longer") == 0


def test_a_model_without_tokenizer(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for file in source.glob("tokenizer*"):
        file.unlink()
    assert run(source, "--max-tokens", 64, "--output", tmp_path / "long") == 0
    assert "tokenizer      none in the folder of the source" in capsys.readouterr().out


def test_mistakes_are_one_sentence_and_write_nothing(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    output = ("--output", tmp_path / "long")
    cases = [
        ((source, "--attention", "[{layers: 7, mechanism: full}]", *output), "layers names layer 7"),
        ((source, "--attention", "[full, full, full]", *output), "lists 3 mechanisms for 2 layers"),
        ((source, "--attention", "[full", *output), "--attention"),
        ((source, "left_tokens", *output), "write KEY=VALUE"),
        ((source, "left_tokens=1", "left_tokens=2", *output), "left_tokens is given twice"),
        ((source, "width=1", *output), "unknown key 'attention.width'"),
        ((source, "left_tokens=wide", *output), "left_tokens is 'wide'"),
    ]
    before = left_over(tmp_path)
    for arguments, message in cases:
        assert run(*arguments) == 2, arguments
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("error: ")
        assert message in error
    assert left_over(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"words": 50}, "has 54 entries but the model's vocabulary 40"),
        ({"words": 9, "pad": "<s>"}, "tokenizer's pad_token_id is 0 but the model's is 1"),
    ],
)
def test_a_tokenizer_of_another_model(options, message, source: Path, tmp_path: Path, capsys):
    write_tokenizer(source, **options)
    assert run(source, "--max-tokens", 64, "--output", tmp_path / "long") == 2
    assert message in capsys.readouterr().err
    assert left_over(tmp_path) == ["source"]


def test_a_broken_tokenizer(source: Path, tmp_path: Path, capsys):
    (source / "tokenizer.json").write_text("{}")
    assert run(source, "--max-tokens", 64, "--output", tmp_path / "long") == 2
    assert "error: the tokenizer of" in capsys.readouterr().err


@needs_documents
def test_t5_stays_transformers_own_and_summarises(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source, output = write_folder(tmp_path / "t5", "T5", n_positions=32), tmp_path / "long"
    asked = (source, "--output", output, "--max-tokens", 1500)
    cases = [
        (
            (*asked, "--attention", "poolingformer"),
            "attention='poolingformer' has no place in T5ForConditionalGeneration",
        ),
        ((*asked, "dilation=2"), "dilation=2 has no place"),
        ((*asked, "--stack", "top_down"), "--stack puts blocks of Longspan together"),
        ((*asked, "--new-positions", "random"), "needs a table of absolute positions"),
    ]
    for arguments, message in cases:
        assert run(*arguments) == 2, arguments
        assert message in capsys.readouterr().err
    assert left_over(tmp_path) == ["t5"]
    assert run(*asked, "left_tokens=40") == 0
    out = capsys.readouterr().out
    for line in (
        "T5ForConditionalGeneration → T5ForConditionalGeneration",
        "32 → 1,500 tokens (there is no table of absolute positions)",
        "layers 0–1: longformer(left_tokens=40, right_tokens=32)",
        "equal on 32 random tokens",
        "tokenizer      copied",
    ):
        assert line in out
    assert AutoTokenizer.from_pretrained(output).model_max_length == 1500
    (tmp_path / "text.txt").write_text(TEXT * 30, encoding="utf-8")
    assert main(["summarize", str(tmp_path / "text.txt"), "--model", str(output), "--max-tokens", "9", "--json"]) == 0
    told = capsys.readouterr().out
    assert '"tokens": 751' in told
    assert "parts" not in told
    assert main(["generate", str(output), "the snail"]) == 2
    assert "it is a model that writes: give it to `longspan summarize --model`" in capsys.readouterr().err


def test_the_same_command_writes_the_same_weights(source: Path, tmp_path: Path):
    """Also those that are drawn, of a second level and of another stack."""
    for options in ([], ["--attention", "longformer", "--stack", "{stack: top_down, kernel: 4, stride: 2}"]):
        written = []
        for name in ("one", "two"):
            output = tmp_path / f"{len(options)}-{name}"
            assert run(source, "--max-tokens", 100, "--output", output, *options) == 0
            written.append((output / "model.safetensors").read_bytes())
            torch.rand(3)  # whatever else has been drawn since
        assert written[0] == written[1]
