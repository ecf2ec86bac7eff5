"""What a worker makes of documents, beside the functions that anyone can call."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

import longspan
from longspan.cli import main
from longspan.errors import InputError
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.serve.jobs import Models
from longspan_documents.serve.limits import Limits
from longspan_documents.serve.requests import (
    Answered,
    Chunked,
    Content,
    EmbeddedDocument,
    EmbeddedTexts,
    Embeddings,
    Reranking,
    Summarized,
)
from longspan_documents.serve.worker import JobRunner, Remembered, do
from longspan_documents.text.reading import document_of, read

TEXT = (
    "Lead acetate tastes sweet. It is poisonous, and Romans boiled wine in pots of lead. "
    "Nobody knew why people fell ill.\n\nGlaciers move slowly. They carry stones for miles, and leave them when they "
    "melt. A stone in a field may have come from far away.\n\nBees dance to tell where flowers are. The "
    "dance gives the "
    "direction and the distance. Karl von Frisch described it."
)
GIVEN = {"id": None, "name": "the text", "text": TEXT}


@pytest.fixture(scope="module")
def runner() -> JobRunner:
    told: list[dict[str, Any]] = []
    runner = JobRunner(lambda **said: told.append(said))
    runner.__dict__["told"] = told
    return runner


def test_results_are_those_of_the_functions(runner: JobRunner) -> None:
    document = document_of(TEXT, name="the text")
    for extent in ({"sentences": 2}, {"words": 20}, {"length": "short"}):
        done = runner.summarize(GIVEN, extent, scores=True)
        expected = longspan.summarize(document, **extent)
        assert [(one["start"], one["text"]) for one in done["sentences"]] == [
            (one.start, one.text) for one in expected.sentences
        ]
        assert done["scores"] == [[one.start, one.score] for one in expected.document]
    (answered,) = runner.answer([GIVEN], ["who described the dance?"], {"top": 2})
    found = asdict(longspan.answer(document, "who described the dance?", top=2))
    for passage, other in zip(answered["passages"], found["passages"], strict=True):
        assert {**passage, "document": 0} == other
    assert answered["answered"] == found["answered"]
    assert answered["sure"] == longspan.answer(document, "who described the dance?", top=2).sure
    assert set(answered) == set(Answered.model_fields)  # what the API says of it
    for question in (
        Answered(**answered),
        Answered(**runner.answer([GIVEN], ["what does a zeppelin cost?"], {"top": 2, "threshold": 1.0})[0]),
    ):
        assert question.sure == ("probably not there" if not question.answered else answered["sure"])
    (embedded,) = runner.embed([GIVEN], {"sentences": True})
    vectors = longspan.embed_document(document)
    np.testing.assert_allclose(embedded["vector"], vectors.vector, atol=1e-6)
    assert len(embedded["sentences"]) == len(vectors.sentences) == 9
    loose = runner.embed_texts(["bees", "stones"])
    np.testing.assert_allclose(loose["vectors"], longspan.embed(["bees", "stones"]), atol=1e-6)
    assert loose["tokens"] >= 2
    assert len(runner.embed_texts(["paper.pdf"])["vectors"]) == 1  # the name of a file is a text like any other here
    assert any(said.get("progress", 0) > 0 for said in runner.__dict__["told"])


def test_what_is_shown_is_the_whole_document_and_nothing_steers_it(runner: JobRunner, tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    file.write_text(
        "# A title\n\nOne thing. Another \u202ething\x9b.\n\n- first point here\n- second point\n\n    code()\n"
    )
    given = {"id": "k", "name": "notes.md", "path": str(file)}
    shown, document = runner.content(given), read(file)
    assert shown["title"] == "A title"
    assert len(shown["blocks"]) == len(document.blocks)
    sentences = []
    for block, own in zip(shown["blocks"], document.blocks, strict=True):
        assert "".join(words for words, _ in block["runs"]) == own.text.replace("\u202e", "\ufffd").replace(
            "\x9b", "\ufffd"
        )
        sentences += [place for _, place in block["runs"] if place is not None]
    assert sentences == [place for place, _ in runner.summarize(given, {}, scores=True)["scores"]]
    assert shown["sentences"] == len(sentences) == 4


def test_what_cannot_be_done_is_one_sentence_that_names_the_file_as_its_owner_does(
    runner: JobRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistakes = {"empty.txt": b"", "blank.txt": b" \n", "program": b"\x7fELF\0\0", "torn.pdf": b"%PDF-1.4\nno more"}
    for name, data in mistakes.items():
        file = tmp_path / f"secret-{name}"
        file.write_bytes(data)
        done = do(runner, {"kind": "read", "arguments": {"document": {"id": name, "name": name, "path": str(file)}}})
        assert done["status"] == 422
        assert done["error"].startswith(name), done
        assert str(tmp_path) not in done["error"]

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(runner.summarizer, "summarize", full)
    done = do(runner, {"kind": "summarize", "arguments": {"document": GIVEN, "options": {}, "scores": False}})
    assert done["status"] == 413
    assert done["error"].startswith("memory ran out")


def test_the_latest_are_remembered() -> None:
    made: list[int] = []
    remembered = Remembered(2)
    for key in (1, 2, 1, 3, 1, 2):
        assert remembered.value(key, lambda key=key: made.append(key) or key) == key
    assert made == [1, 2, 3, 2]


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Any]:
    """A random sentence encoder and a random cross-encoder, as folders."""
    tokenizer = train_tokenizer([TEXT] * 9, 300)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=256,
        pad_token_id=1,
    )
    config.num_labels = 1
    kinds = {"encoder": BertModel, "reranker": BertForSequenceClassification}
    for name, kind in kinds.items():
        kind(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    return {name: str(tmp_path / name) for name in kinds}


def test_an_encoder_and_a_reranker_of_ones_own(models: dict[str, Any]) -> None:
    runner = JobRunner(lambda **_: None, **models)
    document = document_of(TEXT, name="the text")
    (answered,) = runner.answer([GIVEN], ["who described the dance?"], {})
    found = asdict(longspan.answer(document, "who described the dance?", **models))
    assert [{**passage, "document": 0} for passage in answered["passages"]] == list(found["passages"])
    encoder = models["encoder"]
    (embedded,) = runner.embed([GIVEN], {})
    np.testing.assert_allclose(embedded["vector"], longspan.embed_document(document, encoder=encoder).vector, atol=1e-6)
    loose = runner.embed_texts(["bees", "stones"])
    assert np.shape(loose["vectors"]) == (2, 24)
    np.testing.assert_allclose(loose["vectors"], longspan.embed(["bees", "stones"], encoder=encoder), atol=1e-6)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    assert loose["tokens"] == sum(len(tokenizer(text)["input_ids"]) for text in ("bees", "stones"))
    done = runner.summarize(GIVEN, {"sentences": 2, "query": "bees"}, scores=False)
    expected = longspan.summarize(document, sentences=2, query="bees", encoder=encoder)
    assert [one["start"] for one in done["sentences"]] == [one.start for one in expected.sentences]


def test_embeddings_are_cut_and_brought_to_length_1(runner: JobRunner) -> None:
    texts = ["bees", "stones"]
    whole = longspan.embed(texts)
    for dimensions in (None, whole.shape[1], 7, 1):
        given = runner.embeddings(texts, "float", dimensions)
        vectors = np.array([one["embedding"] for one in given["data"]])
        cut = whole[:, :dimensions]
        np.testing.assert_allclose(vectors, cut / np.linalg.norm(cut, axis=1, keepdims=True), atol=1e-6)
        assert Embeddings.model_validate(given, extra="forbid").data[1].index == 1
    coded = runner.embeddings(["bees"], "base64", 7)["data"][0]["embedding"]
    expected = runner.embeddings(["bees"], "float", 7)["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(coded), "<f4"), expected, atol=1e-7)
    with pytest.raises(InputError, match=f"dimensions=100000 is not to be had; .* at most {whole.shape[1]}"):
        runner.embeddings(texts, "float", 100_000)


def test_texts_are_reranked_by_the_model(models: dict[str, Any]) -> None:
    runner = JobRunner(lambda **_: None, reranker=models["reranker"])
    texts = ["Bees dance.", "Glaciers move slowly.", "Romans boiled wine in pots of lead.", "Bees dance."]
    model = BertForSequenceClassification.from_pretrained(models["reranker"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(models["reranker"])
    with torch.inference_mode():
        pairs = [tokenizer("who dances?", text, return_tensors="pt") for text in texts]
        scores = torch.stack([torch.sigmoid(model(**pair).logits[0, 0]) for pair in pairs]).numpy()
    given = runner.rerank("who dances?", texts, None, texts_too=True)
    ranked = Reranking.model_validate(given, extra="forbid")
    order, relevance = zip(*((one.index, one.relevance_score) for one in ranked.results), strict=True)
    assert sorted(order) == [0, 1, 2, 3]
    assert order.index(0) < order.index(3)  # the same text: in their order
    assert list(relevance) == sorted(relevance, reverse=True)
    np.testing.assert_allclose(relevance, scores[list(order)], atol=1e-5)
    assert [one.document.text for one in ranked.results if one.document] == [texts[one.index] for one in ranked.results]
    assert ranked.usage.total_tokens == sum(pair["input_ids"].shape[1] for pair in pairs)
    best = runner.rerank("who dances?", texts, 1, texts_too=False)["results"]
    assert best == [{"index": ranked.results[0].index, "relevance_score": pytest.approx(max(relevance), abs=1e-9)}]


def test_results_are_files_of_what_the_api_declares(runner: JobRunner, tmp_path: Path) -> None:
    shown = runner.content(GIVEN)
    jobs: list[tuple[str, dict[str, Any], Any]] = [
        ("summarize", {"document": GIVEN, "options": {}, "scores": True}, Summarized),
        ("embed_texts", {"texts": ["bees"]}, EmbeddedTexts),
        ("embed", {"documents": [{**GIVEN, "id": "k"}], "options": {"sentences": True}}, list[EmbeddedDocument]),
        ("answer", {"documents": [GIVEN], "questions": ["who?"], "options": {"top": 1}}, list[Answered]),
        ("chunks", {"document": GIVEN, "options": {"max_words": 9}}, Chunked),
    ]
    Content.model_validate({**shown, "id": "k"}, extra="forbid")
    for kind, arguments, form in jobs:
        file = tmp_path / f"{kind}.json"
        assert do(runner, {"kind": kind, "arguments": arguments, "file": str(file)}) == {"size": file.stat().st_size}
        TypeAdapter(form).validate_json(file.read_bytes())


def test_what_is_too_much_is_413_and_a_full_disk_507(runner: JobRunner, tmp_path: Path) -> None:
    job = {"kind": "embed_texts", "arguments": {"texts": ["bees"]}, "file": str(tmp_path / "result.json")}
    said = do(runner, job, most=100)
    assert (said["status"], said["error"].startswith("the result has")) == (413, True)
    assert not list(tmp_path.iterdir())
    small = JobRunner(lambda **_: None, sentences=8)  # of the nine that there are
    arguments = {"documents": [{**GIVEN, "id": "k"}], "options": {"sentences": True}}
    said = do(small, {"kind": "embed", "arguments": arguments, "file": job["file"]})
    assert (said["status"], "more than 8 sentences" in said["error"]) == (413, True)
    if Path("/dev/full").exists():
        assert do(runner, {**job, "file": "/dev/full"})["status"] == 507


def test_half_a_character_in_a_question_is_one_sentence(runner: JobRunner, tmp_path: Path) -> None:
    arguments = {"documents": [GIVEN], "questions": ["who\ud83d?"], "options": {"top": 1}}
    said = do(runner, {"kind": "answer", "arguments": arguments, "file": str(tmp_path / "x")})
    assert (said["status"], said["error"].startswith("the question has half a character at 3")) == (422, True)


@pytest.mark.slow
def test_models_are_checked_before_the_server_listens(
    models: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """In a process of their own, which ends."""
    Models(**models).check(Limits())
    capfd.readouterr()
    assert main(["serve", "--port", "0", "--reranker", models["encoder"]]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "no model with labels" in printed.err
    assert "Traceback" not in printed.err


def test_words_of_the_server_end_no_sentence(tmp_path: Path) -> None:
    """Of a text and of a file; what a process is told fits its command, however many words there are."""
    models = Models(abbreviations=("Anm.", *(f"wört{number}" for number in range(6_000))))
    *_, written = models.command(Limits())
    assert len(written.encode()) < 1 << 17
    (options,) = json.loads(written)
    del options["limits"]
    runner = JobRunner(lambda **_: None, **options)
    file = tmp_path / "note.txt"
    file.write_text("Siehe Anm. Nichts gilt hier.")
    for given in ({"id": "k", "name": "n", "path": str(file)}, {"id": None, "name": "n", "text": file.read_text()}):
        assert runner.read(given)["sentences"] == 1
        assert runner.summarize(given, {"sentences": 1}, scores=False)["of"] == 1
    with pytest.raises(InputError, match=r"abbreviations holds 'z\. B\.'"):
        Models(abbreviations=("z. B.",)).check(Limits())
