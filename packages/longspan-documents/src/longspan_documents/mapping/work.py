"""What is done with each document: a verb with its options, the columns that it adds, and its values for a document.

Each verb is a frozen dataclass whose fields are the options that `longspan map VERB` and `map_documents` take. It is
asked three things: `columns`, the types of what it adds; `ready`, which loads its models and gives the function that
is called for every document; and, where it can, a check of its options before anything is loaded (`__post_init__`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol

from longspan.data.text.sentences import check_language
from longspan.errors import InputError
from longspan.imports import Table
from longspan.settings import Beams, Count, LengthPenalty, NewTokens, Share, check, near, show
from longspan_documents.inference.results import Decoding, Extent, Length, notes
from longspan_documents.mapping.inputs import arrow
from longspan_documents.mapping.preparing import Prepare

if TYPE_CHECKING:
    from longspan_documents.text.blocks import Document

Dtype = Literal["float32", "bfloat16", "float16"]
"""Of a model's weights."""
Do = Callable[["str | Document", Mapping[str, Any]], dict[str, Any]]
"""From a document, and the other columns of its row that `reads` names, to the values of the columns that are added."""


class Verb(Protocol):
    """What all verbs answer."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Input columns, besides the text, that it needs."""
        ...

    def columns(self) -> dict[str, Any]:
        """Column → type of Arrow."""
        ...

    def ready(self, *, raw: bool) -> Do:
        """Load the models; texts are read as `raw` says."""
        ...


class Alone:
    """A verb that needs the text alone."""

    @property
    def reads(self) -> tuple[str, ...]:
        """See `Verb`."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Summarize(Alone):
    """See `longspan.summarize`."""

    model: str | None = None
    encoder: str | None = None
    sentences: int | None = None
    words: int | None = None
    length: Length | None = None
    query: str | None = None
    language: str | None = None
    beams: Beams | None = None
    length_penalty: LengthPenalty | None = None
    max_tokens: NewTokens | None = None
    max_source_tokens: Count | None = None
    long_documents: Literal["lengthen", "parts"] | None = None
    device: str | None = None
    dtype: Dtype | None = None
    abbreviations: list[str] | None = None

    def __post_init__(self) -> None:
        """Refuse lengths that are none, and an encoder that has no query to compare with."""
        Extent(sentences=self.sentences, words=self.words, length=self.length)
        check(self)
        if self.language is not None:
            check_language(self.language)
        if self.encoder is not None and self.query is None:
            raise InputError(
                f"encoder={show(self.encoder)} tells how near sentences are to a query; give a query, or leave it out"
            )

    def columns(self) -> dict[str, Any]:
        """See `Verb`."""
        pa = arrow()
        place = [("text", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("score", pa.float64())]
        sentence = pa.struct([*place, ("speaker", pa.string())])
        return {
            "summary": pa.string(),
            "sentences": pa.list_(sentence),
            "tokens": pa.int64(),
            "note": pa.string(),
        }

    def ready(self, *, raw: bool) -> Do:
        """See `Verb`."""
        from longspan_documents.inference.summarize import load_summarizer, summarize

        named = {field.name: getattr(self, field.name) for field in fields(Decoding)}
        asked: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        decoding = Decoding(**asked) if asked else None
        options: dict[str, Any] = {"length": self.length, "words": self.words, "query": self.query, "raw": raw}
        loaded = load_summarizer(self.model, self.language, decoding, self.device, self.dtype, self.encoder)

        def do(document: str | Document, _: Mapping[str, Any]) -> dict[str, Any]:
            opened, note = opened_document(document, raw, self.abbreviations)
            summary = summarize(opened, self.sentences, loaded, **options)
            return {
                "summary": summary.text,
                "sentences": [
                    {name: getattr(one, name) for name in ("text", "start", "end", "score", "speaker")}
                    for one in summary.sentences
                ],
                "tokens": summary.tokens,
                "note": notes(summary.note, note),
            }

        return do


@dataclass(frozen=True, kw_only=True)
class Embed(Alone):
    """See `longspan.embed_document`."""

    model: str | None = None
    encoder: str | None = None
    language: str | None = None
    device: str | None = None
    dtype: Dtype | None = None
    abbreviations: list[str] | None = None

    def __post_init__(self) -> None:
        """Refuse what is no text, and a language that is none."""
        check(self)
        if self.language is not None:
            check_language(self.language)

    def columns(self) -> dict[str, Any]:
        """See `Verb`."""
        pa = arrow()
        return {"vector": pa.list_(pa.float32()), "tokens": pa.int64()}

    def ready(self, *, raw: bool) -> Do:
        """See `Verb`."""
        from longspan_documents.inference.embed import embed_document, the_encoder

        encoder = the_encoder(self.model, self.encoder, self.device, self.dtype)

        def do(document: str | Document, _: Mapping[str, Any]) -> dict[str, Any]:
            done = embed_document(
                opened_document(document, raw, self.abbreviations)[0], encoder, language=self.language
            )
            return {"vector": done.vector, "tokens": done.tokens}

        return do


def opened_document(
    document: str | Document, raw: bool, abbreviations: Iterable[str] | None = None
) -> tuple[Document, str | None]:
    """The text of a row as a document, even where it is the name of a file, and a note on what was mended."""
    from longspan.characters import mend
    from longspan_documents.text.reading import abbreviating, document_of

    if not isinstance(document, str):
        return abbreviating(document, abbreviations or ()), None
    text, halves = mend(document)
    return abbreviating(document_of(text, raw=raw), abbreviations or ()), notes(halves=halves)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """See `longspan.answer`: each document is asked for itself."""

    model: str | None = None
    encoder: str | None = None
    reranker: str | None = None
    question: str | None = None
    question_field: str | None = None
    top: Count = 3
    threshold: Share | None = None
    device: str | None = None
    dtype: Dtype | None = None
    abbreviations: list[str] | None = None

    def __post_init__(self) -> None:
        """Refuse to ask nothing, or twice."""
        from longspan_documents.inference.answer import check_question

        check(self)
        if (self.question is None) == (self.question_field is None):
            given = "neither is" if self.question is None else "both are"
            raise InputError(
                f"question asks every document, question_field names a column of questions, and {given} given; give "
                "one of them"
            )
        if self.question is not None:
            check_question(self.question)

    @property
    def reads(self) -> tuple[str, ...]:
        """See `Verb`."""
        return () if self.question_field is None else (self.question_field,)

    def columns(self) -> dict[str, Any]:
        """See `Verb`."""
        pa = arrow()
        place = [("text", pa.string()), ("start", pa.int64()), ("end", pa.int64())]
        passage = pa.struct([*place, ("heading", pa.string()), ("probability", pa.float64())])
        return {
            "answer": pa.string(),
            "answered": pa.bool_(),
            "answer_start": pa.int64(),
            "answer_end": pa.int64(),
            "sure": pa.string(),
            "probability": pa.float64(),
            "passages": pa.list_(passage),
            "note": pa.string(),
        }

    def ready(self, *, raw: bool) -> Do:
        """See `Verb`."""
        from longspan_documents.inference.answer import answer, load_models

        named = ("model", "encoder", "reranker", "device", "dtype")
        models: dict[str, Any] = {name: getattr(self, name) for name in named}
        load_models(**models)  # they stay loaded
        options: dict[str, Any] = {"top": self.top, "threshold": self.threshold, "raw": raw, **models}

        def do(document: str | Document, row: Mapping[str, Any]) -> dict[str, Any]:
            question = self.question if self.question_field is None else row[self.question_field]
            opened, note = opened_document(document, raw, self.abbreviations)
            found = answer(opened, question, **options)  # pyright: ignore[reportArgumentType]
            quote = found.short.quote if found.short is not None else found.passages[0].sentence
            return {
                "answer": found.text if found.answered else None,
                "answered": found.answered,
                "answer_start": quote.start if found.answered else None,
                "answer_end": quote.end if found.answered else None,
                "sure": found.sure,
                "probability": found.probability,
                "passages": [
                    {
                        "text": one.text,
                        "start": one.quote.start,
                        "end": one.quote.end,
                        "heading": one.heading,
                        "probability": one.probability,
                    }
                    for one in found.passages
                ],
                "note": notes(found.note, note),
            }

        return do


@dataclass(frozen=True, kw_only=True)
class Classify(Alone):
    """See `longspan.classify`."""

    model: str
    device: str | None = None
    dtype: Dtype | None = None

    def __post_init__(self) -> None:
        """Refuse what is no text."""
        check(self)

    def columns(self) -> dict[str, Any]:
        """See `Verb`."""
        pa = arrow()
        share = pa.struct([("label", pa.string()), ("probability", pa.float64())])
        return {
            "label": pa.string(),
            "probability": pa.float64(),
            "probabilities": pa.list_(share),
            "tokens": pa.int64(),
            "of_tokens": pa.int64(),
            "note": pa.string(),
        }

    def ready(self, *, raw: bool) -> Do:
        """See `Verb`."""
        from longspan_documents.inference.classify import load_classifier

        classifier = load_classifier(self.model, self.device, self.dtype)

        def do(document: str | Document, _: Mapping[str, Any]) -> dict[str, Any]:
            found = classifier.classify_text(document if isinstance(document, str) else document.words)
            shares = [{"label": label, "probability": share} for label, share in found.probabilities.items()]
            told = {name: getattr(found, name) for name in ("label", "probability", "tokens", "of_tokens", "note")}
            return {**told, "probabilities": shares}

        return do


VERBS: Table[type[Any]] = Table(
    "map_verbs",
    {
        "summarize": Summarize,
        "answer": Answer,
        "embed": Embed,
        "classify": Classify,
    },
)
"""Verb → what it is; installed packages add to them."""
INDEX = "index"
"""The step that is none of them: it makes an index (`longspan_documents.mapping.indexing`)."""
ERROR = "error"
"""The last column that every verb adds."""


def step_of(name: str, options: Mapping[str, Any]) -> Verb:
    """What a job does: `verb_of`, or the step of an index."""
    return Prepare(**options) if name == INDEX else verb_of(name, options)


def verb_of(name: str, options: Mapping[str, Any]) -> Verb:
    """A verb with its options.

    Raises:
        InputError: the verb is unknown, an option is not one of its, or has a wrong value.
    """
    if not isinstance(name, str) or name not in VERBS:
        raise InputError(
            f"verb is {show(name)}, which cannot be mapped; {near(name if isinstance(name, str) else '', list(VERBS))}"
        )
    known = [one.name for one in fields(VERBS[name])]
    for option in options:
        if option not in known:
            others = [verb for verb, kind in VERBS.items() if option in [one.name for one in fields(kind)]]
            of = f"an option of {' and '.join(others)}, not of {name}" if others else f"no option of {name}"
            raise InputError(f"{option} is {of}; leave it out, or choose of {', '.join(known)}")
    if "model" in lacking(VERBS[name], options):
        raise InputError(f"{name} needs a model; give the folder of one as model")
    return VERBS[name](**options)


def lacking(verb: type[Any], options: Mapping[str, Any]) -> list[str]:
    """The options of a verb that have no default and are not given."""
    return [one.name for one in fields(verb) if one.default is MISSING and one.name not in options]


def added_columns(verb: Verb, prefix: str) -> dict[str, Any]:
    """The columns that a verb adds, with their types, under the names that the output has."""
    return {prefix + name: kind for name, kind in {**verb.columns(), ERROR: arrow().string()}.items()}


def check_names(inputs: list[str], added: list[str]) -> None:
    """Refuse results whose names the input has already.

    Raises:
        InputError: it names the first such column and the remedy.
    """
    same = next((name for name in added if name in inputs), None)
    if same is not None:
        raise InputError(
            f"the inputs have a column {same!r}, and so has the result; give a prefix for the result's columns, such "
            "as --prefix map_ (prefix= in Python), or rename the input's"
        )
