"""Models that do not summarise, devices and types that are none: one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import longspan
from longspan.errors import InputError
from tiny_writers import TEXT, word_tokenizer

Folder = Callable[[str], Path]


@pytest.mark.parametrize("device", ["graphics", "cuda:99"])
def test_a_device_that_is_not_there(folder: Folder, device: str) -> None:
    with pytest.raises(InputError, match=f"device='{device}' is not on this machine"):
        longspan.summarize(TEXT, model=folder("T5"), device=device)


def test_the_processor_is_a_device(folder: Folder) -> None:
    plain = longspan.summarize(TEXT, model=folder("T5"))
    assert longspan.summarize(TEXT, model=folder("T5"), device="cpu", dtype="float32").text == plain.text


def test_a_type_that_is_none(folder: Folder) -> None:
    with pytest.raises(InputError, match="dtype='int8' is not known; choose one of float32, bfloat16, float16"):
        longspan.summarize(TEXT, model=folder("T5"), dtype="int8")


def test_the_bundled_model_takes_neither() -> None:
    with pytest.raises(InputError, match="leave the options for decoding, device and dtype out"):
        longspan.summarize(TEXT, dtype="bfloat16")


def test_a_tokenizer_of_another_model(folder: Folder, tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM

    AutoModelForSeq2SeqLM.from_pretrained(folder("T5")).save_pretrained(tmp_path / "t5")
    tokenizer = word_tokenizer()
    tokenizer.add_tokens([f"more{number}" for number in range(50)])
    tokenizer.save_pretrained(tmp_path / "t5")
    with pytest.raises(InputError, match="use the tokenizer of this model"):
        longspan.summarize(TEXT, model=tmp_path / "t5")


def test_damaged_weights(folder: Folder, tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder("Pegasus"))
    model.get_encoder().layers[0].fc1.weight.data[0, 0] = float("nan")
    model.save_pretrained(tmp_path / "p")
    word_tokenizer().save_pretrained(tmp_path / "p")
    with pytest.raises(InputError, match="holds NaN or infinity"):
        longspan.summarize(TEXT, model=tmp_path / "p")
    assert torch.isnan(model.get_encoder().layers[0].fc1.weight).any()
