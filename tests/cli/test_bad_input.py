"""Every kind of bad input gets one sentence on stderr, exit code 2, and leaves nothing half-written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, logging

RECIPE = """
name: tiny
task: {name: summarization, max_source_tokens: 128, max_target_tokens: 16}
data: {train: synthetic, validation: synthetic, train_rows: 4, validation_rows: 2}
model:
  new: {hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 64, decoder_layers: 1}
  attention: {mechanism: poolingformer, left_tokens: 16, right_tokens: 16}
  max_tokens: 128
tokenizer: {train: 400}
optimisation: {steps: 2, batch_size: 2, log_every: 1, evaluate_every: 2}
generation: {max_tokens: 16}
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BART as transformers saves it."""
    folder = tmp_path_factory.mktemp("checkpoints") / "bart"
    sizes = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = BartConfig(vocab_size=300, encoder_layers=2, decoder_layers=1, **sizes, **heads)
    logging.disable_progress_bar()
    BartForConditionalGeneration(config).save_pretrained(folder)
    return folder


@pytest.fixture
def broken(bart: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint that a test may break."""
    return Path(shutil.copytree(bart, tmp_path / "checkpoint"))


FILES = {
    "empty.txt": (b"", "empty.txt"),
    "blank.txt": (b" \n\t\n  ", "blank.txt"),
    "binary.txt": (bytes(range(256)) * 40, "binary.txt"),
    "zip.pdf": (b"PK\x03\x04" + bytes(500), "zip.pdf"),
    "cut.pdf": (b"%PDF-1.7\n1 0 obj\n<< /Type /Cat", "cut.pdf"),
    "latin.txt": ("Où est la forêt ? Là-bas.".encode("utf-16-le"), "latin.txt"),
    "empty.html": (b"<html><body></body></html>", "empty.html"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_without_text(name: str, refused: Callable[..., str], tmp_path: Path) -> None:
    data, words = FILES[name]
    (tmp_path / name).write_bytes(data)
    assert words in refused("summarize", name)
    assert words in refused("summarize", name, "--json", "--picture", "picture.png")


def test_missing_files_and_folders(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert "missing.txt" in refused("summarize", "missing.txt")
    assert "folder" in refused("summarize", "folder")


def test_unusable_options_of_summarize(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("A first sentence stands here. A second one follows it. A third ends it.")
    assert "sentences" in refused("summarize", "text.txt", "--sentences", "0")
    assert "picture" in refused("summarize", "text.txt", "--picture", "no/such/folder/p.png")
    assert "picture" in refused("summarize", "text.txt", "--picture", "p.docx")
    assert "nowhere" in refused("summarize", "text.txt", "--model", "./nowhere")


CHANGES = {
    "optimisation.learning=1": "learning",
    "model.attention.lefft_tokens=3": "lefft_tokens",
    "model.attention.left_tokens=-1": "left_tokens is -1",
    "model.attention={mechanism: longformer, dilation: 0}": "dilation is 0",
    "model.attention.mechanism=longfromer": "longfromer",
    "model.attention.stride=9": "stride=9",
    "model.new.num_attention_heads=5": "num_attention_heads=5",
    "model.new.hidden=64": "hidden",
    "model.attention=[longformer]": "attention",
    "model.attention=[{layers: 7, mechanism: full}]": "7",
    "data.train=[no_such_data]": "no_such_data",
    "optimisation.steps=many": "steps",
    "nonsense": "nonsense",
}


@pytest.mark.parametrize("change", CHANGES)
def test_recipes_that_cannot_be(change: str, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    assert CHANGES[change] in refused("train", "tiny.yaml", change)


OPTIONS = {
    ("left_tokens=-1",): "left_tokens is -1",
    ("--attention", "longformer", "dilation=0"): "dilation is 0",
    ("--attention", "longformer", "dilation=[1,2,4]"): "dilation=(1, 2, 4)",
    ("stride=9",): "stride=9",
    ("kernel=5000",): "kernel is 5000",
    ("lefft=3",): "lefft",
    ("--attention", "longform"): "longform",
    ("layers=9",): "layers names layer 9",
    ("--max-tokens", "10"): "max_tokens=10",
}


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options))
def test_mechanisms_that_cannot_be(options: tuple[str, ...], bart: Path, refused: Callable[..., str]) -> None:
    assert OPTIONS[options] in refused("lengthen", bart, *options, "--output", "longer")


def test_output_that_is_taken(bart: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("years of work")
    assert "taken" in refused("lengthen", bart, "--output", "taken")
    assert (tmp_path / "taken" / "thesis.tex").read_text() == "years of work"


def break_by_truncation(folder: Path) -> str:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    return "model.safetensors"


def break_by_pickle(folder: Path) -> str:
    (folder / "model.safetensors").unlink()
    torch.save({"model.shared.weight": torch.zeros(3, 3)}, folder / "pytorch_model.bin")
    return "pickle"


def break_by_unknown_model(folder: Path) -> str:
    (folder / "config.json").write_text(json.dumps({"model_type": "neverheard"}))
    return "neverheard"


def break_by_missing_config(folder: Path) -> str:
    (folder / "config.json").unlink()
    return "config.json"


def break_by_damaged_config(folder: Path) -> str:
    (folder / "config.json").write_text('{"model_type": "bart", ')
    return "config.json"


def break_by_missing_weights(folder: Path) -> str:
    (folder / "model.safetensors").unlink()
    return "checkpoint"


def break_by_other_sizes(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"d_model": 48}))
    return "checkpoint"


def break_by_tokenizer(folder: Path) -> str:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"word{number}": number for number in range(5000)} | {"<pad>": 5000}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="word0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>").save_pretrained(folder)
    return "5001"


BREAKS = [
    break_by_truncation,
    break_by_pickle,
    break_by_unknown_model,
    break_by_missing_config,
    break_by_damaged_config,
    break_by_missing_weights,
    break_by_other_sizes,
    break_by_tokenizer,
]


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda function: function.__name__.removeprefix("break_by_"))
def test_checkpoints_that_cannot_be_read(break_it, broken: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    words = break_it(broken)
    assert words in refused("lengthen", broken, "--output", "longer")
    (tmp_path / "text.txt").write_text("A first sentence stands here. A second one follows it. A third ends it.")
    assert words in refused("summarize", "text.txt", "--model", broken)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"id": "1", "text": "A text.", "summary": "Text."}) + "\n")
    refused("evaluate", broken, "--data", "rows.jsonl")


def test_a_process_ends_with_code_2_and_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "longspan.cli", "summarize", "missing.txt"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
