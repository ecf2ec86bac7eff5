"""Every verb computes where it is told, and comes to the same: models, what they are given, what comes back from them.

The device is the fake one, on which tensors of the processor are refused as on CUDA.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering, BertForSequenceClassification, BertModel

import longspan
from fake_cuda import FakeCuda
from longspan.devices import torch_device
from longspan.errors import InputError
from longspan.inference.generate import Writing, generate
from longspan.models import (
    LongspanConfig,
    LongspanForCandidateScoring,
    LongspanForCausalLM,
    LongspanForCoreference,
    LongspanForMaskedLM,
    LongspanForNaturalQuestions,
    LongspanForQuestionAnswering,
    LongspanForSentenceScoring,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
)
from longspan.training.evaluate import evaluate
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.inference.answer import Answerer
from longspan_documents.inference.embed import load_encoder
from longspan_documents.inference.importance import importance
from longspan_documents.inference.indexing.documents import index
from longspan_documents.inference.indexing.opening import open_index
from longspan_documents.inference.pipelines import pipeline
from longspan_documents.inference.readers import load_reader
from longspan_documents.inference.reranker import load_reranker
from longspan_documents.inference.sentence_encoder import load_sentence_encoder
from longspan_documents.inference.summarize import load_summarizer
from longspan_documents.inference.verbs import Decoding
from longspan_documents.mapping.work import verb_of
from longspan_documents.serve.worker import JobRunner
from longspan_documents.summaries.extraction import Extraction
from longspan_documents.text.reading import document_of
from longspan_papers.coreference.resolving import load_resolver
from longspan_papers.natural_questions.task import NaturalQuestions
from longspan_papers.wikihop.task import MARKERS, CandidateChoice
from tiny_writers import TEXT, write_folder

STORY = TEXT * 2 + "\n\n" + "Who mends the wall? The tenant of the garden mends it in the rain. " * 3
QUESTION = "Who mends the wall?"
WINDOW = {"mechanism": "longformer", "left_tokens": 5, "right_tokens": 5}
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


class Case(NamedTuple):
    """A call of a verb with keywords for device and type, to numbers."""

    models: dict[str, Any]
    """Name → what its folder is made of: a function from the size of the vocabulary to a model, or a kind of writer."""
    call: Callable[..., Any]
    """Called with the folders by name, in a folder of its own, and with `device`."""


def ours(kind: Any, **fields: Any) -> Callable[[int], Any]:
    options = {"position_embedding": "sinusoidal", "init_std": 0.3, "attention": WINDOW}
    return lambda entries: kind(LongspanConfig(vocab_size=entries, **SIZES, **options | fields))


def bert(kind: Any, **fields: Any) -> Callable[[int], Any]:
    sizes = SIZES | {"max_position_embeddings": 256, "initializer_range": 0.3, "pad_token_id": 1}
    return lambda entries: kind(BertConfig(vocab_size=entries, **sizes, **fields))


def weights(answer: Any) -> list[float]:
    """What an answer says in numbers."""
    short = [] if answer.short is None else [answer.short.quote.start, answer.short.probability]
    return [*(one.probability for one in answer.passages), *(one.quote.start for one in answer.passages), *short]


def picked(summary: Any) -> list[float]:
    return [sentence.score for sentence in summary.document]


def letters(text: str) -> list[int]:
    return [ord(one) for one in text]


def with_index(folder: Path, model: Path | None, place: dict[str, Any], **options: Any) -> list[float]:
    """The answer of an index that was made, and is asked, on a device."""
    (folder / "story.md").write_text(STORY, encoding="utf-8")
    target = folder / f"{place['device']}"
    index(folder / "story.md", target, model, encoder=options.get("encoder"), **place)
    return weights(open_index(target, reranker=options.get("reranker"), **place).answer(QUESTION, top=2))


def evaluated(folder: Path, model: Path, place: dict[str, Any]) -> list[float]:
    (folder / "texts.txt").write_text(STORY, encoding="utf-8")
    return list(
        evaluate(model, str(folder / "texts.txt"), output=folder / f"{place['device']}", **place).scores.values()
    )


def mapped(place: dict[str, Any]) -> list[float]:
    vector = verb_of("embed", place).ready()(STORY, {})["vector"]
    answer = verb_of("answer", {"question": QUESTION, **place}).ready()(STORY, {})
    return [*vector, answer["probability"]]


def served(place: dict[str, Any], **models: str) -> list[float]:
    runner = JobRunner(lambda **_: None, **models, **place)
    document = {"id": None, "name": "story", "text": STORY}
    (answer,) = runner.answer([document], [QUESTION], {})
    scores = runner.summarize(document, {"sentences": 2, "query": "rain"}, scores=True)["scores"]
    vector = runner.embed([document], {})[0]["vector"]
    return [*(one["probability"] for one in answer["passages"]), *(score for _, score in scores), *vector]


READER = {"reader": bert(BertForQuestionAnswering)}
ENCODER = {"encoder": bert(BertModel)}
RERANKER = {"reranker": bert(BertForSequenceClassification, num_labels=1)}
DECOMPOSED: dict[str, Any] = {"stack": {"stack": "decomposed", "lower_layers": 1}, "attention": "full"}
DECOMPOSED |= {"position_embedding": "learned", "max_position_embeddings": 128}
WRITES = Decoding(beams=2, max_tokens=9)
CASES: dict[str, Case] = {
    "embed": Case({}, lambda folder, **place: longspan.embed([STORY, *["a snail"] * 40], **place)),
    "embed-document": Case({}, lambda folder, **place: longspan.embed_document(STORY, **place).vectors),
    "embed-pooled": Case(
        {"masked": ours(LongspanForMaskedLM)},
        lambda folder, masked, **place: [
            *longspan.embed([STORY, *["a snail"] * 40], masked, **place).ravel(),
            *longspan.embed_document(STORY, masked, **place).vectors.ravel(),
        ],
    ),
    "embed-encoder": Case(
        ENCODER, lambda folder, encoder, **place: longspan.embed([STORY, "a snail"], encoder=encoder, **place)
    ),
    "summarize": Case({}, lambda folder, **place: picked(longspan.summarize(STORY, 3, query="rain", **place))),
    "summarize-encoder": Case(
        ENCODER,
        lambda folder, encoder, **place: picked(longspan.summarize(STORY, 3, encoder=encoder, query="rain", **place)),
    ),
    "summarize-picks": Case(
        {"scorer": ours(LongspanForSentenceScoring, **Extraction().model_fields())},
        lambda folder, scorer, **place: picked(longspan.summarize(STORY, 3, scorer, **place)),
    ),
    "summarize-writes": Case(
        {"T5": "T5"},
        lambda folder, T5, **place: letters(longspan.summarize(TEXT, model=T5, decoding=WRITES, **place).text),
    ),
    "summarize-own": Case(
        {"Bart": "Bart"},
        lambda folder, Bart, **place: letters(longspan.summarize(TEXT * 4, model=Bart, decoding=WRITES, **place).text),
    ),
    "answer": Case({}, lambda folder, **place: weights(longspan.answer(STORY, QUESTION, **place))),
    "answer-model": Case(
        READER, lambda folder, reader, **place: weights(longspan.answer(STORY, QUESTION, reader, **place))
    ),
    "answer-chunks": Case(
        {"reader": ours(LongspanForNaturalQuestions, **NaturalQuestions().model_fields())},
        lambda folder, reader, **place: weights(longspan.answer(STORY, QUESTION, reader, **place)),
    ),
    "answer-again": Case(
        ENCODER | RERANKER,
        lambda folder, encoder, reranker, **place: weights(
            longspan.answer(STORY, QUESTION, encoder=encoder, reranker=reranker, **place)
        ),
    ),
    "index": Case(RERANKER, lambda folder, reranker, **place: with_index(folder, None, place, reranker=reranker)),
    "index-encoder": Case(ENCODER, lambda folder, encoder, **place: with_index(folder, None, place, encoder=encoder)),
    "index-model": Case(
        {"reader": ours(LongspanForQuestionAnswering, **DECOMPOSED)},
        lambda folder, reader, **place: with_index(folder, reader, place),
    ),
    "classify": Case(
        {"classifier": ours(LongspanForSequenceClassification, num_labels=3)},
        lambda folder, classifier, **place: list(longspan.classify(STORY, classifier, **place).probabilities.values()),
    ),
    "choose": Case(
        {"chooser": ours(LongspanForCandidateScoring, **CandidateChoice().model_fields())},
        lambda folder, chooser, **place: list(
            longspan.choose(STORY, QUESTION, ["rain", "tenant"], chooser, **place).probabilities.values()
        ),
    ),
    "coref": Case(
        {"model": ours(LongspanForCoreference, head={"head": "coreference", "hidden_width": 8, "span_width": 3})},
        lambda folder, model, **place: [
            place for cluster in load_resolver(model, **place).resolve(TEXT).clusters for place in cluster
        ],
    ),
    "importance": Case(
        {"tagger": ours(LongspanForTokenClassification, num_labels=1)},
        lambda folder, tagger, **place: [
            word.importance for word in importance(STORY, model=str(tagger), **place).words
        ],
    ),
    "generate": Case(
        {"model": ours(LongspanForCausalLM)},
        lambda folder, model, **place: letters(
            generate("The old", model, writing=Writing(max_tokens=12, temperature=0), **place).text
        ),
    ),
    "evaluate": Case(
        {"model": ours(LongspanForMaskedLM)},
        lambda folder, model, **place: evaluated(folder, model, place),
    ),
    "map": Case({}, lambda folder, **place: mapped(place)),
    "serve": Case({}, lambda folder, **place: served(place)),
    "serve-encoder": Case(ENCODER, lambda folder, encoder, **place: served(place, encoder=str(encoder))),
    "pipeline": Case(
        READER,
        lambda folder, reader, **place: [
            pipeline("question-answering", reader, **place)(question=QUESTION, context=STORY)[name]
            for name in ("score", "start", "end")
        ],
    ),
}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Any], Path]:
    """The folder of a model, with a tokenizer that knows the story."""
    tokenizer = train_tokenizer([STORY, QUESTION], 320)
    tokenizer.add_tokens(list(MARKERS))

    @cache
    def made(name: str, make: Any) -> Path:
        place = tmp_path_factory.mktemp(name)
        if isinstance(make, str):
            return write_folder(place / "writer", make, generation={"min_new_tokens": 6})
        torch.manual_seed(3)
        make(len(tokenizer)).save_pretrained(place)
        tokenizer.save_pretrained(place)
        return place

    return made


@pytest.fixture(autouse=True)
def _nothing_stays_loaded() -> Iterator[None]:
    """What was put on a device that is gone is let go."""
    yield
    for name, module in list(sys.modules.items()):
        if name.startswith("longspan."):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_verb_comes_to_the_same_on_a_device(case: Case, folder_of: Callable[..., Path], tmp_path: Path) -> None:
    here = computed(case, folder_of, tmp_path, None)
    with FakeCuda():
        there = computed(case, folder_of, tmp_path, "cuda")
    np.testing.assert_allclose(there, here, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_verb_comes_to_the_same_on_cuda(case: Case, folder_of: Callable[..., Path], tmp_path: Path) -> None:
    for package in ("sentencex", "bm25s", "Stemmer"):  # which an image with torch and transformers may lack
        pytest.importorskip(package, reason=f"reading and ranking need {package}")
    there = computed(case, folder_of, tmp_path, "cuda")
    # A GPU sums up in another order.
    np.testing.assert_allclose(there, computed(case, folder_of, tmp_path, None), rtol=1e-5, atol=1e-4)


def computed(case: Case, folder_of: Callable[..., Path], folder: Path, device: str | None) -> np.ndarray:
    """What the call of a case comes to on a device: some numbers."""
    folders = {name: folder_of(name, make) for name, make in case.models.items()}
    numbers = np.array(case.call(folder, **folders, device=device), dtype=float)
    assert numbers.size
    return numbers


LOADED: dict[str, tuple[Any, Callable[..., Any]]] = {
    "encoder": (
        bert(BertModel),
        lambda folder, **place: longspan.embed("a", encoder=load_sentence_encoder(folder), **place),
    ),
    "model": (ours(LongspanForMaskedLM), lambda folder, **place: longspan.embed("a", load_encoder(folder), **place)),
    "reranker": (
        bert(BertForSequenceClassification, num_labels=1),
        lambda folder, **place: Answerer([document_of(STORY)], reranker=load_reranker(folder), **place),
    ),
}


@pytest.mark.parametrize("name", LOADED)
def test_what_is_loaded_already_is_not_moved(name: str, folder_of: Callable[..., Path]) -> None:
    make, call = LOADED[name]
    folder = folder_of(name, make)
    for option, value in {"device": "cpu", "dtype": "bfloat16"}.items():
        with pytest.raises(InputError, match=f"{option}='{value}' is for what is loaded here, and {name} is loaded"):
            call(folder, **{option: value})


def test_a_reader_and_a_summarizer_that_are_loaded_already(folder_of: Callable[..., Path]) -> None:
    reader = load_reader(folder_of("reader", READER["reader"]))
    with pytest.raises(InputError, match="device='cpu' is for what is loaded here, and model is loaded already"):
        longspan.answer(STORY, QUESTION, reader, device="cpu")
    with pytest.raises(InputError, match="model is loaded already"):
        longspan.summarize(STORY, model=load_summarizer(), device="cpu")


@pytest.mark.parametrize("name", ["cuda:99", "mps:3", "meta", "graphics", "cuda:-1", ""])
def test_a_device_that_is_not_there_is_named_with_those_that_are(name: str) -> None:
    with pytest.raises(InputError, match=f"device='{name}' is not on this machine; give 'cpu'"):
        torch_device(name)


def test_half_precision_is_for_models_that_are_given(folder_of: Callable[..., Path]) -> None:
    folder = folder_of("encoder", ENCODER["encoder"])
    half, whole = (longspan.embed(STORY, encoder=folder, dtype=dtype) for dtype in ("bfloat16", None))
    assert half.dtype == np.float32
    assert 0 < np.abs(half - whole).max() < 0.05  # 8 bits of mantissa
    for call in (longspan.embed, longspan.summarize, lambda text, **options: longspan.answer(text, "who?", **options)):
        with pytest.raises(InputError, match="computes in float32; leave it out, or give a model"):
            call(STORY, dtype="bfloat16")
    with pytest.raises(InputError, match="dtype is 'int8'; choose 'float32', 'bfloat16' or 'float16'"):
        longspan.embed(STORY, encoder=folder, dtype="int8")
    with pytest.raises(InputError, match="none computes with a reference; leave it out"):
        importance(STORY, reference="rain", device="cpu")
