"""`longspan.summarize`: a long text in, its summary out.

Without a model, the bundled one picks sentences: it scores every sentence of the document, whatever its length, in
linear time and memory. With a sequence-to-sequence model the summary is written word by word.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from longspan.characters import check_characters, mend
from longspan.data.text.blocks import Document
from longspan.data.text.reading import document_of, read, sentences_of
from longspan.data.text.sentences import check_language, split_sentences
from longspan.errors import InputError, one_sentence
from longspan.inference.results import (
    Decoding,
    Extent,
    Length,
    ScoredSentence,
    Summary,
    extent_of,
    notes,
    reads_english,
)
from longspan.settings import LARGEST, check_kind

if TYPE_CHECKING:
    from longspan.inference.scoring import SentenceScorer

NOT_ENGLISH = "the bundled model was trained on English; its choice in other languages is less sure"
OWN_ABSTRACT = "starts from the document's own abstract"


class Summarizer(Protocol):
    """What `load_summarizer` gives: a model that is ready to summarise any number of documents.

    Example::

        summarizer = load_summarizer()
        for path in Path("reports").glob("*.pdf"):
            print(summarizer.summarize(read(path), 5))
    """

    def summarize(self, document: Document, sentences: int | Extent | None = None, query: str | None = None) -> Summary:
        """Summarise one document.

        Args:
            document: what `read` or `document_of` of `longspan.data.text.reading` gave.
            sentences: how many to pick, or an `Extent` in sentences, words or short, medium, long; None is medium. A
                model that writes takes None only.
            query: what the summary is to be about, for a model that reads queries.

        Raises:
            InputError: a length or a query that is not for this model, or a document longer than it reads.
        """
        ...


def summarize(
    text: str | Path | Document,
    sentences: int | None = None,
    model: str | Path | Summarizer | None = None,
    *,
    length: Length | None = None,
    words: int | None = None,
    query: str | None = None,
    language: str | None = None,
    decoding: Decoding | None = None,
    raw: bool = False,
) -> Summary:
    """Summarise a document of any length.

    Args:
        text: the text itself, a `Path` to a file, or what `longspan.data.text.reading.read` gave.
        sentences: number of sentences; None takes half the square root of the document's, between 3 and 20. Only for
            models that pick sentences, as `length` and `words`; give one of the three.
        length: "short", "medium" or "long", see `longspan.inference.results.Extent`; medium is what None takes.
        words: whole sentences with as near as possible to so many words, and at most a tenth more.
        query: what the summary is to be about: a question or some words. For the bundled model, and for models that
            were trained here to write with the question's tokens global.
        model: None takes the bundled model, which picks sentences. Else the folder or name of a model (one trained
            here, or a published LED, BART, mBART or BigBird-Pegasus, which write), or what `load_summarizer` returned.
        language: ISO 639-1 code for cutting sentences; None guesses by the script.
        decoding: beams and lengths of models that write; None keeps the model's own.
        raw: nothing is left out and nothing guessed: no headings, turns, references, boilerplate, abstract.

    Returns:
        A `Summary`; `print` shows its text.

    Raises:
        InputError: no text, a length below 1, two lengths or one that is not for this model, a model that cannot be
            loaded or cannot summarise, or a document longer than a model that writes can read.
    """
    extent = Extent(sentences=sentences, words=words, length=length)
    check_kind(raw, "raw", bool, "true or false")
    if query is not None:
        check_kind(query, "query", str, "a text")
        check_characters(query, "query")
    if query is not None and not query.strip():
        raise InputError("query is blank; give what the summary is to be about, or leave it out")
    halves = 0  # half characters of a text that were mended
    if isinstance(text, Document):
        document = text
    elif isinstance(text, Path):
        document = read(text, raw=raw)
    elif not isinstance(text, str) or not text.strip():
        raise InputError("text holds nothing to summarise; give a document with words in it")
    else:
        text, halves = mend(text)
        document = document_of(text, raw=raw)
    if model is not None and not hasattr(model, "summarize"):
        check_kind(model, "model", (str, Path), "a folder, a name, or what `load_summarizer` returned")
    summarizer = load_summarizer(model, language, decoding) if model is None or isinstance(model, str | Path) else model
    summary = summarizer.summarize(document, extent, query)
    return replace(summary, note=notes(summary.note, halves=halves))


def load_summarizer(
    model: str | Path | None = None, language: str | None = None, decoding: Decoding | None = None
) -> Summarizer:
    """Load a model once to summarise many texts; arguments and errors as in `summarize`. The latest ones are kept."""
    if language is not None:
        check_language(language)
    if model is not None:
        return _load(str(model), language, decoding)
    if decoding is not None:
        raise InputError("the bundled model picks sentences and decodes nothing; leave the decoding options out")
    return _bundled(language)


@lru_cache(maxsize=2)
def _bundled(language: str | None) -> Summarizer:
    from longspan.inference.scoring import package_scorer

    return Extractive(package_scorer(), english_only=True, language=language)


@lru_cache(maxsize=2)
def _load(source: str, language: str | None, decoding: Decoding | None) -> Summarizer:
    from longspan.checkpoints.loading import load_pair
    from longspan.inference.scoring import ModelScorer
    from longspan.models import LongspanForConditionalGeneration, LongspanForPrefixLM, LongspanForSentenceScoring

    model, tokenizer = load_pair(source)
    if isinstance(model, LongspanForSentenceScoring):
        if decoding is not None:
            raise InputError(f"model {source!r} picks sentences and decodes nothing; leave the decoding options out")
        return Extractive(ModelScorer(model, tokenizer, source), language=language)
    if isinstance(model, LongspanForConditionalGeneration | LongspanForPrefixLM):
        return Abstractive(model, tokenizer, source=source, decoding=decoding, task=_task(source, model))
    raise InputError(
        f"model {source!r} is a {type(model).__name__}, which cannot summarise; give a sentence scorer or a "
        "sequence-to-sequence model such as LED or BART"
    )


def _task(source: str, model: Any) -> Any | None:
    """The task with whose tagger a model weighs tokens, by the recipe beside it; None for a model that does not.

    Raises:
        InputError: no recipe names a tagger, as where a model was trained for the upper bound alone.
    """
    from longspan.stacks import stack_config

    if not stack_config(model.config.stack).reads().importance:
        return None
    from longspan.tasks import task_beside

    task: Any = task_beside(Path(source))
    if getattr(task, "tagger", None) is None:
        raise InputError(
            f"model {source!r} weighs tokens by importance, and no recipe beside it names a tagger; train it with "
            "task.importance=tagger and task.tagger"
        )
    return replace(task, prefix="", max_source_tokens=model.config.max_position_embeddings)


class Extractive:
    """Summarises by picking sentences, as many as asked for of those that a scorer rates best.

    Args:
        scorer: gives each sentence a score between 0 and 1 (`longspan.inference.scoring`).
        english_only: whether the scorer was trained on English alone, so that a `note` says where a text is not.
        language: ISO 639-1 code for cutting sentences; None guesses by the script.
    """

    def __init__(self, scorer: SentenceScorer, *, english_only: bool = False, language: str | None = None) -> None:
        self.scorer = scorer
        self.english_only = english_only
        self.language = language

    def summarize(self, document: Document, sentences: int | Extent | None = None, query: str | None = None) -> Summary:
        """See `longspan.summarize`."""
        from longspan.tasks.summaries.selection import preferred

        extent = extent_of(sentences)
        begin = time.perf_counter()
        document_sentences = sentences_of(document, self.language)
        texts = [sentence.text for sentence in document_sentences]
        scores, tokens, opening = self.scorer.score(document, document_sentences, extent.expected_words(texts), query)
        # Sentences of the document's own abstract come before all others, which must not repeat them.
        own = query is None and any(sentence.abstract for sentence in document_sentences)
        if own:
            scores = [(score + one.abstract) / 2 for one, score in zip(document_sentences, scores, strict=True)]
        order = preferred(texts, scores)
        best: list[int] = []

        def pick(count: int) -> list[int]:
            best.extend(islice(order, max(0, count - len(best))))
            return sorted(best[:count])

        picked = extent.take(texts, pick)
        scored = tuple(
            ScoredSentence(sentence.text, sentence.start, sentence.end, round(score, 4), sentence.speaker)
            for sentence, score in zip(document_sentences, scores, strict=True)
        )
        foreign = self.english_only and not reads_english(document.text)
        return Summary(
            sentences=tuple(scored[index] for index in picked),
            document=scored,
            tokens=tokens,
            seconds=time.perf_counter() - begin,
            note=notes(OWN_ABSTRACT if own or opening else None, NOT_ENGLISH if foreign else None),
            abstract=own or opening > 0,
        )


class Abstractive:
    """Summarises by writing, token by token, with an encoder–decoder or a prefix language model.

    Args:
        model, tokenizer: loaded, on one device.
        source: folder or name of the model, for messages.
        decoding: beams and lengths; None keeps the model's own.
        task: the task whose tagger tells how important each token is, for a model that weighs them; else None.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, source: str, decoding: Decoding | None = None, task: Any | None = None
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.source = source
        self.task = task
        self.options = (decoding or Decoding()).options()
        if "max_new_tokens" in self.options:
            # transformers warns where both a total and a new length are set.
            self.options["max_length"] = None

    def summarize(self, document: Document, sentences: int | Extent | None = None, query: str | None = None) -> Summary:
        """See `longspan.summarize`."""
        import torch

        if given := extent_of(sentences).given:
            raise InputError(
                f"{given} is given, but model {self.source!r} writes its summary; "
                "give the longest length in tokens instead (max_tokens)"
            )
        begin = time.perf_counter()
        ids, options = self._inputs(document, query)
        input_ids = torch.tensor([ids], dtype=torch.long)
        config, longest = self.model.config, self.model.config.max_position_embeddings
        if len(ids) > longest:
            wanted = f"--max-tokens {len(ids)} --output DIR"
            if not config.is_encoder_decoder:  # few mechanisms read a source both ways, so that it keeps its own
                wanted = f"--attention {config.layer_attention(0).mechanism} {wanted}"
            raise InputError(
                f"the document has {len(ids)} tokens but model {self.source!r} reads at most {longest}; leave the "
                f"model out, or make it longer with `longspan lengthen {self.source} {wanted}`"
            )
        with torch.inference_mode(), one_sentence(f"model {self.source!r} cannot write a summary as it is configured"):
            output = self.model.generate(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), **options)
        written = self.tokenizer.decode(output[0], skip_special_tokens=True).strip()
        return Summary(
            sentences=tuple(ScoredSentence(sentence.text) for sentence in split_sentences(written)),
            tokens=input_ids.shape[1],
            seconds=time.perf_counter() - begin,
            note=None if written else "the model wrote an empty summary",
        )

    def _inputs(self, document: Document, query: str | None) -> tuple[list[int], dict[str, Any]]:
        """Token ids, and options of `generate`: a query stands before the document, and its tokens are global; a model
        that weighs tokens is told how important its tagger holds each."""
        import torch

        from longspan.data.summaries.rows import SummaryRow

        task: Any = self.task
        if query is not None:
            from longspan.tasks import task_beside

            task = task_beside(Path(self.source))
            if task is None or getattr(task, "global_tokens", None) != "question":
                raise InputError(
                    f"model {self.source!r} reads no query, since it was not trained with task.global_tokens=question; "
                    f"leave the query {query!r} or the model out"
                )
        elif task is None:
            return list(self.tokenizer(document.words, verbose=False)["input_ids"]), self.options
        row = SummaryRow(id=document.name, pieces=(document.words,), question=query)
        features = replace(task, max_source_tokens=LARGEST).features(row, self.tokenizer)
        ids, options = features["input_ids"], dict(self.options)
        if query is not None:
            options["global_attention_mask"] = (torch.arange(len(ids)) < features["global_tokens"])[None]
        if "importance" in features:
            options["importance"] = torch.tensor([features["importance"]])
        return ids, options
