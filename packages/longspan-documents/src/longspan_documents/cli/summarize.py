"""`longspan summarize`."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.characters import counted
from longspan.cli.terminal import name_of, say, say_json
from longspan.errors import InputError
from longspan_documents.cli.documents import Json, save_with_note, say_heading, what_is_read
from longspan_documents.inference.verbs import Summarize

epilog = what_is_read

if TYPE_CHECKING:
    from longspan_documents.inference.outline import Section
    from longspan_documents.inference.results import Summary
    from longspan_documents.text.blocks import Document


def summarize(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Documents; - is standard input.")],
    options: Summarize,
    outline: Annotated[
        bool, typer.Option("--outline", help="Section by section: headings, each with its best sentences.")
    ] = False,
    json: Json = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the document as a strip with each sentence's score.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a web page: the whole document shaded by score, next to the summary.")
    ] = None,
    stream: Annotated[
        bool | None,
        typer.Option("--stream/--no-stream", help="Print as it writes.", show_default="one file on a terminal"),
    ] = None,
) -> None:
    """Summarise documents of any length.

    Without `--model`, a small bundled model scores every sentence of the whole document, and the best ones are printed
    in order: nothing is cut off, nothing is downloaded. With `--model`, a sequence-to-sequence or instruction-tuned
    model, the summary is generated.

    Examples: `longspan summarize paper.pdf -n 8`, `longspan summarize book.txt --picture strip.png`, `longspan
    summarize meeting.txt --query "What was decided about the budget?"`, `longspan summarize report.docx --html
    page.html`, `curl -s URL | longspan summarize - --json`, `longspan summarize report.md --model runs/led-arxiv-16k
    --beams 4`.
    """
    from longspan_documents.inference.outline import outline as outline_of
    from longspan_documents.inference.summarize import summarize_documents, summarizer_in
    from longspan_documents.text.reading import read_file

    _check_outputs(files, options, picture, html)
    # Every file is read before any is summarised, so that an error in the last one is found first.
    documents = [read_file(file, options) for file in files]
    characters = sum(len(document.text) for document in documents)
    pieces = _Pieces() if _streams(stream, files, json, outline) else None
    done = []
    options = options if pieces is None else replace(options, stream=pieces)
    summaries = summarize_documents(summarizer_in(options, characters), documents, options)
    for file, document, summary in zip(files, documents, summaries, strict=True):
        sections = outline_of(document, summary) if outline else ()
        if outline and not summary.document:
            raise InputError(
                f"--outline needs a model that picks sentences, but {options.model} writes; leave one of them out"
            )
        done.append((file, summary, sections))
        if picture is not None:
            from longspan_documents.pictures.strips import draw_summary

            save_with_note(draw_summary(summary, name_of(file)), picture)
        if html is not None:
            from longspan_documents.pictures.pages import save_page, summary_page

            save_page(summary_page(document, summary, sections=sections), html)
        if not json:
            if len(files) > 1:
                say_heading(name_of(file), first=len(done) == 1)
            _print(file, document, summary, sections, written=pieces is not None and pieces.begun)
    if json:
        read_as = [document.extracted for document in documents]
        rows = zip(done, read_as, strict=True)
        say_json([_record(file, summary, sections, outline, document) for (file, summary, sections), document in rows])
        for document, (file, summary, _) in zip(documents, done, strict=True):
            _print_note(file, document, summary)


class _Pieces:
    """Writes each piece of a text to the terminal when it is generated."""

    begun = False

    def __call__(self, piece: str) -> None:
        say(piece, end="")
        sys.stdout.flush()
        self.begun = True


def _streams(asked: bool | None, files: list[str], json: bool, outline: bool) -> bool:
    """Whether the summary is printed while it is generated: for one document, on a terminal or with `--stream`."""
    if asked and (json or outline or len(files) > 1):
        conflict = "--json" if json else "--outline" if outline else f"{len(files)} files"
        raise InputError(f"--stream prints one summary as it is written, and {conflict} is given; leave one out")
    return not (json or outline or len(files) > 1) and (sys.stdout.isatty() if asked is None else asked)


def _check_outputs(files: list[str], options: Summarize, picture: Path | None, html: Path | None) -> None:
    """Check, before any work, that the picture and the page can be written, and that there is only one document."""
    read = [*files, *([] if options.model is None else [str(options.model)])]
    for option, output, does in (("--picture", picture, "draws"), ("--html", html, "shows")):
        if output is not None and len(files) > 1:
            raise InputError(f"{option} {output} {does} one document, but {len(files)} are given; name one of them")
    if picture is not None:
        from longspan.pictures.patterns import check_picture

        check_picture(picture, read)
    if html is not None:
        from longspan_documents.pictures.pages import check_page

        check_page(html, read)


def _print(
    file: str, document: "Document", summary: "Summary", sections: "Sequence[Section]", *, written: bool
) -> None:
    if written:
        say("")
    sys.stdout.flush()
    _print_note(file, document, summary)
    if not written:
        say("\n\n".join(map(str, sections)) or summary.text)
    of = f"{len(summary.sentences)} of {counted(len(summary.document), 'sentence')}, " if summary.document else ""
    sys.stdout.flush()
    say(f"[{name_of(file)}: {of}{counted(summary.tokens, 'token')} read in {summary.seconds:.1f} s]", error=True)


def _print_note(file: str, document: "Document", summary: "Summary") -> None:
    """Print the note of a summary, without the document's note, which is printed already."""
    from longspan_documents.inference.results import further_note

    if note := further_note(document, summary):
        say(f"note: {name_of(file)}: {note}", error=True)


def _record(
    file: str, summary: "Summary", sections: "Sequence[Section]", outline: bool, extracted: bool
) -> dict[str, object]:
    outlined = {"outline": [asdict(section) for section in sections]} if outline else {}
    return {
        "file": file,
        "sentences": [asdict(sentence) for sentence in summary.sentences],
        **outlined,
        "places": "of the text as it was read" if extracted else "of the file",
        "tokens": summary.tokens,
        "seconds": round(summary.seconds, 3),
        "note": summary.note,
    }
