"""Every kind of model that writes gives, token for token, what transformers' own `generate` gives on equal inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import longspan
from longspan.errors import InputError
from longspan_documents.inference.abstractive.summarizer import CUT
from longspan_documents.inference.abstractive.writers import Asked
from longspan_documents.inference.summarize import load_summarizer
from longspan_documents.inference.verbs import Decoding
from longspan_documents.text.reading import document_of
from tiny_writers import SIZES, TEXT, peer, with_fields, word_tokenizer, words, write_folder

Folder = Callable[[str], Path]
OTHER = "Rain sleeps in the old garden. The wall sees a slow snail. "


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("beams", [1, 3])
def test_a_short_document(folder: Folder, kind: str, beams: int) -> None:
    summary = longspan.summarize(TEXT, model=folder(kind), decoding=Decoding(beams=beams, max_tokens=19))
    (expected,) = peer(folder(kind), [TEXT], num_beams=beams, max_new_tokens=19)
    assert words(summary) == words(expected)
    assert len(words(summary)) >= 4
    assert summary.note in (None, CUT)
    assert summary.tokens == len(AutoTokenizer.from_pretrained(folder(kind))(TEXT)["input_ids"])


@pytest.mark.parametrize("kind", SIZES)
def test_a_batch_is_as_each_alone(folder: Folder, kind: str) -> None:
    texts = [TEXT, OTHER, "The snail."]
    summarizer: Any = load_summarizer(folder(kind), decoding=Decoding(beams=1, max_tokens=11))
    writer = summarizer.writer
    written = writer.write([writer.encode(text, Asked()) for text in texts])
    assert [words(text) for text, _ in written] == list(
        map(words, peer(folder(kind), texts, num_beams=1, max_new_tokens=11))
    )


def test_what_a_configuration_says_of_summaries_is_done(folder: Folder, tmp_path: Path) -> None:
    of_summaries = {"prefix": "summarize: ", "num_beams": 2, "max_length": 15, "no_repeat_ngram_size": 2}
    params = {"summarization": of_summaries, "translation": {"prefix": "translate: "}}
    source = with_fields(folder("T5"), tmp_path / "t5", task_specific_params=params)
    summary = longspan.summarize(TEXT, model=source)
    options: dict[str, Any] = {"num_beams": 2, "max_length": 15, "no_repeat_ngram_size": 2}
    (expected,) = peer(source, [f"summarize: {TEXT}"], **options)
    assert words(summary) == words(expected)
    # What is asked for comes first.
    longer = longspan.summarize(TEXT, model=source, decoding=Decoding(max_tokens=20, beams=1))
    (expected,) = peer(source, [f"summarize: {TEXT}"], num_beams=1, max_new_tokens=20, no_repeat_ngram_size=2)
    assert words(longer) == words(expected)


def test_the_generation_configuration_comes_before_the_task(tmp_path: Path) -> None:
    generation = {"num_beams": 3, "max_length": 12, "min_length": 10}
    source = write_folder(tmp_path / "pegasus", "Pegasus", generation=generation)
    params = {"summarization": {"num_beams": 1, "max_length": 30}}
    source = with_fields(source, tmp_path / "copy", task_specific_params=params)
    assert words(longspan.summarize(TEXT, model=source)) == words(peer(source, [TEXT], max_length=12)[0])


@pytest.mark.parametrize("kind", ["T5", "Bart", "LED"])
def test_pieces_as_they_are_written(folder: Folder, kind: str) -> None:
    pieces: list[str] = []
    summary = longspan.summarize(
        TEXT, model=folder(kind), decoding=Decoding(beams=1, max_tokens=9), stream=pieces.append
    )
    assert words("".join(pieces)) == words(summary)
    assert len(pieces) > 3
    pieces.clear()  # beams know their text at the end
    summary = longspan.summarize(
        TEXT, model=folder(kind), decoding=Decoding(beams=2, max_tokens=9), stream=pieces.append
    )
    assert len(pieces) == 1
    assert words("".join(pieces)) == words(summary)


def test_what_a_stream_raises_comes_as_it_is(folder: Folder) -> None:
    def full(piece: str) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        longspan.summarize(TEXT, model=folder("T5"), decoding=Decoding(beams=1), stream=full)


def test_half_precision(folder: Folder) -> None:
    summarizer: Any = load_summarizer(folder("T5"), dtype="bfloat16")
    assert {weight.dtype for weight in summarizer.writer.model.parameters()} == {torch.bfloat16}
    assert summarizer.summarize(document_of(TEXT)).text


@pytest.mark.parametrize("kind", ["T5", "Bart"])
def test_a_query_is_refused_by_a_model_that_reads_none(folder: Folder, kind: str) -> None:
    with pytest.raises(InputError, match="reads no query"):
        longspan.summarize(TEXT, model=folder(kind), query="What does the snail do?")


@pytest.mark.parametrize("kind", ["T5", "Pegasus"])
def test_a_number_of_sentences_is_refused(folder: Folder, kind: str) -> None:
    with pytest.raises(InputError, match=r"sentences=3 is given, but model .* writes"):
        longspan.summarize(TEXT, 3, folder(kind))


def test_more_tokens_than_there_are_positions(folder: Folder) -> None:
    with pytest.raises(InputError, match="max_source_tokens=65 is more than the 64 tokens"):
        longspan.summarize(TEXT, model=folder("Pegasus"), decoding=Decoding(max_source_tokens=65))
    with pytest.raises(InputError, match="max_tokens=99 is more than the 63 tokens"):
        longspan.summarize(TEXT, model=folder("Pegasus"), decoding=Decoding(max_tokens=99))
    # T5 tells positions by distance, and has no last one.
    assert longspan.summarize(TEXT, model=folder("T5"), decoding=Decoding(max_source_tokens=5_000, max_tokens=99)).text


def test_a_model_is_lengthened_as_the_command_does(folder: Folder, tmp_path: Path) -> None:
    text = TEXT * 5  # 126 tokens, where the model has 64 positions
    decoding = Decoding(beams=1, max_tokens=12, long_documents="lengthen")
    summary = longspan.summarize(text, model=folder("Bart"), decoding=decoding)
    assert "lengthened to 128" in str(summary.note)
    assert "long_documents='parts'" in str(summary.note)
    longer = longspan.lengthen(folder("Bart"), "longformer", 128, left_tokens=32, right_tokens=32)
    longer.save_pretrained(tmp_path / "long")
    AutoTokenizer.from_pretrained(folder("Bart")).save_pretrained(tmp_path / "long")
    again = longspan.summarize(text, model=tmp_path / "long", decoding=Decoding(beams=1, max_tokens=12))
    assert again.note in (None, CUT)
    assert words(again) == words(summary)


@pytest.mark.parametrize("kind", ["MBart", "LED", "BigBirdPegasus", "Pegasus", "Marian"])
def test_other_models_that_can_be_lengthened(folder: Folder, kind: str) -> None:
    decoding = Decoding(beams=1, max_tokens=5, long_documents="lengthen")
    summary = longspan.summarize(TEXT * 5, model=folder(kind), decoding=decoding)
    assert "lengthened to 128" in str(summary.note)


def test_tokens_between_documents_are_global_in_primera(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(additional_special_tokens=["<doc-sep>"])
    folder = write_folder(tmp_path / "led", "LED", tokenizer=tokenizer, generation={"min_new_tokens": 6})
    text = f"{TEXT} <doc-sep> {OTHER}"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    marked = ids == tokenizer.convert_tokens_to_ids("<doc-sep>")
    assert marked.sum() == 1
    marked[0, 0] = True
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    output = model.generate(ids, global_attention_mask=marked.long(), num_beams=1, max_new_tokens=12)
    summary = longspan.summarize(text, model=folder, decoding=Decoding(beams=1, max_tokens=12), raw=True)
    assert words(summary) == words(tokenizer.decode(output[0], skip_special_tokens=True))


@pytest.mark.parametrize("kind", ["T5", "MT5", "LongT5"])
def test_models_that_tell_places_by_distance_are_lengthened_in_place(kind: str, tmp_path: Path) -> None:
    source = write_folder(tmp_path / kind, kind, tokenizer=word_tokenizer(model_max_length=64))
    summarizer: Any = load_summarizer(source, decoding=Decoding(beams=1, max_tokens=9, long_documents="lengthen"))
    long = summarizer.summarize(document_of(TEXT * 5))  # 126 tokens, of 64
    assert "lengthened to 128" in str(long.note)
    # Its windows show all of a short text, and all but some pairs of the long one.
    (expected,) = peer(source, [TEXT], num_beams=1, max_new_tokens=9)
    assert words(summarizer.summarize(document_of(TEXT))) == words(expected)
    assert summarizer.writer.limit == 64
