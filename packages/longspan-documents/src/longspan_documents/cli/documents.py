"""Helpers of the commands that read documents: file kinds, headings, and pictures."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.options import option_of
from longspan.cli.terminal import say
from longspan_documents.inference.verbs import Answer
from longspan_documents.text.options import SentenceReading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Json = Annotated[bool, typer.Option("--json", help="Print a JSON list with places, scores and times.")]
Raw = Annotated[bool, option_of(SentenceReading, "raw")]
Encoding = Annotated[str | None, option_of(SentenceReading, "encoding")]
Abbreviations = Annotated[Path | None, option_of(SentenceReading, "abbreviations")]
Ocr = Annotated[bool, option_of(SentenceReading, "ocr")]
Encoder = Annotated[str | None, option_of(Answer, "encoder")]
Reranker = Annotated[str | None, option_of(Answer, "reranker")]


def what_is_read() -> str:
    """Returns the end of the help of a command that reads documents."""
    from longspan.imports import load_plugins
    from longspan_documents.text.kinds.table import kinds_in_words

    load_plugins()
    return f"Documents that are read, by their contents first: {kinds_in_words()}."


def say_heading(text: str, *, first: bool) -> None:
    """Print a heading above one of several results."""
    say(("" if first else "\n") + f"== {text} ==\n")


def save_with_note(figure: "Figure", picture: Path) -> None:
    """Save a picture; one line on stderr reports characters that no installed font has."""
    from longspan.pictures.patterns import save_picture

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save_picture(figure, picture)
    # matplotlib warns once for each missing character; one line replaces these warnings.
    missing = [warning for warning in caught if str(warning.message).startswith("Glyph ")]
    if missing:
        say(f"note: {picture}: no installed font has all characters of this text; they show as boxes", error=True)
    for warning in caught:
        if warning not in missing:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
