"""Documents longer than the model: read in parts whose summaries are merged, and what the note says of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import longspan
from longspan.errors import InputError
from longspan_documents.inference.abstractive.parts import parts_of
from longspan_documents.inference.abstractive.summarizer import CUT
from longspan_documents.inference.summarize import load_summarizer
from longspan_documents.inference.verbs import Decoding
from longspan_documents.text.reading import document_of
from tiny_writers import SIZES, TEXT, peer, words, write_folder

Folder = Callable[[str], Path]
IN_PARTS = Decoding(beams=1, max_tokens=8, max_source_tokens=60)


@pytest.mark.parametrize("kind", SIZES)
def test_parts_are_summarised_and_their_summaries_merged(folder: Folder, kind: str) -> None:
    """The same by hand: transformers writes about each part, and then about what it wrote."""
    text = TEXT * 5
    summary = longspan.summarize(text, model=folder(kind), decoding=IN_PARTS)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder(kind))
    parts = parts_of(document_of(text).words, 60, lambda part: len(tokenizer(part)["input_ids"]), around=1)
    assert len(parts) == 3
    written = peer(folder(kind), parts, num_beams=1, max_new_tokens=8)
    (merged,) = peer(folder(kind), ["\n".join(written)], num_beams=1, max_new_tokens=8)
    assert words(summary) == words(merged)
    assert summary.tokens == len(tokenizer(text)["input_ids"])
    assert re.fullmatch(
        r"the document has 126 tokens and model '.*' reads 60 at once, so it was read in 3 parts, whose summaries were "
        "merged(; the summary reached its longest length .*)?",
        str(summary.note),
    )


def test_of_a_very_long_document_the_bundled_model_picks_what_is_read(folder: Folder) -> None:
    text = " ".join(f"The snail number {n} moves in the garden. Rain sees wall {n} at night." for n in range(90))
    summary = longspan.summarize(text, model=folder("Pegasus"), decoding=IN_PARTS)
    match = re.search(r"read in (\d+) parts of (\d+) that the bundled model picked", str(summary.note))
    assert match is not None
    assert int(match[1]) <= 16
    assert 600 < int(match[2]) <= 16 * 60
    assert summary.tokens > 16 * 60


def test_summaries_longer_than_the_model_reads_are_summarised_again(folder: Folder) -> None:
    decoding = Decoding(beams=1, max_tokens=8, max_source_tokens=40)
    summary = longspan.summarize(TEXT * 14, model=folder("T5"), decoding=decoding)
    assert words(summary)
    assert "whose summaries were merged" in str(summary.note)


def test_a_model_that_writes_more_than_it_reads_comes_to_an_end(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "t5", "T5", generation={"min_new_tokens": 50})
    decoding = Decoding(beams=1, max_tokens=50, max_source_tokens=40)
    assert words(longspan.summarize(TEXT * 5, model=folder, decoding=decoding))


def test_only_the_last_summary_is_streamed(folder: Folder) -> None:
    pieces: list[str] = []
    summary = longspan.summarize(TEXT * 5, model=folder("T5"), decoding=IN_PARTS, stream=pieces.append)
    assert words("".join(pieces)) == words(summary)


def test_a_model_that_reads_hardly_anything(folder: Folder) -> None:
    with pytest.raises(InputError, match="max_source_tokens"):
        longspan.summarize(TEXT, model=folder("T5"), decoding=Decoding(max_source_tokens=9))


def test_a_document_far_too_long_to_lengthen_for_is_read_in_parts(folder: Folder) -> None:
    text = TEXT * 42  # 1,051 tokens, and sixteen times the model's positions are 1,024
    decoding = Decoding(beams=1, max_tokens=4, long_documents="lengthen")
    summary = longspan.summarize(text, model=folder("Bart"), decoding=decoding)
    assert "that the bundled model picked" in str(summary.note)


def test_one_model_for_several_documents(folder: Folder) -> None:
    summarizer = load_summarizer(folder("T5"), decoding=Decoding(beams=1, max_tokens=7))
    for text in (TEXT, "Rain sleeps.", TEXT * 2):
        alone = longspan.summarize(text, model=summarizer)
        assert words(alone) == words(peer(folder("T5"), [text], num_beams=1, max_new_tokens=7)[0])


@pytest.mark.parametrize("kind", SIZES)
def test_several_documents_come_out_in_their_order_as_each_alone(
    folder: Folder, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [TEXT * 2, "Rain sleeps.", TEXT * 5, TEXT, "The old snail sees the rain of the green garden at night."]
    documents = [document_of(text) for text in texts]
    summarizer: Any = load_summarizer(folder(kind), decoding=IN_PARTS)
    alone = [summarizer.summarize(document) for document in documents]
    sizes: list[int] = []
    generate = summarizer.writer.model.generate

    def counted(**inputs: Any) -> Any:
        sizes.append(len(inputs["input_ids"]))
        return generate(**inputs)

    monkeypatch.setattr(summarizer.writer.model, "generate", counted)
    together = list(summarizer.summarize_several(documents))
    assert [words(one) for one in together] == [words(one) for one in alone]
    assert [(one.tokens, one.note) for one in together] == [(one.tokens, one.note) for one in alone]
    # The four that are read at once, then the parts of the third and the summary of theirs; where padding counts, those
    # of one length together.
    if kind == "BigBirdPegasus":
        assert sizes[:4] == [1, 1, 1, 1]
    else:
        assert sizes == [4, 3, 1]
        assert len({one.seconds for one in together}) == 2


def test_a_batch_that_is_full_is_given_before_the_next_is_read(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longspan_documents.inference.abstractive.writers.BATCH_TOKENS", 30)
    summarizer: Any = load_summarizer(folder("T5"), decoding=IN_PARTS)
    texts = ["Rain sleeps.", TEXT, "The snail sleeps."]
    given = [words(one) for one in summarizer.summarize_several([document_of(text) for text in texts])]
    assert given == [words(summarizer.summarize(document_of(text))) for text in texts]
    with pytest.raises(InputError, match="is given, but model"):
        next(summarizer.summarize_several([document_of(TEXT)], 3))


def test_a_summary_that_did_not_come_to_its_end_says_so(folder: Folder) -> None:
    """What transformers' own output holds: a token that ends the text, or none."""
    cut = []
    for kind in ("Pegasus", "MBart"):
        (text,) = peer(folder(kind), [TEXT], skip_special_tokens=False, num_beams=1, max_new_tokens=40)
        cut.append("</s>" not in text)
        summary = longspan.summarize(TEXT, model=folder(kind), decoding=Decoding(beams=1, max_tokens=40))
        assert (CUT in str(summary.note)) == cut[-1]
    assert cut == [True, False]
