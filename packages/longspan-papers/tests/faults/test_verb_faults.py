"""Arguments of Python's verbs that are near misses, of the wrong kind, or of the right kind and of no use.

Each call is refused in one sentence, and leaves nothing behind: a test for each kind of fault that scripts found, which
gave 160 values to every argument."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import longspan
from longspan.attention import Tokens
from longspan.data.labelled import read_labelled
from longspan.data.summaries.readers import read_rows
from longspan.errors import InputError
from longspan.patterns import parse
from longspan.settings import show
from longspan.stacks import StackTokens
from longspan.training.recipe_file import load_recipe
from longspan_documents.inference.answer import Answerer, open_documents
from longspan_documents.inference.classify import load_classifier
from longspan_documents.inference.embed import load_encoder
from longspan_documents.inference.importance import importance
from longspan_documents.inference.readers import load_reader
from longspan_documents.inference.reranker import load_reranker
from longspan_documents.inference.sentence_encoder import load_sentence_encoder
from longspan_documents.inference.summarize import load_summarizer
from longspan_documents.inference.verbs import Decoding
from longspan_documents.text.reading import read
from longspan_papers.coreference.resolving import load_resolver
from longspan_papers.wikihop.choosing import load_chooser

TEXT = "Marmots live in the mountains. They sleep all winter. A whistle warns them of eagles."
QUESTION = "what sleeps?"
LOADERS: dict[str, Callable[..., Any]] = {
    "summarizer": load_summarizer,
    "encoder": load_encoder,
    "classifier": load_classifier,
    "reader": load_reader,
    "reranker": load_reranker,
    "sentence encoder": load_sentence_encoder,
    "resolver": load_resolver,
    "chooser": load_chooser,
    "writer": lambda model, **options: longspan.generate("a", model, **options),
}
"""What opens a model; loaded models are kept by their names."""


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no words for it")


def refused(call: Callable[[], Any], *words: str) -> str:
    """The one sentence of a call that is refused, in which the words stand."""
    with pytest.raises(InputError) as raised:
        call()
    message = str(raised.value)
    assert "\n" not in message
    assert len(message) < 700
    for word in words:
        assert word in message
    return message


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("option", ["device", "dtype"])
@pytest.mark.parametrize("value", [["cpu"], {"cpu": 0}, np.array(["cpu", "cpu"])], ids=["list", "dict", "array"])
@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
def test_a_device_that_could_be_no_key_of_a_cache(load: Callable[..., Any], value: Any, option: str) -> None:
    refused(lambda: load("nowhere", **{option: value}), option, show(value)[:8])


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("model", [3, b"nowhere", ["nowhere"], {}], ids=str)
def test_a_model_that_is_no_name(load: Callable[..., Any], model: Any) -> None:
    message = refused(lambda: load(model))
    assert any(word in message for word in ("model", "encoder", "reranker"))


@pytest.mark.parametrize("value", [None, 3, Path("words.txt"), np.array(3), {"Abk.": 1}, b"Abk."], ids=str)
def test_abbreviations_that_are_not_several(value: Any) -> None:
    Path("a.txt").write_text(TEXT, encoding="utf-8")
    for call in (longspan.summarize, longspan.chunks, longspan.embed_document, lambda text, **o: read("a.txt", **o)):
        refused(lambda call=call: call(TEXT, abbreviations=value), "abbreviations is ", "leave it out")
    refused(lambda: longspan.answer(TEXT, QUESTION, abbreviations=value), "abbreviations is ")


@pytest.mark.parametrize("value", [3, True, b"utf-8", ["utf-8"], np.array([1, 2])], ids=str)
def test_an_encoding_that_is_no_name(value: Any) -> None:
    Path("a.txt").write_text(TEXT, encoding="utf-8")
    refused(lambda: read("a.txt", value), "encoding is ", "'latin-1'")
    refused(lambda: longspan.answer(TEXT, QUESTION, encoding=value), "encoding is ")


def test_an_encoding_of_no_file_is_not_ignored() -> None:
    refused(lambda: longspan.answer(TEXT, QUESTION, encoding="latin-1"), "encoding='latin-1' is of files", "leave it")
    refused(lambda: longspan.answer(TEXT, QUESTION, encoding="latin-5000"), "'latin-5000'", "unknown")
    Path("a.txt").write_bytes("Größe zählt hier.".encode("latin-1"))
    documents, _ = open_documents([TEXT, Path("a.txt")], encoding="latin-1")
    assert documents[1].text == "Größe zählt hier."


@pytest.mark.parametrize("path", [None, 3, ["a.txt"], b"a.txt", object()], ids=["None", "3", "list", "bytes", "object"])
def test_a_path_that_is_none(path: Any) -> None:
    refused(lambda: read(path), "path is ", "the path of a file")


@pytest.mark.parametrize("value", [None, 0, 1, "", "yes", np.array([1, 2]), torch.ones(2)], ids=str)
def test_raw_is_true_or_false(value: Any) -> None:
    Path("a.txt").write_text(TEXT, encoding="utf-8")
    refused(lambda: read("a.txt", raw=value), "raw is ", "true or false")


def test_what_is_too_large_or_cannot_be_shown_is_named_all_the_same() -> None:
    deep: list[Any] = []
    for _ in range(20_000):
        deep = [deep]
    for value in (Unprintable(), [Unprintable()], deep, 10**5000, ["a"] * 100_000, "?" * 5000, Path("a/" * 3000)):
        assert len(refused(lambda value=value: longspan.answer(TEXT, value), "question=")) < 200
        refused(lambda value=value: longspan.chunks(TEXT, overlap=-value if value == 10**5000 else value), "overlap")
    for value in (10**5000, -(10**5000)):
        refused(lambda value=value: longspan.answer(TEXT, QUESTION, threshold=value), "threshold is", "digits")


@pytest.mark.parametrize("name", ["x" * 5000, "a/" * 3000])
def test_a_path_that_no_system_can_have(name: str) -> None:
    for call in (
        lambda path: longspan.answer(path, QUESTION),
        longspan.chunks,
        longspan.summarize,
        lambda path: longspan.index(path, "out"),
    ):
        refused(lambda call=call: call(Path(name)), "cannot be read", "name too long")
    refused(lambda: longspan.chunks(TEXT, tokenizer=name), "tokenizer ", "cannot be used")
    assert os.listdir() == []


@pytest.mark.parametrize(
    "tokenizer",
    [len, int, lambda texts, **options: None, torch.nn.Linear(2, 2)],
    ids=["built in", "type", "lambda", "module"],
)
def test_a_function_that_is_no_tokenizer(tokenizer: Any) -> None:
    refused(lambda: longspan.chunks(TEXT, tokenizer=tokenizer), "tokenizer is ", "a tokenizer of transformers")


@pytest.mark.parametrize("purpose", ["questions", "", 3, ["question"], True], ids=str)
def test_a_purpose_that_is_unknown(purpose: Any) -> None:
    refused(lambda: longspan.embed(TEXT, encoder="nowhere", purpose=purpose), "purpose is ", "'question' or 'passage'")


def test_texts_without_an_order_are_not_embedded() -> None:
    refused(lambda: longspan.embed({"one", "two"}), "texts is ", "give a list")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("blank", ["", " \n", "\t"])
def test_a_blank_document_gives_nothing(blank: str) -> None:
    refused(lambda: longspan.chunks(blank), "document is blank")
    refused(lambda: longspan.embed_document(blank), "document is blank")
    refused(lambda: longspan.classify(blank, "nowhere"), "document is blank")


@pytest.mark.parametrize("document", [3, None, ["a", 3], [None], b"text", {"a": 1}], ids=str)
def test_documents_of_the_wrong_kind_leave_no_index(document: Any) -> None:
    refused(lambda: longspan.index(document, "out"), "document", "a text, a Path or a Document")
    refused(lambda: longspan.answer(document, QUESTION), "document", "a text, a Path or a Document")
    assert os.listdir() == []


@pytest.mark.parametrize("there", [False, True], ids=["new", "an empty folder"])
def test_an_index_whose_first_document_cannot_be_read_is_not_left_empty(there: bool) -> None:
    if there:
        Path("out").mkdir()
    before = os.listdir()
    calls: list[dict[str, Any]] = [{}, {"raw": 3}, {"encoding": 3}, {"encoding": "latin-5000"}]
    for options in calls:
        refused(lambda options=options: longspan.index(Path("nowhere.txt"), "out", **options))
        assert os.listdir() == before
        assert not there or os.listdir("out") == []


def test_an_index_that_is_there_stays_when_a_document_cannot_be_read() -> None:
    longspan.index(TEXT, "out")
    refused(lambda: longspan.index(Path("nowhere.txt"), "out"), "nowhere.txt does not exist")
    assert len(longspan.index(TEXT, "out")) == 1


def test_a_job_that_cannot_begin_does_not_keep_its_folder() -> None:
    """The next call has the model that was meant, and would be another job in the same folder."""
    pytest.importorskip("pyarrow")
    Path("a.txt").write_text(TEXT, encoding="utf-8")
    refused(lambda: longspan.map_documents("embed", Path("a.txt"), "out", workers=0, model="nowhere"), "'nowhere'")
    assert os.listdir() == ["a.txt"]
    assert longspan.map_documents("embed", Path("a.txt"), "out", workers=0).rows == 1


def test_a_folder_of_parquet_whose_name_has_half_a_character() -> None:
    pytest.importorskip("pyarrow")
    Path("a.txt").write_text(TEXT, encoding="utf-8")
    half = os.fsdecode(b"out\xff")
    refused(lambda: longspan.map_documents("embed", Path("a.txt"), half, workers=0), "output ", "half a character")
    assert os.listdir() == ["a.txt"]


@pytest.mark.parametrize("text", [None, 3, ["window(2)"], ("window(2)",), b"window(2)", torch.tensor(2)], ids=str)
def test_a_pattern_that_is_no_text(text: Any) -> None:
    refused(lambda: parse(text), "pattern is ", "window(128)")


def test_an_unknown_mechanism_is_told_the_near_one() -> None:
    with pytest.raises(KeyError) as raised:
        longspan.MECHANISMS["lonformer"]
    assert str(raised.value) == "mechanisms have no 'lonformer'; did you mean 'longformer'?"
    assert isinstance(raised.value, InputError)
    assert longspan.MECHANISMS.get("lonformer") is None
    assert "lonformer" not in longspan.MECHANISMS
    refused(lambda: longspan.MECHANISMS[["longformer"]], "mechanisms")  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def masked() -> longspan.LongspanForMaskedLM:
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    return longspan.LongspanForMaskedLM(longspan.LongspanConfig(**sizes, intermediate_size=16))


@pytest.mark.parametrize(
    "name", ["input_ids", "inputs_embeds", "attention_mask", "global_attention_mask", "seq_idx", "labels"]
)
@pytest.mark.parametrize("value", [[[3, 4, 5]], "ids", 3, np.ones((1, 3))], ids=["list", "text", "number", "array"])
def test_a_batch_that_is_no_tensor(masked: longspan.LongspanForMaskedLM, name: str, value: Any) -> None:
    right = {} if name == "inputs_embeds" else {"input_ids": torch.tensor([[3, 4, 5]])}
    refused(lambda: masked(**{**right, name: value}), f"{name} is ", "give a tensor", "return_tensors='pt'")


def test_ids_of_one_row_without_the_dimension_of_rows(masked: longspan.LongspanForMaskedLM) -> None:
    refused(lambda: masked(input_ids=torch.tensor([3, 4, 5])), "input_ids has shape (3,)", "(B, T)")


@pytest.mark.parametrize("name", StackTokens.tensors)
def test_tokens_of_no_tensors(name: str) -> None:
    kind = Tokens if name in Tokens.tensors else StackTokens
    refused(lambda: kind(**{name: [[True]]}), f"{name} is [[True]]", "give a tensor")  # pyright: ignore[reportArgumentType]


def test_a_collator_of_no_function_ids_or_rows() -> None:
    collator: Any = longspan.DataCollatorWithGlobalAttention
    refused(lambda: collator("pad"), "collator is 'pad'")
    refused(lambda: collator(len, 3), "global_token_ids is 3")
    refused(lambda: collator(len, ["[SEP]"]), "global_token_ids is '[SEP]'", "whole numbers")
    refused(lambda: collator(len, [1])(None), "features is None")
    refused(lambda: collator(len, [1])(["a text"]), "row 0 of features is 'a text'")


@pytest.mark.parametrize("argument", ["encoder", "reranker"])
def test_an_error_of_a_model_names_the_argument_among_several(argument: str, tmp_path: Path) -> None:
    for name in ("nowhere", "../nowhere", "two words", str(tmp_path), "half \ud800", "a\0b", "x" * 5000):
        refused(lambda name=name: longspan.answer(TEXT, QUESTION, **{argument: name}), argument)


@pytest.mark.parametrize("name", ["two\nlines", "bell\x07", "turned \u202e round", "../two\nlines"])
def test_a_model_whose_name_would_break_the_line(name: str) -> None:
    message = refused(lambda: longspan.summarize(TEXT, model=name), "model ")
    assert message.isprintable()


@pytest.mark.parametrize("stream", ["print", 3, []], ids=str)
def test_a_stream_that_cannot_be_called(stream: Any) -> None:
    refused(lambda: longspan.summarize(TEXT, stream=stream), "stream is ", "a function")


@pytest.mark.parametrize("decoding", [4, {"beams": 4}, "beams=4"], ids=str)
def test_decoding_that_is_none(decoding: Any) -> None:
    refused(lambda: longspan.summarize(TEXT, model="nowhere", decoding=decoding), "decoding is ", "a Decoding")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("data", value) for value in (3, None, [3], b"a")),
        *(("split", value) for value in (None, 3)),
        *(("limit", value) for value in ("2", 1.5)),
        *(("on_error", value) for value in (["skip"], None)),
    ],
    ids=str,
)
@pytest.mark.parametrize("rows_of", [read_rows, read_labelled])
def test_sources_of_rows_of_the_wrong_kind(rows_of: Callable[..., Any], option: str, value: Any) -> None:
    refused(lambda: list(rows_of(**{"data": "synthetic", option: value})), option)


def test_changes_of_a_recipe_that_are_no_texts() -> None:
    refused(lambda: load_recipe("small-mlm-window", 3), "changes is 3")  # pyright: ignore[reportArgumentType]
    refused(lambda: load_recipe("small-mlm-window", [3]), "change is 3")  # pyright: ignore[reportArgumentType]
    refused(lambda: load_recipe(3), "recipe is 3")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("verb", "option", "value"),
    [
        ("summarize", "language", "english"),
        ("embed", "language", "-5m"),
        ("embed", "encoding", "latin-5000"),
        ("embed", "prefix", "two\nlines"),
        ("embed", "output", " "),
    ],
)
def test_an_option_of_a_job_that_would_make_an_error_of_every_row(verb: str, option: str, value: str) -> None:
    pytest.importorskip("pyarrow")
    Path("a.txt").write_text(TEXT, encoding="utf-8")
    call = {"output": "out", option: value}
    refused(lambda: longspan.map_documents(verb, Path("a.txt"), workers=0, **call), option, show(value)[1:5])
    assert os.listdir() == ["a.txt"]


def test_options_of_a_model_that_writes_are_named_beside_the_bundled_one() -> None:
    refused(lambda: longspan.summarize(TEXT, decoding=Decoding(beams=4, max_tokens=9)), "beams=4, max_tokens=9 is for")


@pytest.mark.parametrize("documents", [[], None, [TEXT], 3], ids=str)
def test_an_answerer_of_no_documents(documents: Any) -> None:
    refused(lambda: Answerer(documents), "documents ", "`read` gave")


@pytest.mark.parametrize(
    "wrong",
    [
        {"verb": ["embed"]},
        *({"inputs": value} for value in ([3], [" "], Path("a/" * 3000), ["half \ud800"])),
        {"report": "print"},
        {"text_field": "x" * 5000},
    ],
    ids=lambda wrong: str(wrong)[:30],
)
def test_a_job_that_is_asked_for_wrongly(wrong: dict[str, Any]) -> None:
    pytest.importorskip("pyarrow")
    Path("a.txt").write_text(TEXT, encoding="utf-8")
    call: dict[str, Any] = {"verb": "embed", "inputs": "a.txt", "output": "out", "workers": 0, **wrong}
    refused(lambda: longspan.map_documents(**call), "input" if "inputs" in wrong else next(iter(wrong)))
    assert os.listdir() == ["a.txt"]


@pytest.mark.parametrize("option", ["model", "reference"])
def test_importance_by_what_is_no_text(option: str) -> None:
    for value in (3, ["words"], Path("a.txt")):
        refused(lambda value=value: importance(TEXT, **{option: value}), f"{option} is ")
