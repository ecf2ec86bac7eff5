"""`longspan generate`: a prompt goes on, in pieces or as JSON, and every mistake is one sentence."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from longspan.cli import main
from longspan.inference.generate import Writing, generate, reads_in_pieces
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForMaskedLM
from longspan.training.tokenizers import train_tokenizer

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
WINDOW = {"mechanism": "longformer", "left_tokens": 7}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(["to be, or not to be"], 261)


def _save(folder: Path, model_class: Any, tokenizer: Any, **options: Any) -> Path:
    torch.manual_seed(2)
    config = LongspanConfig(vocab_size=len(tokenizer), init_std=0.5, attention=WINDOW, **{**SIZES, **options})
    model_class(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A tiny random language model over bytes, as `longspan train` leaves it."""
    return _save(tmp_path_factory.mktemp("writer"), LongspanForCausalLM, tokenizer, position_embedding="sinusoidal")


def _greedy(folder: Path, tokenizer: Any, prompt: str, tokens: int) -> str:
    """The likeliest next token, again and again, by whole passes without a cache."""
    model = LongspanForCausalLM.from_pretrained(folder).eval()
    ids = [tokenizer.eos_token_id, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]
    first = len(ids)
    while len(ids) < first + tokens and (len(ids) == first or ids[-1] != tokenizer.eos_token_id):
        ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return tokenizer.decode(ids[first:], skip_special_tokens=True)


@pytest.mark.parametrize("prompt", ["to be", "", "zürich — 東京"])
def test_it_writes_what_whole_passes_write(
    writer: Path, tokenizer: Any, prompt: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = _greedy(writer, tokenizer, prompt, 12)
    capsys.readouterr()  # what transformers tells while it loads
    assert main(["generate", str(writer), prompt, "--temperature", "0", "--max-tokens", "12", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["text"] == wanted
    assert found["prompt_tokens"] == 1 + len(prompt.encode())
    assert 1 <= found["tokens"] <= 12
    assert err == ""


def test_the_pieces_are_the_text(writer: Path) -> None:
    pieces: list[str] = []
    writing = Writing(max_tokens=40, seed=4)
    streamed = generate("to be", writer, writing=writing, stream=pieces.append)
    assert "".join(pieces) == streamed.text == generate("to be", writer, writing=writing).text
    assert streamed.text != generate("to be", writer, writing=Writing(max_tokens=40, seed=5)).text


def test_a_seed_leaves_the_callers_draws_alone(writer: Path) -> None:
    torch.manual_seed(9)
    wanted = torch.rand(3)
    torch.manual_seed(9)
    generate("to be", writer, writing=Writing(max_tokens=3, seed=1))
    assert torch.equal(torch.rand(3), wanted)


def test_beams_come_at_the_end(writer: Path) -> None:
    pieces: list[str] = []
    found = generate("to be", writer, writing=Writing(max_tokens=6, beams=3), stream=pieces.append)
    assert pieces == [found.text]


def test_the_command_prints_prompt_and_text(
    writer: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"to be\n")))
    assert main(["generate", str(writer), "-", "--seed", "3", "--max-tokens", "5"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("to be")
    assert "tokens written" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--top-p", "1.5"], "top_p is 1.5"),
        (["--top-k", "0"], "top_k is 0"),
        (["--beams", "0"], "beams is 0"),
        (["--seed", "-1"], "seed is -1"),
    ],
)
def test_bad_numbers(writer: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(writer), "to be", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("prompt", ["to \ud800 be", "to \0 be"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_prompt_of_half_characters(
    writer: Path, prompt: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(writer), prompt, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "prompt is 'to " in err
    assert "without NUL or surrogate characters" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError(), ZeroDivisionError()])
def test_what_the_reader_of_the_text_raises_is_not_the_models_fault(writer: Path, error: Exception) -> None:
    def full(text: str) -> None:
        raise error

    for writing in (Writing(max_tokens=3), Writing(max_tokens=3, beams=2)):
        with pytest.raises(type(error)) as raised:
            generate("to be", writer, writing=writing, stream=full)
        assert raised.value is error


def test_a_model_that_does_not_write(tmp_path: Path, tokenizer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _save(tmp_path / "guesser", LongspanForMaskedLM, tokenizer)
    assert main(["generate", str(folder), "to be"]) == 2
    assert "is a LongspanForMaskedLM, which does not continue texts" in capsys.readouterr().err


def test_a_text_longer_than_the_positions(tmp_path: Path, tokenizer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _save(tmp_path / "short", LongspanForCausalLM, tokenizer, max_position_embeddings=16)
    assert main(["generate", str(folder), "to be", "--max-tokens", "8"]) == 0
    capsys.readouterr()
    for arguments in (["to be", "--max-tokens", "30"], ["to be " * 9, "--max-tokens", "3"]):
        assert main(["generate", str(folder), *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "max_tokens" in err or "tokens" in err
        assert err.count("\n") == 1


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(tmp_path / "nothing"), "to be"]) == 2
    assert "nothing" in capsys.readouterr().err


@pytest.mark.parametrize("mechanism", ["longformer", "full"])
def test_a_long_prompt_is_read_in_pieces(mechanism: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    attention = {**WINDOW, "mechanism": mechanism} if mechanism == "longformer" else mechanism
    config = LongspanConfig(
        vocab_size=len(tokenizer), init_std=0.5, attention=attention, position_embedding="sinusoidal", **SIZES
    )
    model, read = LongspanForCausalLM(config).eval(), []
    model.register_forward_pre_hook(lambda _, args, given: read.append(given["input_ids"].shape[1]), with_kwargs=True)
    writing = Writing(max_tokens=5, temperature=0)
    prompt = "to be, or not to be: " * 3
    whole = generate(prompt, model, tokenizer, writing=writing)
    assert read[0] == whole.prompt_tokens > 50
    monkeypatch.setattr("longspan.inference.generate.PIECE", 19)
    read.clear()
    in_pieces = generate(prompt, model, tokenizer, writing=writing)
    assert max(read) == 19
    assert in_pieces.text == whole.text


@pytest.mark.parametrize(("mechanism", "pieces"), [("full", True), ("longformer", True), ("reformer", False)])
def test_only_what_goes_on_cheaply_reads_in_pieces(mechanism: str, pieces: bool) -> None:
    assert reads_in_pieces(LongspanForCausalLM(LongspanConfig(vocab_size=20, attention=mechanism, **SIZES))) is pieces
