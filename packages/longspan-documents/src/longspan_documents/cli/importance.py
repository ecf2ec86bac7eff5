"""`longspan importance`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.characters import counted
from longspan.cli.terminal import say, say_json
from longspan.options import Computing
from longspan_documents.cli.documents import Encoding, Raw, what_is_read

epilog = what_is_read

if TYPE_CHECKING:
    from longspan_documents.inference.importance import Weighed

SHADES = ("", "on rgb(255,244,214)", "on rgb(255,222,148)", "on rgb(250,184,84)", "on rgb(224,123,40)")
"""Terminal styles, from unimportant to important."""


def importance(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A document; - is standard input.")],
    model: Annotated[
        str | None, typer.Option(help="Folder of a tagger, trained for the task importance.", show_default=False)
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="File of a summary, from which the importance of words is derived.", show_default=False),
    ] = None,
    *,
    computing: Computing,
    html: Annotated[Path | None, typer.Option(help="Write a web page of the shaded document.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print words with their places and importance.")] = False,
    raw: Raw = False,
    encoding: Encoding = None,
) -> None:
    """Show a document with its words shaded by how important they are.

    With `--model`, a tagger that `longspan train` trained for the task `importance` predicts the probability that a
    summary contains each word. With `--reference`, the important words are those that the summary contains in any form,
    except function words; these are the labels for training a tagger. Without either, the summary is that of `longspan
    summarize`. Without a terminal that shows colours, important words are printed between two stars.

    Examples: `longspan importance paper.pdf`, `longspan importance paper.pdf --reference abstract.txt`, `longspan
    importance paper.pdf --model runs/tagger --html page.html`.
    """
    from longspan_documents.inference.importance import importance as weigh
    from longspan_documents.pictures.pages import check_page, save_page
    from longspan_documents.pictures.shaded import importance_page
    from longspan_documents.text.reading import read

    if html is not None:
        check_page(html, [file, reference, model])
    named = None if reference is None else read(reference, encoding=encoding).words
    document = read(file, encoding=encoding, raw=raw)
    weighed = weigh(document, model=model, reference=named, device=computing.device, dtype=computing.dtype)
    if html is not None:
        save_page(importance_page(weighed, document.title or document.name), html)
    if json:
        words = ((weighed.text[word.start : word.end], word) for word in weighed.words)
        say_json(
            [
                {"word": text, "start": word.start, "end": word.end, "importance": round(word.importance, 4)}
                for text, word in words
            ]
        )
    elif html is None:
        _print(weighed)
    if weighed.note:
        say(f"note: {document.name}: {weighed.note}", error=True)
    say(f"[{counted(len(weighed.words), 'word')}, {weighed.important:,} important]", error=True)


def _print(weighed: "Weighed") -> None:
    """Print the text with its shades, or with stars around important words if there are no colours."""
    from rich.console import Console
    from rich.text import Text

    from longspan.characters import shown

    console, text, done = Console(), Text(), 0
    if not (sys.stdout.isatty() and console.color_system is not None and not console.no_color):
        for line in shown(starred(weighed)).splitlines():
            say(line)
        return
    for word in weighed.words:
        text.append(shown(weighed.text[done : word.start]))
        shade = SHADES[min(int(word.importance * len(SHADES)), len(SHADES) - 1)]
        text.append(shown(weighed.text[word.start : word.end]), style=f"black {shade}" if shade else "")
        done = word.end
    text.append(shown(weighed.text[done:]))
    console.print(text)


def starred(weighed: "Weighed") -> str:
    """Returns the text with two stars around important words; words without a space between them, as in a number
    (0.31), are marked together from the first important one to the last."""
    spans: list[list[int]] = []
    for word in weighed.words:
        if word.importance < 0.5:
            continue
        if spans and not any(map(str.isspace, weighed.text[spans[-1][1] : word.start])):
            spans[-1][1] = word.end
        else:
            spans.append([word.start, word.end])
    pieces, done = [], 0
    for start, end in spans:
        pieces += [weighed.text[done:start], "**", weighed.text[start:end], "**"]
        done = end
    return "".join([*pieces, weighed.text[done:]])
