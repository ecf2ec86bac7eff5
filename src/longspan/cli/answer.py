"""`longspan answer`."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.documents import Encoding, Json, name_of, save_with_note, say_heading
from longspan.cli.terminal import say, say_json
from longspan.errors import InputError

if TYPE_CHECKING:
    from longspan.inference.results import DocumentAnswer, Quote


def answer(
    file: Annotated[str, typer.Argument(help=".txt, .md, .html or .pdf; - is standard input.")],
    questions: Annotated[list[str], typer.Argument(metavar="QUESTION", help="One or more, each in quotes.")],
    model: Annotated[
        str | None,
        typer.Option(help="Folder of a model trained here for natural_questions.", show_default="the bundled one"),
    ] = None,
    json: Json = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the document as a strip with each passage's probability.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Probability from which on there is an answer, 0 to 1.",
            show_default="0.8 for the bundled reader, else 0.5",
        ),
    ] = None,
    encoding: Encoding = None,
) -> None:
    """Answer questions from a document of any length.

    Prints the short answer, the passage it stands in and where that is in its text, or says that the document holds no
    answer and shows the nearest passage. Without `--model`, a small bundled reader reads the whole document.

    Examples: `longspan answer paper.pdf "which organism was studied?"`, `longspan answer book.txt "who is Mr. Collins?"
    --picture strip.png`, `curl -s URL | longspan answer - "when was it founded?" --json`.
    """
    from longspan.data.text.reading import read
    from longspan.inference.answer import check_question, load_reader

    for question in questions:
        check_question(question)
    if picture is not None:
        from longspan.pictures.patterns import check_picture

        if len(questions) > 1:
            raise InputError(f"--picture {picture} draws one answer, but {len(questions)} questions are asked; ask one")
        check_picture(picture)
    document = read(file, encoding)
    reader = load_reader(model)
    done = []
    for number, question in enumerate(questions):
        found = reader.answer(document.text, question, threshold=threshold, pages=document.pages)
        done.append(found)
        if picture is not None:
            from longspan.pictures.answers import draw_answer

            save_with_note(draw_answer(found, name_of(file)), picture)
        if not json:
            if len(questions) > 1:
                say_heading(" ".join(question.split()), first=number == 0)
            _print(file, found)
    if json:
        say_json([_record(file, found) for found in done])
    for note in dict.fromkeys(found.note for found in done if found.note):
        say(f"note: {name_of(file)}: {note}", error=True)


def _print(file: str, found: "DocumentAnswer") -> None:
    if found.answered and found.short is None and found.yes_no == "none":
        say("This passage answers:")
    else:
        _emphasise(found.text)
    say()
    _show(found.passage, found.short)
    nearest = "" if found.answered else "the nearest passage: "
    say(f"\n[{nearest}{_place(found.passage)}; probability {found.probability:.2f}]")
    sys.stdout.flush()
    say(f"[{name_of(file)}: {found.tokens:,} tokens read in {found.seconds:.1f} s]", error=True)


def _place(quote: "Quote") -> str:
    """Where a quote is in words: in the text as it was read, whose lines are not those of a PDF file or a web page."""
    from longspan.pictures.answers import place_in_words

    characters, in_bytes = f"{quote.start:,}–{quote.end:,}", f"{quote.start_byte:,}–{quote.end_byte:,}"
    return f"{place_in_words(quote)} of the text, characters {characters}, bytes {in_bytes}"


def _emphasise(text: str) -> None:
    """Print a text, bold where a terminal reads it."""
    from rich.console import Console
    from rich.text import Text

    from longspan.characters import shown

    if sys.stdout.isatty():
        Console().print(Text(shown(text), style="bold"))
    else:
        say(text)


def _show(passage: "Quote", short: "Quote | None") -> None:
    """Print the passage, indented; a terminal shows the short answer in it in colour."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from longspan.characters import shown

    if not sys.stdout.isatty():
        for line in passage.text.splitlines():
            say(f"  {line}".rstrip())
        return
    text = Text(shown(passage.text))
    if short is not None:
        text.stylize("bold black on yellow", short.start - passage.start, short.end - passage.start)
    Console().print(Padding(text, (0, 2)))


def _record(file: str, found: "DocumentAnswer") -> dict[str, object]:
    return {
        "file": file,
        "question": found.question,
        "answered": found.answered,
        "answer": found.text if found.answered else None,
        "yes_no": found.yes_no,
        "probability": round(found.probability, 4),
        "short": asdict(found.short) if found.short else None,
        "passage": asdict(found.passage),
        "passages": [{"start": one.start, "end": one.end, "probability": one.score} for one in found.passages],
        "tokens": found.tokens,
        "seconds": round(found.seconds, 3),
    }
