"""Arguments of the wrong kind, given in Python: one sentence with the argument's name, whatever is handed over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import longspan
from longspan.errors import InputError
from longspan.inference.generate import Writing
from longspan.patterns import parse
from longspan.settings import check_kind

TEXT = "Marmots live in the mountains. They sleep all winter. A whistle warns them of eagles."
QUERY = torch.ones(1, 2, 5, 4)
SIZES = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
SIZES |= {"intermediate_size": 16}
WRONG: dict[str, Any] = {
    "a fraction": 1.5,
    "a far too large number": 2**70,
    "bytes": b"\xff",
    "a list of nothing": [None],
    "a mapping": {"a": 1},
    "an object": object(),
    "an array": np.array([1, 2]),
    "a tensor": torch.ones(2),
    "a function": len,
    "a class": int,
}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any], list[str]]] = {
    "summarize": (
        longspan.summarize,
        {"text": TEXT},
        ["text", "sentences", "words", "length", "query", "language", "model", "raw"],
    ),
    "answer": (
        longspan.answer,
        {"document": TEXT, "question": "what sleeps?"},
        ["document", "question", "top", "threshold", "model", "raw"],
    ),
    "choose": (
        longspan.choose,
        {"document": TEXT, "question": "what?", "candidates": ["a", "b"], "model": "nowhere/"},
        ["document", "model"],
    ),
    "classify": (longspan.classify, {"document": TEXT, "model": "nowhere/"}, ["document", "model"]),
    "embed": (longspan.embed, {"texts": TEXT}, ["texts", "model"]),
    "embed_document": (longspan.embed_document, {"document": TEXT}, ["document", "model", "language"]),
    "generate": (longspan.generate, {"prompt": "a", "model": "nowhere/"}, ["prompt", "model", "writing"]),
    "index": (longspan.index, {"documents": TEXT, "output": "out", "model": "nowhere/"}, ["output", "model", "dtype"]),
    "DocumentIndex": (longspan.DocumentIndex, {"folder": "nowhere"}, ["folder"]),
    "attend": (
        longspan.attend,
        {"query": QUERY, "key": QUERY, "value": QUERY, "pattern": parse("window(2)")},
        ["query", "key", "value", "pattern", "terms", "key_mask", "globals", "global_rows", "query_offset", "backend"],
    ),
    "use_attention": (longspan.use_attention, {"model": None, "pattern": "window(2)"}, ["model"]),
    "to_onnx": (longspan.to_onnx, {"model": None, "file": "a.onnx"}, ["model", "file"]),
    "LongspanConfig": (longspan.LongspanConfig, SIZES, ["decoder_layers", "normalization", "cutoffs", "head"]),
    "Writing": (Writing, {}, ["max_tokens", "temperature", "top_k", "beams", "seed"]),
}
FITS = {("Writing", "temperature", "a fraction"), ("answer", "top", "a far too large number")}
"""Which of these are no mistake."""
CASES = [
    (name, argument, kind)
    for name, (_, _, arguments) in CALLS.items()
    for argument in arguments
    for kind in WRONG
    if (name, argument, kind) not in FITS
]


@pytest.mark.parametrize(("name", "argument", "kind"), CASES)
def test_what_is_of_the_wrong_kind_is_named(
    name: str, argument: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    function, right, _ = CALLS[name]
    with pytest.raises(InputError) as raised:
        function(**{**right, argument: WRONG[kind]})
    message = str(raised.value)
    assert len(message) < 700
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    assert len(longspan.summarize(TEXT, sentences=np.int64(2)).sentences) == 2  # type: ignore[arg-type]
    assert len(longspan.answer(TEXT, "what sleeps?", top=np.int32(1)).passages) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("document", ["Half \ud83d a character stands here.", "\ud800 and more words stand here."])
def test_half_a_character_of_a_text_is_mended(document: str) -> None:
    embedded = longspan.embed_document(document)
    assert embedded.vectors.shape[0] == len(embedded.sentences) == 1
    assert np.isfinite(longspan.embed(document)).all()


def test_a_path_with_half_a_character() -> None:
    with pytest.raises(InputError, match="holds half a character"):
        longspan.index(TEXT, "out\ud800", "nowhere/")


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "a/" * 3000])
def test_a_model_whose_name_no_system_can_look_for(name: str) -> None:
    for load in (longspan.from_transformers, longspan.lengthen, lambda given: longspan.summarize(TEXT, model=given)):
        with pytest.raises(InputError, match="cannot be used"):
            load(name)


def test_a_kind_is_told_with_value_type_and_remedy() -> None:
    with pytest.raises(InputError, match=r"^top is 'three', of type str; give a whole number$"):
        check_kind("three", "top", int, "a whole number")
    with pytest.raises(InputError, match="raw is True, of type bool; give a whole number"):
        check_kind(True, "raw", int, "a whole number")
