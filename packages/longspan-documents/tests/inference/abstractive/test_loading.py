"""Models that do not summarise, devices and types that are none: one sentence each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import longspan
from longspan.errors import InputError
from longspan_documents.inference.verbs import Decoding
from tiny_writers import TEXT, peer, with_fields, word_tokenizer, words

Folder = Callable[[str], Path]


@pytest.mark.parametrize("device", ["graphics", "cuda:99"])
def test_a_device_that_is_not_there(folder: Folder, device: str) -> None:
    with pytest.raises(InputError, match=f"device='{device}' is not on this machine"):
        longspan.summarize(TEXT, model=folder("T5"), device=device)


def test_the_processor_is_a_device(folder: Folder) -> None:
    plain = longspan.summarize(TEXT, model=folder("T5"))
    assert longspan.summarize(TEXT, model=folder("T5"), device="cpu", dtype="float32").text == plain.text


def test_a_type_that_is_none(folder: Folder) -> None:
    with pytest.raises(InputError, match="dtype is 'int8'; choose 'float32', 'bfloat16' or 'float16'"):
        longspan.summarize(TEXT, model=folder("T5"), dtype="int8")


def test_the_bundled_model_decodes_nothing() -> None:
    with pytest.raises(InputError, match="leave the options for decoding out, or give a model"):
        longspan.summarize(TEXT, decoding=Decoding(beams=2))


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


@pytest.mark.parametrize("kind", ["Bart", "T5"])
def test_a_bare_model_writes_with_its_token_table(folder: Folder, tmp_path: Path, kind: str) -> None:
    """As BART is published; old files of T5 name a class that transformers no longer has."""
    import transformers

    source = tmp_path / kind
    if kind == "Bart":
        transformers.BartModel.from_pretrained(folder(kind)).save_pretrained(source)
        assert "BartModel" in (source / "config.json").read_text(encoding="utf-8")
        for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder(kind) / name, source / name)
    else:
        with_fields(folder(kind), source, architectures=["T5WithLMHeadModel"])
    decoding = Decoding(beams=1, max_tokens=9)
    assert longspan.summarize(TEXT, model=source, decoding=decoding).text == (
        longspan.summarize(TEXT, model=folder(kind), decoding=decoding).text
    )


def test_two_models_that_were_joined(tmp_path: Path) -> None:
    from transformers import BertConfig, EncoderDecoderConfig, EncoderDecoderModel

    tokenizer = word_tokenizer()
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    half: Any = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, initializer_range=0.9, **sizes)
    config = EncoderDecoderConfig.from_encoder_decoder_configs(half, half, pad_token_id=0, decoder_start_token_id=1)
    model = EncoderDecoderModel(config)
    model.generation_config.update(pad_token_id=0, decoder_start_token_id=1, eos_token_id=2, bos_token_id=1)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    summary = longspan.summarize(TEXT, model=tmp_path, decoding=Decoding(beams=1, max_tokens=9))
    assert words(summary) == words(peer(tmp_path, [TEXT], num_beams=1, max_new_tokens=9)[0]) != []
    long = longspan.summarize(TEXT * 5, model=tmp_path, decoding=Decoding(beams=1, max_tokens=9))
    assert "reads 64 at once, so it was read in 3 parts" in str(long.note)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("T5ForSequenceClassification", "is a classifier: give it to `longspan classify --model`"),
        ("T5EncoderModel", "is an encoder: give it to"),
        ("BartForCausalLM", "a language model whose tokenizer has no chat template"),
        ("BartForQuestionAnswering", "is a model of questions: give it to `longspan answer --model`"),
    ],
)
def test_other_heads_of_models_that_write(folder: Folder, tmp_path: Path, name: str, says: str) -> None:
    source = with_fields(folder("Bart" if name.startswith("Bart") else "T5"), tmp_path / "m", architectures=[name])
    with pytest.raises(InputError, match=f"is a {name}, .*{says}"):
        longspan.summarize(TEXT, model=source)
