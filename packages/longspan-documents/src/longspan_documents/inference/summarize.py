"""`longspan.summarize`: summarises texts of any length.

Without a model, the bundled one picks sentences: it scores every sentence of a document of any length, in linear time
and memory. A sequence-to-sequence or chat model generates the summary token by token.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import lru_cache, partial
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from longspan.characters import mend, visible
from longspan.data.text.sentences import FUNCTION_WORDS, check_language, contents_of, split_words
from longspan.devices import check_loads, check_named, check_numbers
from longspan.errors import InputError
from longspan.options import expand_options
from longspan.settings import check_kind, show
from longspan_documents.inference.encoders import Encoder, bundled_encoder, one_thread
from longspan_documents.inference.plain_encoder import PlainEncoder, plain_encoder
from longspan_documents.inference.results import (
    Extent,
    ScoredSentence,
    Summary,
    extent_of,
    notes,
    reads_english,
)
from longspan_documents.inference.verbs import Decoding, Summarize, Summarizer, check_decoding
from longspan_documents.summaries.clues import Sentences, antecedents
from longspan_documents.summaries.picker import Picker
from longspan_documents.summaries.query import is_absent, relevance_of
from longspan_documents.summaries.selection import preferred, ranking, scores_of_log, supported
from longspan_documents.text.blocks import Document, kind_of_document
from longspan_documents.text.changelogs import newest_releases
from longspan_documents.text.folders import check_not_path
from longspan_documents.text.reading import (
    DocumentSentence,
    abbreviating,
    document_of,
    further_abbreviations,
    read_file,
    sentences_of,
)

if TYPE_CHECKING:
    from longspan_documents.inference.sentence_encoder import SentenceEncoder

WEIGHTS = Path(__file__).parents[1] / "bundled" / "summary.safetensors"
"""Weights of `Picker`; README.md in the same folder describes their training."""
NOT_ENGLISH = "the bundled model was trained on English; its choice in other languages is less sure"
NOT_KNOWN = (
    "the bundled encoder does not know most words of this text, so its sentences are picked by words alone; "
    "encoder='multilingual' (--encoder multilingual) compares them to a query by meaning"
)
ABSENT = "nothing in the document seems to concern the query {query}: these are only the sentences nearest to it"
NO_WORD = (
    "the document has no word of the query {query}, and the bundled encoder does not compare their meanings, which it "
    "knows in English alone: these sentences are not chosen for the query"
)
NO_CONTENT = "the query {query} has no content words, so this is a summary without it"
OWN_ABSTRACT = "starts from the document's own abstract"
UNRELIABLE = {
    "changelog": "read as a changelog: picked from its newest releases",
    "log": "read as a log, by line, errors and rare lines first; picking lines is an unreliable summary of a log",
    "novel": "picking sentences is unreliable for novels: a plot is in no few sentences of a book",
    "story": "picking sentences is unreliable for stories: a plot is in no few sentences of one",
    "play": "picking sentences is unreliable for plays: a plot is in no few lines of one",
}
"""Notes for kinds of documents that picked sentences do not summarise, or only in part."""
BRIEF = 40_000
"""Number of characters that are read sooner without PyTorch than PyTorch is imported."""
NEWEST = 4
"""Of a changelog, only the newest releases are read, with at least this number of words for each of the summary."""
_INTRODUCTION = re.compile(r"(?:[\dIVX]{1,4}\.?\s+)?(?:introduction|background)\W*", re.IGNORECASE)


@expand_options(Summarize)
def summarize(text: str | Path | Document, options: Summarize) -> Summary:
    """Summarise a document of any length.

    Args:
        text: the text itself, a `Path` to a file, or a document returned by `longspan_documents.text.reading.read`.

    Returns:
        A `Summary`; `print` shows its text.

    Raises:
        InputError: there is no text; a length is below 1, or there are two; the model does not support the length; a
            model cannot be loaded or cannot summarise; a device does not exist, or is specified for a model that is
            already loaded.
    """
    halves = 0  # number of lone surrogates that were replaced
    if isinstance(text, Document):
        document = abbreviating(text, further_abbreviations(options))
    elif isinstance(text, Path):
        document = read_file(text, options)
    elif not isinstance(text, str):
        raise InputError(f"text is {show(text)}, of type {type(text).__name__}; give a text, a Path or a Document")
    elif not text.strip():
        raise InputError("text holds nothing to summarise; give a document with words in it")
    else:
        check_not_path(text, "text")
        text, halves = mend(text)
        document = abbreviating(document_of(text, raw=options.raw), further_abbreviations(options))
    (summary,) = summarize_documents(summarizer_in(options), [document], options)
    return replace(summary, note=notes(summary.note, halves=halves))


def summarizer_in(options: Summarize, characters: int | None = None) -> Summarizer:
    """Returns the model that the options specify, loaded.

    Args:
        characters: number of characters of all documents to summarise in this process, if they are known. The bundled
            model reads up to `BRIEF` in NumPy, without importing PyTorch.
    """
    model = options.model
    named = (model, options.decoding, options.device, options.dtype, options.encoder)
    if characters is not None and characters <= BRIEF and all(option is None for option in named):
        if options.language is not None:
            check_language(options.language)
        return _picking(options.language, None, plain=True)
    if model is not None and not hasattr(model, "summarize"):
        check_kind(model, "model", (str, Path), "a folder, a name, or what `load_summarizer` returned")
    if options.device is not None or options.dtype is not None:
        check_loads("model", model, options.device, options.dtype)
    if model is not None and not isinstance(model, str | Path) and options.encoder is None:
        return model
    return load_summarizer(
        model,  # pyright: ignore[reportArgumentType] (raised there with an encoder)
        options.language,
        options.decoding,
        options.device,
        options.dtype,
        options.encoder,
    )


def summarize_documents(summarizer: Summarizer, documents: Sequence[Document], options: Summarize) -> Iterator[Summary]:
    """Yields the summaries of documents with a loaded model, in order; a generative model reads several in batches.

    The note of a summary begins with that of its document.
    """
    extent = Extent(sentences=options.sentences, words=options.words, length=options.length)
    query = None if options.query is None else visible(options.query)
    model: Any = summarizer
    if len(documents) > 1 and hasattr(model, "summarize_several"):
        summaries = model.summarize_several(documents, extent, query)
    else:
        streams = getattr(model, "streams", False) and options.stream is not None
        keywords: dict[str, Any] = {"stream": options.stream} if streams else {}
        summaries = (model.summarize(document, extent, query, **keywords) for document in documents)
    for document, summary in zip(documents, summaries, strict=True):
        yield replace(summary, note=notes(document.note, summary.note))


def load_summarizer(
    model: str | Path | None = None,
    language: str | None = None,
    decoding: Decoding | None = None,
    device: str | None = None,
    dtype: str | None = None,
    encoder: str | Path | SentenceEncoder | None = None,
) -> Summarizer:
    """Load a model to summarise many texts; arguments and errors as in `summarize`. The two latest are cached."""
    if language is not None:
        check_language(language)
    if model is not None:
        check_kind(model, "model", (str, Path), "a folder or a name")
    if decoding is not None:
        check_decoding(decoding)
    if device is not None or dtype is not None:
        check_named(device, dtype)
    if encoder is not None:
        for name, value in (("model", model), ("decoding", decoding)):
            if value is not None:
                raise InputError(
                    f"encoder={show(encoder)} is for the bundled model, and {name}={show(value)} is not; give one of "
                    "them"
                )
        from longspan_documents.inference.sentence_encoder import load_sentence_encoder

        return _picking(language, device, load_sentence_encoder(encoder, device, dtype))
    if model is not None:
        return _load(str(model), language, decoding, device, dtype)
    if decoding is not None:
        chosen = [option for option in fields(Decoding) if getattr(decoding, option.name) != option.default]
        named = ", ".join(f"{option.name}={getattr(decoding, option.name)}" for option in chosen) or "decoding"
        raise InputError(
            f"{named} is for a model that writes, and the bundled model picks sentences; leave the options for "
            "decoding out, or give a model"
        )
    if dtype is not None:
        check_numbers(dtype, model)
    return _picking(language, device)


@lru_cache(maxsize=2)
def _picking(
    language: str | None, device: str | None, judge: SentenceEncoder | None = None, plain: bool = False
) -> Summarizer:
    """Returns the bundled model, with `plain` in NumPy; `judge` replaces its encoder in comparisons of sentences and
    query."""
    encoder = plain_encoder() if plain else bundled_encoder(device)
    scorer = PackageScorer(Picker.load(WEIGHTS), encoder, judge)
    return Extractive(scorer, english_only=True, language=language)


@lru_cache(maxsize=2)
def _load(
    source: str, language: str | None, decoding: Decoding | None, device: str | None, dtype: str | None
) -> Summarizer:
    from longspan_documents.inference.abstractive.loading import load_summarizing
    from longspan_documents.inference.abstractive.summarizer import Abstractive

    decoding = decoding or Decoding()
    opened = load_summarizing(source, language=language, decoding=decoding, device=device, dtype=dtype)
    if isinstance(opened, tuple):
        return Extractive(ModelScorer(*opened, source), language=language)
    return Abstractive(opened, decoding=decoding, picks=partial(_picking, language, device), language=language)


class Extractive:
    """Summarises by picking the sentences that a scorer rates best.

    Args:
        scorer: computes a score between 0 and 1 for each sentence (`SentenceScorer`).
        english_only: whether the scorer was trained on English only, so that a `note` warns about other languages.
        language: ISO 639-1 code for sentence splitting; None guesses it by the script.
    """

    def __init__(self, scorer: SentenceScorer, *, english_only: bool = False, language: str | None = None) -> None:
        self.scorer = scorer
        self.english_only = english_only
        self.language = language

    def summarize(self, document: Document, sentences: int | Extent | None = None, query: str | None = None) -> Summary:
        """See `longspan.summarize`."""
        extent = extent_of(sentences)
        begin = time.perf_counter()
        document_sentences = sentences_of(document, self.language)
        texts = [sentence.text for sentence in document_sentences]
        words = extent.expected_words(texts)
        about = None
        if query is not None and self.english_only and set(split_words(query)) <= FUNCTION_WORDS:
            about, query = NO_CONTENT.format(query=show(query)), None
        newest = newest_releases(document.text, NEWEST * words) if query is None and self.english_only else None
        if newest is None:
            found = self.scorer.score(document, document_sentences, words, query)
            scores, opening, leading = found.values, found.opening, found.leading
        else:
            read = [sentence.start in newest for sentence in document_sentences]
            found = self.scorer.score(document, list(compress(document_sentences, read)), words, query)
            values = iter(found.values)
            scores, opening, leading = [next(values) if is_read else 0.0 for is_read in read], 0, ()
        tokens = found.tokens
        if query is not None and found.absent:
            about = (ABSENT if found.compared else NO_WORD).format(query=show(query))
        # Sentences of the document's own abstract rank before all others, which must not repeat them.
        marked = query is None and any(sentence.abstract for sentence in document_sentences)
        has_abstract = marked or (opening > 0 and opens_as_paper(document, document_sentences, opening))
        if marked:
            scores = [
                (score + sentence.abstract) / 2 for sentence, score in zip(document_sentences, scores, strict=True)
            ]
        kind = kind_of_document(document, texts) if newest is None else "changelog"
        wanted = preferred(texts, scores, said=range(len(texts)) if found.answers else leading)
        needs = [() if index in leading else before for index, before in enumerate(antecedents(texts))]
        order = wanted if found.answers else supported(wanted, needs)
        if kind == "log":
            order = iter(ranking(scores))
        best: list[int] = []

        def pick(count: int) -> list[int]:
            best.extend(islice(order, max(0, count - len(best))))
            return sorted(best[:count])

        picked = extent.take(texts, pick)
        scored = tuple(
            ScoredSentence(sentence.text, sentence.start, sentence.end, round(score, 4), sentence.speaker)
            for sentence, score in zip(document_sentences, scores, strict=True)
        )
        unreliable = UNRELIABLE.get(kind or "") if query is None and self.english_only else None
        english = not self.english_only or kind == "log" or reads_english(document.text)
        language = NOT_KNOWN if not found.known else None if english else NOT_ENGLISH
        return Summary(
            sentences=tuple(scored[index] for index in picked),
            document=scored,
            tokens=tokens,
            seconds=time.perf_counter() - begin,
            note=notes(about, OWN_ABSTRACT if has_abstract else None, unreliable, language),
            abstract=has_abstract,
        )


def opens_as_paper(document: Document, sentences: Sequence[DocumentSentence], opening: int) -> bool:
    """Whether a beginning without a heading is an abstract, by the layout of a paper: an introduction follows, and the
    document ends with a list of references."""
    section = sentences[opening].section if opening < len(sentences) else None
    below = section is not None and bool(_INTRODUCTION.fullmatch(document.blocks[section].text.strip()))
    return below and any(block.kind == "references" for block in document.blocks)


class Scores(NamedTuple):
    """The scores of a document's sentences.

    Attributes:
        values: a score between 0 and 1 for each sentence.
        tokens: number of tokens that were read.
        opening: number of sentences at the beginning that form an abstract without a heading, and rank first.
        leading: indices of the first sentences if they summarise the document, in its order.
        known: whether the encoder knows the document's words; otherwise they were only counted.
        answers: whether sentences were chosen because they answer a query: fragments then count as sentences, and none
            waits for those that it refers to.
        absent: whether nothing in the document seems to concern the query.
        compared: whether the query and the sentences were compared by meaning; otherwise by words alone.
    """

    values: list[float]
    tokens: int
    opening: int = 0
    leading: tuple[int, ...] = ()
    known: bool = True
    answers: bool = False
    absent: bool = False
    compared: bool = True


class SentenceScorer(Protocol):
    """Scores sentences: with the bundled model, or with a trained one."""

    def score(self, document: Document, sentences: Sequence[DocumentSentence], words: int, query: str | None) -> Scores:
        """Score the sentences of a document.

        Args:
            document: the document.
            sentences: its sentences.
            words: approximate length of the summary.
            query: its topic, or None.
        """
        ...


class PackageScorer:
    """Scores sentences with the bundled encoder and weights, for any length and query.

    Args:
        picker: computes scores from features of sentences.
        encoder: computes the vectors that the picker was trained with.
        judge: another encoder for the similarity to a query.
    """

    def __init__(self, picker: Picker, encoder: Encoder | PlainEncoder, judge: SentenceEncoder | None = None) -> None:
        self.picker = picker
        self.encoder = encoder
        self.judge = judge

    @one_thread()
    def score(self, document: Document, sentences: Sequence[DocumentSentence], words: int, query: str | None) -> Scores:
        """Score sentences, in descending order of their choice for the summary; see `SentenceScorer`.

        Lines of a log are scored by their words, without the encoder, unless there is a query.
        """
        if query is None and document.is_log:
            return Scores(scores_of_log([sentence.text for sentence in sentences]).tolist(), 0)
        clues, tokens = embedded_sentences(document, sentences, self.encoder)
        relevance, absent, compared = None, False, True
        if query is not None and self.judge is None:
            vector = self.encoder.embed([query])[0]
            relevance = relevance_of(clues, query, vector)
            absent, compared = is_absent(clues, query, vector), bool(vector.any() and clues.vectors.any())
        elif query is not None and self.judge is not None:
            near = replace(clues, vectors=self.judge.embed(clues.texts, "passage"))
            relevance = relevance_of(near, query, self.judge.embed([query], "question")[0])
        order = self.picker.order(clues, words, relevance)
        known = not sentences or bool(clues.vectors.any()) or (query is not None and self.judge is not None)
        answers = relevance is not None and relevance.strength > 0
        return Scores(order.scores.tolist(), tokens, order.opening, order.leading, known, answers, absent, compared)


class ModelScorer:
    """Scores sentences with a `LongspanForSentenceScoring` model."""

    def __init__(self, model: Any, tokenizer: Any, source: str) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.source = source

    def score(self, document: Document, sentences: Sequence[DocumentSentence], words: int, query: str | None) -> Scores:
        """Score sentences independently of the length and without a query; see `SentenceScorer`."""
        import torch

        from longspan.tasks.tokenizers import encode_sentences

        if query is not None:
            raise InputError(f"model {self.source!r} reads no query; leave the query {query!r} or the model out")
        if not sentences:
            return Scores([], 0)
        encoded = encode_sentences([sentence.text for sentence in sentences], self.tokenizer)
        lengths = torch.tensor([len(ids) for ids in encoded])
        input_ids = torch.tensor([token for ids in encoded for token in ids], device=self.model.device)
        sentence_ids = torch.arange(len(encoded)).repeat_interleave(lengths).to(self.model.device)
        return Scores(self.model.score_document(input_ids, sentence_ids).sigmoid().tolist(), len(input_ids))


def embedded_sentences(
    document: Document, sentences: Sequence[DocumentSentence], encoder: Encoder | PlainEncoder
) -> tuple[Sentences, int]:
    """Compute the features of a document's sentences; returns them and the number of tokens that were read.

    Args:
        document: the document.
        sentences: its sentences.
        encoder: computes their vectors.
    """
    texts = [sentence.text for sentence in sentences]
    vectors, tokens = encoder.read_document(texts)
    headed = [index for index, block in enumerate(document.blocks) if block.kind == "heading"]
    headings = [document.blocks[index].text for index in headed]
    title = document.title or ""
    loose = encoder.embed([*headings, title])
    blocks = np.array([sentence.block for sentence in sentences], dtype=int)
    clues = Sentences(
        texts=texts,
        contents=[contents_of(text) for text in texts],
        vectors=vectors,
        paragraphs=blocks,
        sections=np.searchsorted(headed, blocks) if headed else np.zeros(len(sentences), int),
        headings=headings,
        heading_vectors=loose[:-1],
        title=title,
        title_vector=loose[-1] if title.strip() else None,
        spoken=np.array([sentence.speaker is not None for sentence in sentences], dtype=bool),
        speakers=[sentence.speaker for sentence in sentences],
    )
    return clues, tokens
