"""What the commands that read documents share: options, names of files, and pictures of texts."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.characters import on_one_line
from longspan.cli.terminal import say
from longspan.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Json = Annotated[bool, typer.Option("--json", help="Print a JSON list with places, scores and times.")]
Raw = Annotated[bool, typer.Option("--raw", help="Leave nothing out and guess no structure.")]
Encoder = Annotated[
    str | None,
    typer.Option(
        help="A sentence encoder (sentence-transformers), as a folder or a Hub name.", show_default="the bundled one"
    ),
]
Reranker = Annotated[
    str | None,
    typer.Option(help="A cross-encoder, as a folder or a Hub name: reads the 20 best again.", show_default="none"),
]
Abbreviations = Annotated[
    Path | None,
    typer.Option(
        "--abbreviations",
        metavar="FILE",
        help="Words that no sentence ends with, one a line.",
        show_default=False,
    ),
]
LARGEST_LIST = 1 << 16
"""Bytes of a file of abbreviations."""
PageHeaders = Annotated[
    bool, typer.Option("--page-headers", help="Read heads and feet of pages too, of Word and OpenDocument texts.")
]
Ocr = Annotated[bool, typer.Option("--ocr", help="Read pages that are pictures, and images, by text recognition.")]
Encoding = Annotated[str | None, typer.Option(help="Encoding of text files.", show_default="as marked, else UTF-8")]


def abbreviations_in(file: Path | None) -> list[str]:
    """The words of a file of abbreviations, one in each line; lines that begin with "#" are comments.

    Raises:
        InputError: the file cannot be read, is no text in UTF-8, or longer than any such list.
    """
    if file is None:
        return []
    from longspan.data.jsonl import check_regular
    from longspan_documents.text.kinds.source import PIPES

    named = f"--abbreviations {on_one_line(str(file))}"
    try:
        if not PIPES.fullmatch(str(file)):
            check_regular(file)  # another pipe, or a device, may never end
        with file.open("rb") as opened:
            data = opened.read(LARGEST_LIST + 1)
        lines = data.decode("utf-8-sig").splitlines()
    except InputError as error:
        raise InputError(f"--abbreviations: {error}") from error
    except (OSError, ValueError) as error:  # ValueError: bytes that are no UTF-8, or a zero byte in the path
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise InputError(f"{named} cannot be read: {reason}") from error
    if len(data) > LARGEST_LIST:
        raise InputError(f"{named} is longer than {LARGEST_LIST >> 10} KiB; give a list of the words that matter")
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def what_is_read() -> str:
    """The end of the help of a command that reads documents."""
    from longspan.imports import load_plugins
    from longspan_documents.text.kinds.table import kinds_in_words

    load_plugins()
    return f"Documents that are read, by their contents first: {kinds_in_words()}."


def say_heading(text: str, *, first: bool) -> None:
    """Write a heading above one of several results."""
    say(("" if first else "\n") + f"== {text} ==\n")


def save_with_note(figure: "Figure", picture: Path) -> None:
    """Save a picture; characters that no installed font has are said in one line on stderr."""
    from longspan.pictures.patterns import save_picture

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save_picture(figure, picture)
    # matplotlib warns once for each character that no font has; one line says the same.
    missing = [warning for warning in caught if str(warning.message).startswith("Glyph ")]
    if missing:
        say(f"note: {picture}: no installed font has all characters of this text; they show as boxes", error=True)
    for other in caught:
        if other not in missing:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
