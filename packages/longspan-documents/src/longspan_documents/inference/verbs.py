"""The options of the verbs, each declared once.

These classes define the keywords of `longspan.summarize` and the other verbs, the options of their commands and of
`longspan map`, and the requests of the JSON API (`longspan.options`). To add an option, add a field here, and use it
where the verb is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from longspan.errors import InputError
from longspan.options import EVERYWHERE, Computing, Device, Interface, Option, Options
from longspan.settings import Beams, Count, LengthPenalty, NewTokens, Range, Share, Whole, check_kind, show
from longspan_documents.text.options import LanguageReading, Reading, SentenceReading

if TYPE_CHECKING:
    from longspan_documents.inference.reranker import Reranker
    from longspan_documents.inference.sentence_encoder import SentenceEncoder
    from longspan_documents.text.blocks import Document
else:  # no library is loaded to parse a command line; the type is checked when the model is loaded
    Reranker = SentenceEncoder = Any

Encoder = Annotated[
    str | Path | SentenceEncoder | None,
    Option(
        "A sentence encoder: `multilingual`, or one of sentence-transformers, as a folder or a Hub name.",
        python="Or what `load_sentence_encoder` returned.",
        default="the bundled one",
    ),
]


ANSWERABLE = 0.67
"""Default share of questions that the documents are expected to answer."""
Length = Literal["short", "medium", "long"]
LONGEST_QUERY = 10_000
"""Maximum number of characters of a question, and of the query of a summary."""
PLAIN: tuple[Interface, ...] = ("command", "map")
"""Interfaces in which a field replaces an object that Python accepts."""


class Summarizer(Protocol):
    """A loaded summarisation model, as `load_summarizer` returns it.

    Example::

        summarizer = load_summarizer()
        for path in Path("reports").glob("*.pdf"):
            print(summarizer.summarize(read(path), 5))
    """

    def summarize(self, document: Document, sentences: Any = None, query: str | None = None) -> Any:
        """Summarise one document.

        Args:
            document: as returned by `read` or `document_of` of `longspan_documents.text.reading`.
            sentences: number of sentences to pick, or an `Extent` in sentences, words or short, medium, long; None is
                medium. A generative model that does not follow instructions accepts only None.
            query: the topic of the summary, for a model that reads queries.

        Returns:
            A `Summary`.

        Raises:
            InputError: the model does not support the length or the query, or the document is longer than its input.
        """
        ...


class QuestionReader(Protocol):
    """A loaded question-answering model, as `load_reader` returns it."""

    def best(self, question: str, documents: Any, passages: Any) -> Any:
        """Returns the best answer in passages."""
        ...


class DocumentClassifier(Protocol):
    """A loaded classifier, as `load_classifier` returns it."""

    def classify(self, document: Document) -> Any:
        """Predict the label of a document."""
        ...


class EmbeddingModel(Protocol):
    """A loaded encoder, as `load_encoder` returns it."""

    def embed(self, texts: Any) -> Any:
        """Returns vectors of separate texts."""
        ...

    def read(self, document: Any, sentences: Any) -> Any:
        """Returns vectors of a document and its sentences."""
        ...


@dataclass(frozen=True)
class Chunks(SentenceReading):
    """Options of `chunks`."""

    _: KW_ONLY
    max_words: Annotated[
        Annotated[int, Range(4)] | None,
        Option(
            "Words that a passage does not exceed.",
            python="Except by one long sentence, or a rest of less than a quarter of it at the end of a section. From "
            "half as many on, a passage ends with its paragraph. None takes 120, or, with `max_tokens`, sets no bound.",
            default="120; none with --max-tokens",
            where=EVERYWHERE,
        ),
    ] = None
    max_tokens: Annotated[
        Annotated[int, Range(8)] | None,
        Option(
            "Tokens that no passage exceeds, without special ones.",
            python="A sentence that is longer is cut between words, and the rest of a section is a passage of its own.",
            default="none",
            where=EVERYWHERE,
        ),
    ] = None
    overlap: Annotated[
        Whole,
        Option(
            "Sentences that a passage repeats of the one before it.",
            python="Of its section, where they fit.",
            where=EVERYWHERE,
        ),
    ] = 0
    tokenizer: Annotated[
        str | Path | Callable[..., Any] | None,
        Option(
            "Folder or Hub name of the model whose tokens are counted.",
            python="Or a tokenizer of transformers.",
            default="the bundled encoder's",
            flags=("--tokenizer", "--model"),
        ),
    ] = None


@dataclass(frozen=True)
class _Embedding(Computing):
    model: Annotated[
        str | Path | EmbeddingModel | None,
        Option(
            "An encoder, as a folder or a Hub name: any, lengthened or not.",
            python="The states of its tokens are pooled, unless it was trained to embed. Or what `load_encoder` "
            "returned.",
            default="the bundled one",
        ),
    ] = None
    _: KW_ONLY
    encoder: Encoder = None


@dataclass(frozen=True)
class EmbedTexts(_Embedding):
    """Options of `embed`, for separate texts."""

    _: KW_ONLY
    purpose: Annotated[
        Literal["question", "passage"] | None,
        Option("What the texts are, for the prompt that `encoder` puts before them.", where=("python",)),
    ] = None


@dataclass(frozen=True)
class Embed(_Embedding, LanguageReading):
    """Options of `embed_document`."""

    _: KW_ONLY
    sentences: Annotated[bool, Option("A vector for each sentence too.", where=("command", "api"))] = False


@dataclass(frozen=True)
class Answer(Computing, SentenceReading):
    """Options of `answer`."""

    model: Annotated[
        str | Path | QuestionReader | None,
        Option(
            "Folder of a model of questions that marks the very words.",
            python="It reads the best passages: the folder or name of a transformers `…ForQuestionAnswering`, "
            "lengthened or not, or of one trained here; or what `load_reader` gave.",
            default="none",
        ),
    ] = None
    _: KW_ONLY
    encoder: Encoder = None
    reranker: Annotated[
        str | Path | Reranker | None,
        Option(
            "A cross-encoder, as a folder or a Hub name: reads the 20 best again.",
            python="It reads the question with each of them, and orders them. Or what `load_reranker` gave.",
            default="none",
        ),
    ] = None
    top: Annotated[Count, Option("Passages to show.", where=EVERYWHERE, api=Range(1, 100))] = 3
    threshold: Annotated[
        Share | None,
        Option(
            "Probability, 0 to 1, of an answer among the first three below which the answer is reported as missing.",
            python="None reports this by the probability that any passage contains one, where it is right for three of "
            "four.",
            default="where that is mostly right",
            where=EVERYWHERE,
        ),
    ] = None
    answerable: Annotated[
        Annotated[float, Range(above=0, below=1)],
        Option(
            "Share of your questions, between 0 and 1, that you expect the documents to answer.",
            python="Probabilities increase with it.",
            where=EVERYWHERE,
        ),
    ] = ANSWERABLE


@dataclass(frozen=True, kw_only=True)
class Decoding(Options):
    """Generation options; None uses the model's own."""

    beams: Annotated[Beams | None, Option("Beams, for a model that writes.", where=PLAIN)] = None
    length_penalty: Annotated[LengthPenalty | None, Option("Above 0 favours longer texts, likewise.", where=PLAIN)] = (
        None
    )
    max_tokens: Annotated[NewTokens | None, Option("Longest summary in tokens, likewise.", where=PLAIN)] = None
    max_source_tokens: Annotated[
        Count | None, Option("Tokens that it reads at once.", default="as it was trained", where=PLAIN)
    ] = None
    long_documents: Annotated[
        Literal["parts", "lengthen"],
        Option("Longer documents: read parts, or lengthen the model where that can be done.", where=PLAIN),
    ] = "parts"

    def options(self) -> dict[str, Any]:
        """Returns keyword arguments of `generate`."""
        named = {"num_beams": self.beams, "length_penalty": self.length_penalty, "max_new_tokens": self.max_tokens}
        return {name: value for name, value in named.items() if value is not None}


def check_decoding(decoding: Any) -> None:
    """Raises `InputError` for decoding options of another type."""
    check_kind(decoding, "decoding", Decoding, "a Decoding of longspan_documents.inference.verbs")


def check_stream(stream: Any) -> None:
    """Raises `InputError` for a value that cannot be called."""
    if not callable(stream):
        raise InputError(f"stream is {show(stream)}; give a function that takes a text, or leave it out")


@dataclass(frozen=True)
class Summarize(Computing, LanguageReading):
    """Options of `summarize`."""

    sentences: Annotated[
        Annotated[int, Range(1)] | None,
        Option(
            "Sentences to pick.",
            python="None takes half the square root of the document's, between 3 and 20. Only for models that pick "
            "sentences, as `length` and `words`; give one of the three.",
            default="by the length",
            flags=("--sentences", "-n"),
            where=EVERYWHERE,
            api=Range(1, 100_000),
        ),
    ] = None
    model: Annotated[
        str | Path | Summarizer | None,
        Option(
            "Folder or Hub name of a model: one trained here, LED, BART, Pegasus, T5, …",
            python="Or what `load_summarizer` returned.",
            default="the bundled one",
        ),
    ] = None
    _: KW_ONLY
    length: Annotated[
        Length | None,
        Option("short, medium or long, by the document's length.", default="medium", where=EVERYWHERE),
    ] = None
    words: Annotated[
        Annotated[int, Range(1)] | None,
        Option(
            "Words, in whole sentences, as near as possible.",
            python="At most a tenth more.",
            where=EVERYWHERE,
            api=Range(1, 10_000_000),
        ),
    ] = None
    query: Annotated[
        str | None,
        Option(
            "What it is to be about: a question or some words.",
            python="For the bundled model, and for models that were trained here to write with the question's tokens "
            "global.",
            where=EVERYWHERE,
            api=Range(maximum=2_000),
        ),
    ] = None
    encoder: Encoder = None
    decoding: Annotated[
        Decoding | None,
        Option(
            "Beams and lengths of models that write, and what they do with documents longer than they read.",
            python="None keeps the model's.",
            where=("python",),
            check="longspan_documents.inference.verbs:check_decoding",
        ),
    ] = None
    stream: Annotated[
        Callable[[str], None] | None,
        Option(
            "Called with each piece of the text as a model writes it; one that picks sentences never calls it.",
            where=("python",),
            check="longspan_documents.inference.verbs:check_stream",
        ),
    ] = None

    def check_together(self) -> None:
        """See `Options`.

        Raises:
            InputError: there are two lengths, a query without letters or of more than `LONGEST_QUERY` characters, or an
                encoder without a query to compare with.
        """
        lengths = {name: getattr(self, name) for name in ("sentences", "words", "length")}
        specified = [f"{name}={show(value)}" for name, value in lengths.items() if value is not None]
        if len(specified) > 1:
            raise InputError(f"{' and '.join(specified)} ask for two lengths; give one of sentences, words and length")
        if self.query is not None and not self.query.strip():
            raise InputError("query is blank; give what the summary is to be about, or leave it out")
        if self.query is not None and not any(map(str.isalnum, self.query)):
            raise InputError(
                f"query={show(self.query)} has no letters or digits; give what the summary is to be about, or leave it "
                "out"
            )
        if self.query is not None and len(self.query) > LONGEST_QUERY:
            raise InputError(
                f"query has {len(self.query):,} characters, more than the {LONGEST_QUERY:,} that are read; give a "
                "question or some words"
            )
        if self.encoder is not None and self.query is None:
            raise InputError(
                f"encoder={show(self.encoder)} compares sentences with a query; give a query, or leave it out"
            )


@dataclass(frozen=True)
class Classify(Computing, Reading):
    """Options of `classify`."""

    model: Annotated[
        str | Path | DocumentClassifier,
        Option(
            "Folder or Hub name of a model that classifies.",
            python="Such as `longspan train` makes for the task `classification`; or what `load_classifier` returned.",
            missing="give a classifier of the Hub, such as "
            "distilbert/distilbert-base-uncased-finetuned-sst-2-english (how one feels about something) or "
            "papluca/xlm-roberta-base-language-detection, or train one with `longspan train hyperpartisan-small` "
            "or, on rows of your own, with the recipe of packages/longspan-documents/docs/guides/classify.md",
        ),
    ]


@dataclass(frozen=True)
class Index(SentenceReading):
    """Options of `index`."""

    model: Annotated[
        str | Path | None,
        Option(
            "Folder of a model of questions, to store its states.",
            python="Its lower layers read passages without the question (`longspan.decompose`); an "
            "index that is there knows its own. None makes, or adds to, an index without a model.",
            default="none",
        ),
    ] = None
    _: KW_ONLY
    lower_layers: Annotated[
        Count | None,
        Option("Decompose the model: number of layers that read passages without the question.", default="as it is"),
    ] = None
    dtype: Annotated[
        Literal["float16", "bfloat16", "float32"], Option("How states are stored.", python="With a model.")
    ] = "float16"
    encoder: Annotated[
        str | Path | None,
        Option(
            "A sentence encoder: `multilingual`, or one of sentence-transformers, as a folder or a Hub name.",
            default="the bundled one",
        ),
    ] = None
    device: Device = None
