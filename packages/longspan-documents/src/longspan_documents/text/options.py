"""How documents are read: options that all verbs share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from longspan.options import Option, Options

Encoding = Annotated[
    str | None,
    Option(
        "Encoding of text files.",
        python="None takes the byte order mark, else what an HTML page declares, else UTF-8; others such as "
        "Latin-1 are never guessed, since a wrong guess cannot be noticed.",
        default="as marked, else UTF-8",
        check="longspan_documents.text.documents:check_encoding",
    ),
]


@dataclass(frozen=True)
class Reading(Options):
    """How files become documents."""

    _: KW_ONLY
    encoding: Encoding = None
    raw: Annotated[
        bool,
        Option(
            "Leave nothing out and guess no structure.",
            python="Every block is a paragraph, and JSON a text like any other.",
        ),
    ] = False
    page_headers: Annotated[
        bool, Option("Read heads and feet of pages too, of Word and OpenDocument texts.", python="Each once, as notes.")
    ] = False
    ocr: Annotated[
        bool,
        Option(
            "Read pages that are pictures, and images, by text recognition.",
            python="It takes seconds a page; `Document.recognised` has those pages.",
        ),
    ] = False


@dataclass(frozen=True)
class SentenceReading(Reading):
    """The same for verbs that cut documents into sentences."""

    _: KW_ONLY
    abbreviations: Annotated[
        Iterable[str],
        Option(
            "Words that no sentence ends with, one a line.",
            python='The words themselves, such as "Anm.", besides those that are known.',
            metavar="FILE",
            from_file=True,
            check="longspan.data.text.abbreviations:abbreviations_from",
        ),
    ] = ()


@dataclass(frozen=True)
class LanguageReading(SentenceReading):
    """The same for verbs that are told the language of the sentences."""

    _: KW_ONLY
    language: Annotated[
        str | None,
        Option(
            "Language code (ISO 639-1) for finding sentences.",
            python="None guesses.",
            default="by the script",
            check="longspan.data.text.sentences:check_language",
        ),
    ] = None


@dataclass(frozen=True)
class FileReading(SentenceReading):
    """Options of `read`, which takes the encoding by its place too."""

    encoding: Encoding = None
