"""`longspan.answer`: finds the passages of documents that are most likely to answer a question.

Passages are ranked by their words and, in English, by their meaning (`longspan_documents.inference.ranking`). With a
question-answering model, the best passages are read and the words of the answer are extracted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.characters import check_characters, mend, on_one_line, visible
from longspan.data.text.sentences import guess_language
from longspan.devices import check_loads, check_numbers, check_place
from longspan.errors import InputError
from longspan.options import expand_options
from longspan.settings import check_kind, check_several, show
from longspan_documents.inference.encoders import bundled_encoder
from longspan_documents.inference.passage_encoder import SecondLook, passage_encoder
from longspan_documents.inference.ranking import LIKELY, READ, SHOWN, PassageIndex, Ranking, load_weights
from longspan_documents.inference.readers import SpanReader, load_reader
from longspan_documents.inference.results import (
    DocumentAnswer,
    RankedPassage,
    ScoredSentence,
    asks_in_english,
    notes,
    quote_of,
    reads_english,
)
from longspan_documents.inference.verbs import ANSWERABLE, LONGEST_QUERY, Answer
from longspan_documents.text.blocks import Document
from longspan_documents.text.folders import check_not_path, documents_in
from longspan_documents.text.options import Reading, SentenceReading
from longspan_documents.text.passages import Passage
from longspan_documents.text.reading import abbreviating, document_of, further_abbreviations, read_file

if TYPE_CHECKING:
    from longspan_documents.inference.reranker import Reranker
    from longspan_documents.inference.sentence_encoder import SentenceEncoder

Source = str | Path | Document
"""A text, the path of a file or a folder, or a document that has been read."""

NOT_ENGLISH = "how sure an answer is was measured on English only, so it is not given for this text and question"
BY_WORDS = f"{NOT_ENGLISH}; words alone rank, and encoder='multilingual' (--encoder multilingual) also ranks by meaning"

FIRST = 20
"""Number of passages that a cross-encoder reranks."""

SAMPLE = 4_000
"""Characters of each document that are used to detect the language."""


@expand_options(Answer)
def answer(document: Source | Sequence[Source], question: str, options: Answer) -> DocumentAnswer:
    """Find the passages of documents that are most likely to answer a question.

    Args:
        document: the text itself, a `Path` to a file or a folder, a document returned by
            `longspan_documents.text.reading.read`, or several of these, whose passages are ranked together.
        question: one question.

    Returns:
        A `DocumentAnswer`; `print` shows the most relevant sentence.

    Raises:
        InputError: there is nothing to read or no question, a model cannot be loaded or cannot answer questions, an
            option is out of range, or a device does not exist or is specified for a model that is already loaded.
    """
    documents, skipped = read_documents(document, options)
    result = answer_in(documents, question, options)
    return replace(result, note=notes(result.note, *skipped))


def answer_in(documents: Sequence[Document], question: str, options: Answer) -> DocumentAnswer:
    """Answer a question from documents that have been read; see `answer`."""
    result = Answerer(documents, **models_in(options)).answer(question, **asking_in(options))
    return replace(result, note=notes(*notes_of(documents), result.note))


def models_in(options: Answer) -> dict[str, Any]:
    """Returns the options for models and devices, as keyword arguments of `Answerer` and `load_models`."""
    return {name: getattr(options, name) for name in ("model", "encoder", "reranker", "device", "dtype")}


def asking_in(options: Answer) -> dict[str, Any]:
    """Returns the options for a question, as keyword arguments of `Answerer.answer`."""
    return {"top": options.top, "threshold": options.threshold, "answerable": options.answerable}


@expand_options(SentenceReading)
def open_documents(sources: Source | Sequence[Source], options: Reading) -> tuple[list[Document], list[str]]:
    """Read documents; returns them with notes on files that were skipped in folders. Arguments as in `answer`.

    Raises:
        InputError: a named document cannot be read, a folder contains no readable document, or there is no document.
    """
    return read_documents(sources, options)


def read_documents(sources: Source | Sequence[Source], reading: Reading) -> tuple[list[Document], list[str]]:
    """Returns documents and notes on skipped files; see `open_documents`."""
    given_sources = sources_in(sources, reading)
    documents: list[Document] = []
    skipped: list[str] = []
    for number, source in enumerate(given_sources, 1):
        if isinstance(source, Document):
            documents.append(source)
        elif isinstance(source, Path) and os.path.isdir(source):
            files, note = documents_in(source)
            skipped += [f"{on_one_line(str(source))}: {note}"] if note else []
            readable = []
            for file in files:
                try:
                    readable.append(read_file(file, reading))
                except InputError as error:
                    skipped.append(f"passed over: {error}")
            if not readable:
                raise InputError(f"{on_one_line(str(source))} holds no document that can be read: {skipped[-1]}")
            documents += readable
        elif isinstance(source, Path):
            documents.append(read_file(source, reading))
        else:
            name = "the document" if len(given_sources) == 1 else f"document {number}"
            if not source.strip():
                raise InputError(f"{name} is empty; give a document with words in it")
            check_not_path(source, name, folders=True)
            text, halves = mend(source)
            documents.append(document_of(text, raw=reading.raw, name=name))
            if mended := notes(halves=halves):
                skipped.append(mended)
    if not documents:
        raise InputError("there is no document to ask; give a text, a file or a folder")
    return [abbreviating(document, further_abbreviations(reading)) for document in documents], skipped


def sources_in(sources: Source | Iterable[Source], reading: Reading, argument: str = "document") -> list[Source]:
    """Returns sources of documents as a list, after checking their types and the reading options; opens nothing.

    Raises:
        InputError: a source has another type, or there is an encoding but no file.
    """
    if isinstance(sources, str | Path | Document):
        listed: list[Source] = [sources]
    else:
        check_several(sources, argument, "a text, a Path or a Document, or a list of these")
        listed = list(sources)
    for number, source in enumerate(listed, 1):
        name = argument if len(listed) == 1 else f"{argument} {number}"
        check_kind(source, name, (str, Path, Document), "a text, a Path or a Document")
    if reading.encoding is not None and listed and not any(isinstance(source, Path) for source in listed):
        raise InputError(f"encoding={show(reading.encoding)} is of files, and no {argument} is a Path; leave it out")
    return listed


class Answerer:
    """Documents that are prepared for many questions: their passages are split, stemmed and embedded once.

    Example::

        documents, skipped = open_documents(Path("contracts"))
        answerer = Answerer(documents)
        print(answerer.answer("who may cancel?"), answerer.answer("by when?"))

    Args:
        documents: the documents to search.
        model: a question-answering model, which extracts the answer; as in `longspan.answer`.
        passages: the passages of each document, if they are known; they are ranked by their words only.
        encoder: as in `longspan.answer`.
        reranker: as in `longspan.answer`.
        device: as in `longspan.answer`.
        dtype: as in `longspan.answer`.

    Attributes:
        documents: the documents, in the order in which results number them.

    Raises:
        InputError: a model cannot be loaded or cannot answer questions.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        model: str | Path | SpanReader | None = None,
        *,
        passages: Sequence[Sequence[Passage]] | None = None,
        encoder: str | Path | SentenceEncoder | None = None,
        reranker: str | Path | Reranker | None = None,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        check_several(documents, "documents", "a list of what `read` gave")
        self.documents = list(documents)
        for document in self.documents:
            check_kind(document, "documents", Document, "what `read` gave")
        if not self.documents:
            raise InputError("documents is empty; give one or more that `read` gave")
        self._reader, self._encoder, self._reranker = load_models(model, encoder, reranker, device, dtype)
        sample = "\n".join(document.text[:SAMPLE] for document in self.documents)
        self._english = reads_english(sample)
        language = guess_language(sample)
        # Use the weights that were fitted with the encoder, if it supports the language.
        fitted, bundled, second = load_weights(), None, None
        if self._encoder is not None:
            self._weights = fitted["encoder"]
        elif passages is None and self._english and "meaning" in fitted and bundled_encoder(device).knows(sample):
            self._weights, bundled = fitted["meaning"], bundled_encoder(device)
            second = passage_encoder(device) if READ in fitted else None
        else:
            self._weights = fitted["words"]
            self._english = self._english and passages is not None
        self._foreign = NOT_ENGLISH if self._encoder is not None or passages is not None else BY_WORDS
        self._index = PassageIndex(self.documents, language, bundled, passages, self._encoder)
        self._fitted = fitted
        self._second = second and SecondLook(second, self._index.texts)

    def answer(
        self, question: str, *, top: int = SHOWN, threshold: float | None = None, answerable: float = ANSWERABLE
    ) -> DocumentAnswer:
        """Rank the passages for one question and answer it; arguments as in `longspan.answer`.

        Raises:
            InputError: the question has no words, or a number is out of range.
        """
        check_asked(question, top, threshold, answerable)
        begin = time.perf_counter()
        question = " ".join(visible(question).split())
        weights, evidence = self._weights, self._index.evidence(question)
        english = self._english and asks_in_english(question)
        if self._second is None:
            ranking = weights.ranking(evidence, answerable)
        elif not english:  # the vector of the question means nothing
            ranking = self._fitted["words"].ranking(evidence, answerable)
        else:
            first, weights = weights, self._fitted[READ]
            ranking = self._second.ranking(question, evidence, first, weights, answerable)
        order = list(ranking.order)
        if self._reranker is not None:
            first = order[: max(FIRST, top)]
            order_again = self._reranker.order(question, [self._index.passages[number].text for number in first])
            order[: len(first)] = [first[place] for place in order_again]
        shown = [self._ranked(number, ranking if english else None, question) for number in order[:top]]
        short = None if self._reader is None else self._reader.best(question, self.documents, shown)
        scored: list[list[ScoredSentence]] = [[] for _ in self.documents]
        values = (ranking.passage_probabilities if english else ranking.shares).tolist()
        for passage, owner, value in zip(self._index.passages, self._index.owners, values, strict=True):
            scored[owner].append(ScoredSentence(passage.text, passage.start, passage.end, round(value, 4)))
        return DocumentAnswer(
            question=question,
            answered=short is not None or ranking.may_answer(threshold, calibrated=english),
            probability=ranking.probability if english else None,
            there=ranking.there if english else None,
            likely=LIKELY,
            passages=tuple(shown),
            short=short,
            scores=tuple(map(tuple, scored)),
            searched=len(values),
            seconds=time.perf_counter() - begin,
            note=notes(None if english else self._foreign, self._encoder and self._encoder.note),
        )

    def _ranked(self, number: int, ranking: Ranking | None, question: str) -> RankedPassage:
        passage, owner = self._index.passages[number], self._index.owners[number]
        nearest = self._index.sentence(question, number)
        probability = None if ranking is None else float(ranking.passage_probabilities[number])
        return ranked_passage(self.documents[owner], owner, passage, nearest, probability)


def load_models(
    model: str | Path | SpanReader | None,
    encoder: str | Path | SentenceEncoder | None,
    reranker: str | Path | Reranker | None,
    device: str | None,
    dtype: str | None,
) -> tuple[SpanReader | None, SentenceEncoder | None, Reranker | None]:
    """Load the models, or take them from the cache if they were loaded recently. Arguments and errors as in
    `longspan.answer`."""
    if device is not None:
        check_place(device)  # even if no model turns out to be used
    check_numbers(dtype, model, encoder, reranker)
    if model is not None and not hasattr(model, "best"):
        check_kind(model, "model", (str, Path), "a folder, a name, or what `load_reader` returned")
    check_loads("model", model, device, dtype)
    sentence_encoder = cross_encoder = None
    if encoder is not None:
        from longspan_documents.inference.sentence_encoder import load_sentence_encoder

        sentence_encoder = load_sentence_encoder(encoder, device, dtype)
    if reranker is not None:
        from longspan_documents.inference.reranker import load_reranker

        cross_encoder = load_reranker(reranker, device, dtype)
    reader = load_reader(model, device, dtype) if isinstance(model, str | Path) else model
    return reader, sentence_encoder, cross_encoder


def ranked_passage(
    document: Document, number: int, passage: Passage, nearest: int, probability: float | None
) -> RankedPassage:
    """Returns a `RankedPassage` of document `number`, with its most relevant sentence `nearest`."""
    sentence = passage.sentences[nearest]
    return RankedPassage(
        file=document.name,
        document=number,
        quote=quote_of(document, passage.start, passage.end),
        text=passage.text,
        sentence=quote_of(document, sentence.start, sentence.end),
        mark=passage.place_in_text(nearest),
        heading=passage.heading,
        speakers=passage.speakers,
        probability=probability,
    )


def notes_of(documents: Sequence[Document]) -> list[str]:
    """Returns the notes of the documents, with their names if there are several."""
    return [f"{read.name}: {read.note}" if len(documents) > 1 else read.note for read in documents if read.note]


def check_asked(question: str, top: int, threshold: float | None, answerable: float) -> None:
    """Raise `InputError` for a question without words, or a number that is out of range."""
    check_question(question)
    check_kind(top, "top", Integral, "a whole number")
    if top < 1:
        raise InputError(f"top={show(top)} shows nothing; give at least 1")
    if threshold is not None:
        check_kind(threshold, "threshold", Real, "a number from 0 to 1")
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold={show(threshold)} is no probability; give a number from 0 to 1")
    check_kind(answerable, "answerable", Real, "a number between 0 and 1")
    if not 0 < answerable < 1:
        raise InputError(
            f"answerable={show(answerable)} leaves nothing to estimate; give a share between 0 and 1, without these"
        )


def check_question(question: str) -> None:
    """Raise `InputError` for a question without a word in it, or of more than `LONGEST_QUERY` characters."""
    if not isinstance(question, str) or not any(map(str.isalnum, question)):
        raise InputError(f"question={show(question)} asks nothing; give a question with words in it")
    if len(question) > LONGEST_QUERY:
        raise InputError(
            f"the question has {len(question):,} characters, more than the {LONGEST_QUERY:,} that are read; shorten it"
        )
    check_characters(question, "the question")
