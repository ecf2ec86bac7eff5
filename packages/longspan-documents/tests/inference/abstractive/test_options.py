"""What files of published models say of their use: limits that are none, languages, and values that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import longspan
from longspan.errors import InputError
from longspan_documents.inference.abstractive.options import UNBOUNDED, source_limit
from longspan_documents.inference.summarize import load_summarizer
from longspan_documents.inference.verbs import Decoding
from tiny_writers import TEXT, peer, with_fields, word_tokenizer, words, write_folder

Folder = Callable[[str], Path]


@pytest.mark.parametrize(
    ("kind", "fields", "longest", "limit"),
    [
        ("Pegasus", {}, 512, (64, True)),
        ("LED", {}, 1e30, (64, True)),
        ("T5", {"n_positions": 512}, 1e30, (512, False)),
        ("T5", {}, 300, (300, False)),
        ("T5", {}, 1e30, (UNBOUNDED, False)),
        ("T5", {"n_positions": -1}, 10**18, (UNBOUNDED, False)),
    ],
)
def test_how_much_a_model_reads(
    folder: Folder, kind: str, fields: dict[str, Any], longest: float, limit: tuple[int, bool]
) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder(kind))
    for name, value in fields.items():
        setattr(model.get_encoder().config, name, value)
    tokenizer = word_tokenizer(model_max_length=longest)
    assert source_limit(model, tokenizer) == limit


def test_an_encoder_that_counts_positions_from_the_paddings_id() -> None:
    """RoBERTa's table of 66 has rows for 64 tokens."""
    from transformers import EncoderDecoderConfig, EncoderDecoderModel, RobertaConfig

    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    half = RobertaConfig(vocab_size=40, max_position_embeddings=66, pad_token_id=1, **sizes)
    model = EncoderDecoderModel(EncoderDecoderConfig.from_encoder_decoder_configs(half, half))
    assert source_limit(model, word_tokenizer()) == (64, True)


@pytest.mark.parametrize("kind", ["MBart", "MT5"])
def test_the_language_that_is_written(tmp_path: Path, kind: str) -> None:
    tokenizer = word_tokenizer(additional_special_tokens=["en_XX", "de_DE"])
    english, german = tokenizer.convert_tokens_to_ids(["en_XX", "de_DE"])
    generation = {"min_new_tokens": 6, "forced_bos_token_id": english}
    folder = write_folder(tmp_path / kind, kind, tokenizer=tokenizer, generation=generation)
    decoding = Decoding(beams=1, max_tokens=10)
    written = {
        language: longspan.summarize(TEXT, model=folder, decoding=decoding, language=language)
        for language in (None, "en", "de")
    }
    expected = {
        language: peer(folder, [TEXT], num_beams=1, max_new_tokens=10, forced_bos_token_id=code)[0]
        for language, code in ((None, english), ("en", english), ("de", german))
    }
    assert {key: words(text) for key, text in written.items()} == {key: words(text) for key, text in expected.items()}
    assert expected["en"] != expected["de"]
    with pytest.raises(InputError, match=r"language='fr' is none that model .* writes; choose one of de, en"):
        longspan.summarize(TEXT, model=folder, language="fr")


def test_a_language_that_is_the_first_token_of_the_decoder(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(additional_special_tokens=["en_XX", "de_DE"])
    english, german = tokenizer.convert_tokens_to_ids(["en_XX", "de_DE"])
    generation = {"min_new_tokens": 6, "decoder_start_token_id": english}
    folder = write_folder(tmp_path / "m", "MBart", tokenizer=tokenizer, generation=generation)
    decoding = Decoding(beams=1, max_tokens=10)
    summary = longspan.summarize(TEXT, model=folder, decoding=decoding, language="de")
    assert words(summary) == words(
        peer(folder, [TEXT], num_beams=1, max_new_tokens=10, decoder_start_token_id=german)[0]
    )


def test_nothing_is_drawn(tmp_path: Path) -> None:
    """The same document has the same summary, whatever a model's files say of drawing."""
    folder = write_folder(tmp_path / "t5", "T5", generation={"do_sample": True, "temperature": 3.0, "top_p": 0.9})
    summary = longspan.summarize(TEXT, model=folder, decoding=Decoding(beams=1, max_tokens=10))
    assert words(summary) == words(peer(folder, [TEXT], num_beams=1, max_new_tokens=10, do_sample=False)[0])


def test_a_shortest_length_gives_way_to_what_is_asked_for(folder: Folder) -> None:
    summary = longspan.summarize(TEXT, model=folder("Pegasus"), decoding=Decoding(beams=1, max_tokens=3))
    assert len(words(summary)) <= 3


def test_a_model_that_says_no_length_writes_more_than_twenty_tokens(tmp_path: Path) -> None:
    """Transformers' own default is a total of twenty."""
    folder = write_folder(tmp_path / "t5", "T5", generation={"min_length": 40})
    assert len(words(longspan.summarize(TEXT, model=folder))) > 30


def test_values_of_summaries_that_no_model_can_have(folder: Folder, tmp_path: Path) -> None:
    params = {"summarization": {"num_beams": "many"}}
    source = with_fields(folder("T5"), tmp_path / "t5", task_specific_params=params)
    with pytest.raises(InputError, match=r"task_specific_params\.summarization .* num_beams"):
        load_summarizer(source)
    assert AutoTokenizer.from_pretrained(source) is not None
