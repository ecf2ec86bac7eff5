"""`longspan summarize --model` with models that write: what they write, documents longer than they are, pieces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import longspan
from longspan.models import LongspanConfig, LongspanForPrefixLM
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.inference.verbs import Decoding
from marmots import TEXT, run, write


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([TEXT], 330, simplify=True)


@pytest.fixture(scope="module")
def bart(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(3)
    sizes = {f"{part}_{size}": 8 for part in ("encoder", "decoder") for size in ("ffn_dim",)}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    config = BartConfig(vocab_size=len(tokenizer), d_model=8, max_position_embeddings=600, **sizes, **heads)
    return write(tmp_path_factory.mktemp("bart"), BartForConditionalGeneration(config), tokenizer)


def test_a_model_that_writes(document: Path, bart: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(document, "--model", bart, "--beams", 2, "--max-tokens", 12, "--json") == 0
    record = json.loads(capsys.readouterr().out)[0]
    assert all(sentence["start"] is None for sentence in record["sentences"])
    # The same model as transformers runs it.
    from transformers import AutoTokenizer, BartForConditionalGeneration

    peer = BartForConditionalGeneration.from_pretrained(bart)
    ids = AutoTokenizer.from_pretrained(bart)(TEXT, return_tensors="pt")
    assert record["tokens"] == ids["input_ids"].shape[1]
    written = peer.generate(input_ids=ids["input_ids"], num_beams=2, max_new_tokens=12)
    words = AutoTokenizer.from_pretrained(bart).decode(written[0], skip_special_tokens=True)
    assert " ".join(sentence["text"] for sentence in record["sentences"]).split() == words.split()


def test_several_files_are_written_in_batches_and_told_in_their_order(
    tmp_path: Path, bart: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("b.txt", "a.txt", "c.txt")]
    for file, text in zip(files, (TEXT, TEXT * 20, TEXT[:300]), strict=True):
        file.write_text(text, encoding="utf-8")
    options = ("--model", bart, "--max-tokens", 5)
    assert run(*files, *options, "--json") == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["file"] for record in records] == [*map(str, files)]
    for record, file in zip(records, files, strict=True):
        assert run(file, *options, "--json") == 0
        (alone,) = json.loads(capsys.readouterr().out)
        assert (alone["sentences"], alone["tokens"]) == (record["sentences"], record["tokens"])
    assert run(*files, *options) == 0
    out, err = capsys.readouterr()
    headings = [line for line in out.splitlines() if line.startswith("== ")]
    assert headings == [f"== {file} ==" for file in files]
    places = [err.index(f"[{file}: ") for file in files]
    assert places == sorted(places)
    assert run(*files, *options, "--query", " ") == 2
    assert "query is blank" in capsys.readouterr().err


@pytest.mark.parametrize(("long", "says"), [("lengthen", "lengthened to 4,800"), ("parts", "read in 6 parts")])
def test_a_document_too_long_for_a_model_that_writes(
    tmp_path: Path, bart: Path, capsys: pytest.CaptureFixture[str], long: str, says: str
) -> None:
    path = tmp_path / "long.txt"
    path.write_text(TEXT * 20, encoding="utf-8")
    assert run(path, "--model", bart, "--long-documents", long, "--max-tokens", 5) == 0
    error = capsys.readouterr().err
    assert "reads 600" in error
    assert f"so it was {says}" in error


def test_a_single_stack_is_lengthened_with_its_own_mechanism(tmp_path: Path, tokenizer: Any) -> None:
    config = LongspanConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        attention="full",
        max_position_embeddings=90,
    )
    folder = write(tmp_path / "prefix", LongspanForPrefixLM(config), tokenizer)
    longer = longspan.summarize(TEXT, model=str(folder), decoding=Decoding(long_documents="lengthen"))
    assert "lengthened to 157" in str(longer.note)
    assert "reads 67 at once, so it was read in " in str(longspan.summarize(TEXT, model=str(folder)).note)


def test_a_summary_is_printed_as_it_is_written(document: Path, bart: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model", bart, "--beams", 1, "--max-tokens", 12)
    assert run(document, *options, "--stream") == 0
    streamed = capsys.readouterr()
    assert run(document, *options, "--no-stream") == 0
    printed = capsys.readouterr()
    assert streamed.out.split() == printed.out.split()
    assert streamed.out.endswith("\n")
    assert run(document, "--stream", "-n", 1) == 0  # picked, not written
    assert capsys.readouterr().out.strip() in TEXT


def test_one_summary_is_printed_as_it_is_written(document: Path, bart: Path, refused: Callable[..., str]) -> None:
    options = ("--model", bart, "--stream")
    assert "--stream prints one summary" in refused("summarize", document, *options, "--json")
    assert "2 files" in refused("summarize", document, document, *options)


def test_an_outline_needs_a_model_that_picks(document: Path, bart: Path, refused: Callable[..., str]) -> None:
    sentence = refused("summarize", document, "--outline", "--model", bart, "--max-tokens", 5)
    assert "needs a model that picks" in sentence
