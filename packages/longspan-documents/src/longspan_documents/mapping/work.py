"""The verbs of `longspan map`: options, added columns, and their values for a document.

Each verb is a class. Its `declared` options are the arguments of `longspan map VERB` and `map_documents`, and are
checked before anything is loaded. `columns` returns the types of the added columns; `ready` loads the models and
returns the function that is called for every document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from longspan.errors import InputError
from longspan.imports import Table
from longspan.options import Option, Options, fields_of
from longspan.settings import near, show
from longspan_documents.inference import verbs
from longspan_documents.mapping.verb import Do, Verb

if TYPE_CHECKING:
    from longspan_documents.text.blocks import Document


class Summarize(Verb[verbs.Summarize]):
    """See `longspan.summarize`."""

    declared = verbs.Summarize

    def columns(self) -> dict[str, Any]:
        """See `Verb`."""
        pa = _arrow()
        place = [("text", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("score", pa.float64())]
        sentence = pa.struct([*place, ("speaker", pa.string())])
        return {
            "summary": pa.string(),
            "sentences": pa.list_(sentence),
            "tokens": pa.int64(),
            "note": pa.string(),
        }

    def ready(self) -> Do:
        """See `Verb`."""
        from longspan_documents.inference.results import notes
        from longspan_documents.inference.summarize import summarize_documents, summarizer_in

        loaded = summarizer_in(self.options)

        def do(document: str | Document, _: Mapping[str, Any]) -> dict[str, Any]:
            opened, note = self.opened(document)
            (summary,) = summarize_documents(loaded, [opened], self.options)
            return {
                "summary": summary.text,
                "sentences": [
                    {name: getattr(sentence, name) for name in ("text", "start", "end", "score", "speaker")}
                    for sentence in summary.sentences
                ],
                "tokens": summary.tokens,
                "note": notes(summary.note, note),
            }

        return do


class Chunks(Verb[verbs.Chunks]):
    """See `longspan.chunks`."""

    declared = verbs.Chunks

    def columns(self) -> dict[str, Any]:
        """See `Verb`."""
        pa = _arrow()
        place = [("text", pa.string()), ("start", pa.int64()), ("end", pa.int64())]
        kinds = [("headings", pa.list_(pa.string())), ("words", pa.int64()), ("tokens", pa.int64())]
        return {"passages": pa.list_(pa.struct([*place, *kinds])), "note": pa.string()}

    def ready(self) -> Do:
        """See `Verb`."""
        from longspan_documents.inference.chunks import cut

        def do(document: str | Document, _: Mapping[str, Any]) -> dict[str, Any]:
            opened, note = self.opened(document)
            records = [passage.record() for passage in cut(opened, self.options)]
            names = ("text", "start", "end", "headings", "words", "tokens")
            return {"passages": [{name: record[name] for name in names} for record in records], "note": note}

        return do


class Embed(Verb[verbs.Embed]):
    """See `longspan.embed_document`."""

    declared = verbs.Embed

    def columns(self) -> dict[str, Any]:
        """See `Verb`."""
        pa = _arrow()
        return {"vector": pa.list_(pa.float32()), "tokens": pa.int64()}

    def ready(self) -> Do:
        """See `Verb`."""
        from longspan_documents.inference.embed import embedded, encoder_in

        encoder = encoder_in(self.options)

        def do(document: str | Document, _: Mapping[str, Any]) -> dict[str, Any]:
            done = embedded(self.opened(document)[0], encoder, self.options.language)
            return {"vector": done.vector, "tokens": done.tokens}

        return do


@dataclass(frozen=True)
class Asked(verbs.Answer):
    """Options of `longspan map answer`: those of `answer`, and the source of the questions."""

    _: KW_ONLY
    question: Annotated[str | None, Option("Asked of every document.", where=("map",), flags=("--question", "-q"))] = (
        None
    )
    question_field: Annotated[str | None, Option("Column of each row's question.", where=("map",))] = None

    def check_together(self) -> None:
        """Check that there is one source of questions.

        Raises:
            InputError: there is none, or there are two.
        """
        from longspan_documents.inference.answer import check_question

        if (self.question is None) == (self.question_field is None):
            which = "neither is" if self.question is None else "both are"
            raise InputError(
                f"question asks every document, question_field names a column of questions, and {which} given; give "
                "one of them"
            )
        if self.question is not None:
            check_question(self.question)


class Answer(Verb[Asked]):
    """See `longspan.answer`; each document is searched separately."""

    declared = Asked

    @property
    def reads(self) -> tuple[str, ...]:
        """See `Verb`."""
        return () if self.options.question_field is None else (self.options.question_field,)

    def columns(self) -> dict[str, Any]:
        """See `Verb`."""
        pa = _arrow()
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

    def ready(self) -> Do:
        """See `Verb`."""
        from longspan_documents.inference.answer import answer_in, load_models, models_in
        from longspan_documents.inference.results import notes

        options = self.options
        load_models(**models_in(options))  # they stay cached

        def do(document: str | Document, row: Mapping[str, Any]) -> dict[str, Any]:
            question = options.question if options.question_field is None else row[options.question_field]
            opened, note = self.opened(document)
            found = answer_in([opened], question, options)  # pyright: ignore[reportArgumentType]
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
                        "text": passage.text,
                        "start": passage.quote.start,
                        "end": passage.quote.end,
                        "heading": passage.heading,
                        "probability": passage.probability,
                    }
                    for passage in found.passages
                ],
                "note": notes(found.note, note),
            }

        return do


class Classify(Verb[verbs.Classify]):
    """See `longspan.classify`."""

    declared = verbs.Classify

    def columns(self) -> dict[str, Any]:
        """See `Verb`."""
        pa = _arrow()
        share = pa.struct([("label", pa.string()), ("probability", pa.float64())])
        return {
            "label": pa.string(),
            "probability": pa.float64(),
            "probabilities": pa.list_(share),
            "tokens": pa.int64(),
            "of_tokens": pa.int64(),
            "note": pa.string(),
        }

    def ready(self) -> Do:
        """See `Verb`."""
        from longspan_documents.inference.classify import classifier_in

        classifier = classifier_in(self.options)

        def do(document: str | Document, _: Mapping[str, Any]) -> dict[str, Any]:
            found = classifier.classify_text(document if isinstance(document, str) else document.words)
            shares = [{"label": label, "probability": share} for label, share in found.probabilities.items()]
            columns = {name: getattr(found, name) for name in ("label", "probability", "tokens", "of_tokens", "note")}
            return {**columns, "probabilities": shares}

        return do


VERBS: Table[type[Verb[Any]]] = Table(
    "map_verbs",
    {
        "summarize": Summarize,
        "answer": Answer,
        "embed": Embed,
        "classify": Classify,
        "chunks": Chunks,
    },
)
"""Name → verb; installed packages add further ones."""
INDEX = "index"
"""The name of the step that builds an index (`longspan_documents.mapping.indexing`); it is no verb."""
ERROR = "error"
"""The last column that every verb adds."""


def step_of(name: str, options: Mapping[str, Any]) -> Verb[Any]:
    """Returns the step of a job, whose options were checked when the job was made: a verb, or the step of an index."""
    if name == INDEX:
        from longspan_documents.mapping.preparing import Prepare

        return Prepare(Prepare.declared.restore(options, "map"))
    return VERBS[name](VERBS[name].declared.restore(options, "map"))


def verb_of(name: str, options: Mapping[str, Any]) -> Verb[Any]:
    """Returns a verb with its options.

    Raises:
        InputError: the verb or an option is unknown, or an option has a wrong value.
    """
    if not isinstance(name, str) or name not in VERBS:
        raise InputError(
            f"verb is {show(name)}, which cannot be mapped; {near(name if isinstance(name, str) else '', list(VERBS))}"
        )
    known = options_of(VERBS[name].declared)
    for option in options:
        if option not in known:
            holders = [verb for verb, kind in VERBS.items() if option in options_of(kind.declared)]
            of = f"an option of {' and '.join(holders)}, not of {name}" if holders else f"no option of {name}"
            raise InputError(f"{option} is {of}; leave it out, or choose of {', '.join(known)}")
    return VERBS[name](VERBS[name].declared.parse(options, "map"))


def options_of(declared: type[Options]) -> list[str]:
    """Returns the names of the options that a verb accepts here."""
    return [field.name for field in fields_of(declared, "map")]


def added_columns(verb: Verb[Any], prefix: str) -> dict[str, Any]:
    """Returns the columns that a verb adds, with their types, under their names in the output."""
    return {prefix + name: kind for name, kind in {**verb.columns(), ERROR: _arrow().string()}.items()}


def check_names(inputs: list[str], added: list[str]) -> None:
    """Check that the input has no column with the name of an added one.

    Raises:
        InputError: it has; the message names the first such column and the remedy.
    """
    same = next((name for name in added if name in inputs), None)
    if same is not None:
        raise InputError(
            f"the inputs have a column {same!r}, and so has the result; give a prefix for the result's columns, such "
            "as --prefix map_ (prefix= in Python), or rename the input's"
        )


def _arrow() -> Any:
    from longspan_documents.mapping.inputs import arrow  # imported late: the command line needs only the options

    return arrow()
