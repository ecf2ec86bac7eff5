"""`longspan.pipeline`: the interface of transformers' pipelines for summaries and questions, for texts of any length.

transformers 5 has removed both tasks. These pipelines take the arguments and return the results of transformers 4, for
documents of any length, and use the bundled models by default:

```
longspan.pipeline("summarization")(text)
[{"summary_text": "…"}]
longspan.pipeline("question-answering")(question="…", context=text)
{"score": 0.9, "start": 17, "end": 25, "answer": "…"}
```

`longspan_documents.inference.registered` registers them with `transformers.pipeline`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from longspan.devices import check_loads
from longspan.errors import InputError
from longspan.settings import check_kind, check_several, show
from longspan_documents.inference.answer import Answerer, check_question, load_models
from longspan_documents.inference.ranking import SHOWN
from longspan_documents.inference.readers import MOST_TOKENS, SpanReader, WindowReader
from longspan_documents.inference.summarize import Summarizer, load_summarizer, summarize
from longspan_documents.text.blocks import Document
from longspan_documents.text.reading import as_document

if TYPE_CHECKING:
    from longspan_documents.inference.reranker import Reranker
    from longspan_documents.inference.sentence_encoder import SentenceEncoder

logger = logging.getLogger(f"longspan.{__name__}")

PICKING = ("sentences", "words", "length", "query")
"""Options of a call for every kind of model; all others are passed to generative models."""
CUTTING = ("doc_stride", "max_seq_len", "max_question_len")
"""Options by which transformers 4 divided contexts."""
NOTHING = {"score": 0.0, "start": 0, "end": 0, "answer": ""}


@overload
def pipeline(
    task: Literal["summarization"],
    model: str | Path | Summarizer | None = None,
    *,
    device: str | int | None = None,
    dtype: str | None = None,
) -> SummarizationPipeline: ...
@overload
def pipeline(
    task: Literal["question-answering"],
    model: str | Path | SpanReader | None = None,
    *,
    encoder: str | Path | SentenceEncoder | None = None,
    reranker: str | Path | Reranker | None = None,
    device: str | int | None = None,
    dtype: str | None = None,
) -> QuestionAnsweringPipeline: ...
def pipeline(task: str, model: Any = None, **options: Any) -> Any:
    """Returns a pipeline as transformers 4 did, for two tasks that transformers 5 has removed.

    Args:
        task: "summarization" or "question-answering".
        model: None uses the bundled model; else as in `longspan.summarize` or `longspan.answer`.
        **options: `device` and `dtype`; for question answering also `encoder` and `reranker`.

    Returns:
        A `SummarizationPipeline` or a `QuestionAnsweringPipeline`, which can be called.

    Raises:
        InputError: the task is unknown, or an option or the model does not support it.
    """
    if not isinstance(task, str) or task not in PIPELINES:  # a list is not hashable
        raise InputError(
            f"task={show(task)} is none of longspan.pipeline; give {' or '.join(map(repr, PIPELINES))}, and ask "
            "transformers.pipeline for others"
        )
    kind, known = PIPELINES[task]
    for name, value in options.items():
        if name not in known:
            raise InputError(f"{name}={show(value)} is no option of {task!r}; known are {', '.join(known)}")
    return kind(model, **options)


class SummarizationPipeline:
    """Summarises documents; returns `{"summary_text": …}` for each.

    Args:
        model: as in `longspan.summarize`.
        device: a name, or the number of a GPU, −1 for the CPU.
        dtype: of the weights of a specified model.
    """

    def __init__(self, model: Any = None, *, device: str | int | None = None, dtype: str | None = None) -> None:
        device = _named(device)
        check_loads("model", model, device, dtype)
        named = model is None or isinstance(model, str | Path)
        self.summarizer: Any = load_summarizer(model, device=device, dtype=dtype) if named else model

    def __call__(self, documents: Any, **options: Any) -> list[dict[str, str]] | Iterator[dict[str, str]]:
        """Summarise documents.

        Args:
            documents: one (a text, a `Path`, or a document returned by `longspan_documents.text.reading.read`), a list,
                or an iterator.
            **options: `sentences`, `words`, `length` and `query` as in `longspan.summarize`; for a generative model,
                also arguments of `generate`, such as `max_length`, `min_length` and `num_beams`.

        Returns:
            A list with a dictionary for each document, also for a single document; an iterator for an iterator.

        Raises:
            InputError: as `longspan.summarize`, or the model does not support an option.
        """
        picking = {name: options.pop(name) for name in PICKING if name in options}
        summarizer = self._told(options)
        if isinstance(documents, Iterator):
            return (self._one(document, summarizer, picking) for document in documents)
        several = documents if isinstance(documents, list | tuple) else [documents]
        return [self._one(document, summarizer, picking) for document in several]

    def _one(self, document: Any, summarizer: Any, picking: dict[str, Any]) -> dict[str, str]:
        summary = summarize(document, model=summarizer, **picking)
        if summary.note:
            logger.info(summary.note)
        return {"summary_text": summary.text}

    def _told(self, generation: dict[str, Any]) -> Any:
        """Returns the summariser with updated arguments of `generate`."""
        if generation.pop("truncation", False):
            raise InputError("truncation=True would cut documents, which are read whole here; leave it out")
        writer = getattr(self.summarizer, "writer", None)
        if not generation or writer is None:
            for name, value in generation.items():
                raise InputError(
                    f"{name}={show(value)} is for a model that writes, and this one picks sentences; give sentences, "
                    "words or length instead, or a model"
                )
            return self.summarizer
        updated = copy.copy(self.summarizer)
        updated.writer = writer.with_options(generation)
        return updated


class QuestionAnsweringPipeline:
    """Answers questions from a context, with the position of the answer.

    Without a model, the answers are the most relevant sentence of each passage, with the probability that the passage
    contains the answer. With a model, they are the words that it extracts from the best passages, with its probability.

    Args:
        model: as in `longspan.answer`.
        encoder: as in `longspan.answer`.
        reranker: as in `longspan.answer`.
        device: a name, or the number of a GPU, −1 for the CPU.
        dtype: as in `longspan.answer`.
    """

    def __init__(
        self,
        model: str | Path | SpanReader | None = None,
        *,
        encoder: str | Path | SentenceEncoder | None = None,
        reranker: str | Path | Reranker | None = None,
        device: str | int | None = None,
        dtype: str | None = None,
    ) -> None:
        device = _named(device)
        self.reader: Any = load_models(model, encoder, reranker, device, dtype)[0]
        # Passed to every `Answerer`; the models are cached.
        self.options: dict[str, Any] = {"encoder": encoder, "reranker": reranker, "device": device}
        self.options["dtype"] = dtype if encoder is not None or reranker is not None else None

    def __call__(self, *inputs: Any, question: Any = None, context: Any = None, **options: Any) -> Any:
        """Answer questions.

        Args:
            *inputs: dictionaries with `question` and `context`, or one list of these.
            question: a question or several, instead of `inputs`.
            context: a text for all questions, or a list with one for each.
            **options: `top_k`, the number of answers (1); `handle_impossible_answer`, whether "" may be the answer
                (False); with a model, `max_answer_len`, the maximum number of tokens of an answer (15), and
                `align_to_words`, whether answers are extended to whole words (True).

        Returns:
            A dictionary with `score`, `start`, `end` and `answer`, which is `context[start:end]`; a list of these, best
            first, if `top_k` is more than 1; and a list with an entry for each question if there are several.

        Raises:
            InputError: there is no question or nothing to read, or the model does not support an option.
        """
        pairs = _pairs(inputs, question, context)
        top, possible = _options(options, reads=isinstance(self.reader, WindowReader))
        answerers: dict[int, Answerer] = {}
        results = []
        for asked, text in pairs:
            if id(text) not in answerers:
                answerers[id(text)] = Answerer([as_document(text)], **self.options)
            found = self._answers(answerers[id(text)], asked, top, possible, options)
            results.append(found if top > 1 else found[0])
        return results[0] if len(results) == 1 else results

    def _answers(
        self, answerer: Answerer, question: str, top: int, possible: bool, options: dict[str, Any]
    ) -> list[dict[str, Any]]:
        found = answerer.answer(question, top=max(top, SHOWN))
        text = answerer.documents[0].text
        if self.reader is None:
            places = [(passage.sentence.start, passage.sentence.end, passage.probability) for passage in found.passages]
            nothing = None if found.probability is None else 1 - found.probability
        elif isinstance(self.reader, WindowReader):
            places, nothing = self.reader.places(question, answerer.documents, found.passages, top, **options)
        else:
            best = self.reader.best(question, answerer.documents, found.passages)
            places = [] if best is None else [(best.quote.start, best.quote.end, best.probability)]
            nothing = 1 - sum(score for *_, score in places)
        answers = [{"score": score, "start": at, "end": end, "answer": text[at:end]} for at, end, score in places]
        answers += [NOTHING | {"score": nothing}] if possible else []
        return sorted(answers, key=lambda entry: -(entry["score"] or 0.0))[:top] or [dict(NOTHING)]


PIPELINES = {
    "summarization": (SummarizationPipeline, ("device", "dtype")),
    "question-answering": (QuestionAnsweringPipeline, ("encoder", "reranker", "device", "dtype")),
}


def _named(device: str | int | None) -> str | None:
    """Returns the name of a device that may be specified by number."""
    return ("cpu" if device < 0 else f"cuda:{device}") if isinstance(device, int) else device


def _options(options: dict[str, Any], *, reads: bool) -> tuple[int, bool]:
    """Remove `top_k` and `handle_impossible_answer` from the options and return them; the rest is for the model."""
    top, possible = options.pop("top_k", 1), options.pop("handle_impossible_answer", False)
    check_kind(top, "top_k", Integral, "a whole number")
    check_kind(possible, "handle_impossible_answer", bool, "true or false")
    if top < 1:
        raise InputError(f"top_k={top} asks for no answer; give at least 1")
    for name, value in options.items():
        if name in CUTTING:
            raise InputError(
                f"{name}={show(value)} determines how a context is cut, and here it is read whole or, if the model "
                "is too short for that, around its best passages; leave it out"
            )
        if name not in ("max_answer_len", "align_to_words"):
            raise InputError(f"{name}={show(value)} is no option of 'question-answering'; leave it out")
        if not reads:
            raise InputError(f"{name}={show(value)} is for a model that marks words, which is not given; leave it out")
    most = options.get("max_answer_len", MOST_TOKENS)
    check_kind(most, "max_answer_len", Integral, "a whole number")
    if most < 1:
        raise InputError(f"max_answer_len={most} leaves no room for an answer; give at least 1")
    check_kind(options.get("align_to_words", True), "align_to_words", bool, "true or false")
    return top, possible


def _pairs(inputs: Sequence[Any], question: Any, context: Any) -> list[tuple[str, str | Document | Path]]:
    """Returns pairs of question and context from the arguments of a call."""
    if len(inputs) == 1 and isinstance(inputs[0], list | tuple):
        inputs = inputs[0]
    if inputs and (question is not None or context is not None):
        raise InputError("question and context are given in addition to dictionaries of them; give one of the two")
    if not inputs:
        if not isinstance(question, str) and question is not None:
            check_several(question, "question", "a question, or a list of questions")
        questions = [question] if isinstance(question, str) or question is None else list(question)
        contexts = list(context) if isinstance(context, list | tuple) else [context] * len(questions)
        if len(contexts) != len(questions):
            raise InputError(
                f"question has {len(questions)} entries and context {len(contexts)}; give one context for all "
                "questions, or one for each"
            )
        inputs = [{"question": asked, "context": text} for asked, text in zip(questions, contexts, strict=True)]
    pairs = []
    for pair in inputs:
        if not isinstance(pair, Mapping) or set(pair) != {"question", "context"}:
            raise InputError(f"{show(pair)} is no question with a context; give {{'question': …, 'context': …}}")
        check_question(pair["question"])
        if isinstance(pair["context"], str) and not pair["context"].strip():
            raise InputError(f"context={show(pair['context'])} holds nothing to read; give a text with words in it")
        pairs.append((pair["question"], pair["context"]))
    if not pairs:
        raise InputError("nothing is asked; give a question and a context")
    return pairs
