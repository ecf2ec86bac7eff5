"""`longspan answer`."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.characters import counted
from longspan.cli.terminal import name_of, say, say_coloured, say_json
from longspan.errors import InputError
from longspan_documents.cli.documents import Json, save_with_note, say_heading, what_is_read
from longspan_documents.inference.verbs import Answer

epilog = what_is_read

if TYPE_CHECKING:
    from longspan_documents.inference.results import DocumentAnswer, RankedPassage


MANY = 20
"""From this number of documents in a folder, a note recommends an index."""
INDEX_IT = (
    "the documents are read and embedded anew for every command; `longspan index FOLDER --output INDEX` does so once, "
    "and `longspan answer --index INDEX` asks it"
)


def answer(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DOCUMENT… QUESTION",
            help="Files or folders (- is standard input), then the question in quotes, unless --question asks it.",
            show_default=False,
        ),
    ] = None,
    questions: Annotated[
        list[str] | None, typer.Option("--question", "-q", help="A question; may be repeated.", show_default=False)
    ] = None,
    json: Json = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the document as a strip with each passage's probability.")
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option(help="Ask the documents of this index, which `longspan index` made.", show_default=False),
    ] = None,
    *,
    options: Answer,
) -> None:
    """Find the passages of documents that answer a question, in files and folders of any length.

    Shows the passages that are most likely to contain the answer, best first, with their positions, section or speaker,
    the most relevant sentence, and the probability; or reports that there is probably no answer. With `--model`, a
    question-answering model reads the best passages and marks the answer; `--encoder` replaces the bundled encoder by a
    sentence encoder, and `--reranker` reranks the best passages with a cross-encoder; `--index` searches a collection
    that was indexed before.

    Examples: `longspan answer paper.pdf "which organism was studied?"`, `longspan answer contracts/ "who may cancel?"`,
    `longspan answer a.pdf b.md -q "when did it begin?" -q "who paid?"`, `curl -s URL | longspan answer - "when?"`,
    `longspan answer --index library "who may cancel?"`.
    """
    from longspan_documents.inference.answer import (
        Answerer,
        asking_in,
        check_question,
        models_in,
        notes_of,
        read_documents,
    )
    from longspan_documents.inference.results import notes

    sources, asked = _told_apart(words or [], questions or [], indexed=index is not None)
    for question in asked:
        check_question(question)
    if picture is not None:
        from longspan.pictures.patterns import check_picture

        if len(asked) > 1:
            raise InputError(f"--picture {picture} draws one answer, but {len(asked)} questions are asked; ask one")
        if len(sources) != 1 or Path(sources[0]).is_dir():
            raise InputError(f"--picture {picture} draws one document; name one file")
        models = [str(source) for source in (options.model, options.encoder, options.reranker) if source is not None]
        check_picture(picture, [*sources, *models, index])
    if index is not None:
        reading_options = {
            "--abbreviations": options.abbreviations,
            "--page-headers": options.page_headers,
            "--ocr": options.ocr,
        }
        if named := next((name for name, is_given in reading_options.items() if is_given), None):
            raise InputError(f"{named} is for documents, and those of --index are read already; leave it out")
        from longspan_documents.inference.indexing.opening import open_index

        answerer = open_index(index, **models_in(options))
    else:
        # Every document is read before any question is answered, so that an error in the last one is found first.
        documents, skipped = read_documents([Path(source) for source in sources], options)
        for note in skipped:
            say(f"note: {note}", error=True)
        if any(Path(source).is_dir() for source in sources) and len(documents) >= MANY:
            say(f"note: {INDEX_IT}", error=True)
        answerer = Answerer(documents, **models_in(options))
    done: list[DocumentAnswer] = []
    for question in asked:
        result = answerer.answer(question, **asking_in(options))
        done.append(result)
        if picture is not None:
            from longspan_documents.pictures.strips import draw_answer

            save_with_note(draw_answer(result, answerer.documents[0].name), picture)
        if not json:
            if len(asked) > 1:
                say_heading(result.question, first=len(done) == 1)
            _print(result, several=index is not None or len(sources) > 1 or Path(sources[0]).is_dir())
    if json:
        document_notes = [] if index is not None else notes_of(answerer.documents)
        say_json([_record(result) | {"note": notes(*document_notes, result.note)} for result in done])
    for note in dict.fromkeys(result.note for result in done if result.note):
        say(f"note: {note}", error=True)


def _told_apart(words: list[str], questions: list[str], *, indexed: bool) -> tuple[list[str], list[str]]:
    """Separate documents from questions: without `--question`, the last word is the question."""
    if not words and not (indexed and questions):
        raise InputError("nothing is asked; name a document and ask a question")
    if indexed:
        sources, asked = (words, questions) if questions else (words[:-1], words[-1:])
        if sources:
            raise InputError(f"{sources[0]!r} is given with --index; leave it out, or add it with `longspan index`")
        return [], asked
    if questions:
        return words, questions
    *sources, question = words
    if not sources:
        raise InputError(f"{question!r} is all that is given; name a document and ask a question")
    for index, source in enumerate(sources):
        if source.rstrip().endswith("?") and not Path(source).exists():
            if not index and Path(question).exists():
                raise InputError(f"{source!r} is not a document; give the question last, or with -q")
            raise InputError(f"{source!r} is no document; ask several questions with -q before each of them")
    return sources, [question]


def _print(result: "DocumentAnswer", *, several: bool) -> None:
    chance = result.probability
    if not result.answered and chance is None:
        say("No answer found. The nearest passages:\n")
    elif not result.answered:
        say(f"Probably not there (probability of an answer: {chance:.2f}). The nearest passages:\n")
    elif result.short is not None:
        say_coloured([(str(result.short), "bold")])
        file = next((passage.file for passage in result.passages if passage.document == result.short.document), "")
        where = f"{name_of(file)}, " if several and file else ""
        quote = result.short.quote
        where += f"{quote.place}, characters {quote.start:,}–{quote.end:,}"
        say(f"[{where}; probability {result.short.probability:.2f}]\n")
    for number, passage in enumerate(result.passages, 1):
        quote = passage.quote
        parts = [name_of(passage.file)] if several else []
        parts.append(f"{quote.place}, characters {quote.start:,}–{quote.end:,}")
        parts += [passage.heading] if passage.heading else []
        parts += [", ".join(passage.speakers)] if passage.speakers else []
        parts += [] if passage.probability is None else [f"probability {passage.probability:.2f}"]
        say(f"{number}. {' · '.join(parts)}")
        _write_marked(passage, result)
        say()
    sys.stdout.flush()
    sure = "" if chance is None else f"; an answer among the first three: {result.sure}, probability {chance:.2f}"
    say(f"[{counted(result.searched, 'passage')} searched in {result.seconds:.1f} s{sure}]", error=True)


def _write_marked(passage: "RankedPassage", result: "DocumentAnswer") -> None:
    """Print the passage, indented, with the answer, or else the most relevant sentence, in bold or between two
    stars."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from longspan.characters import shown

    (start, end), short = passage.mark, result.short
    if short is not None and short.document == passage.document:
        inside = passage.quote.start <= short.quote.start and short.quote.end <= passage.quote.end
        place = passage.text.find(str(short.quote))
        if inside and place >= 0:
            start, end = place, place + len(str(short.quote))
    before, inside, after = passage.text[:start], passage.text[start:end], passage.text[end:]
    if not sys.stdout.isatty():
        for line in f"{before}**{inside}**{after}".splitlines():
            say(f"   {line}".rstrip())
        return
    text = Text(shown(before)) + Text(shown(inside), style="bold black on yellow") + Text(shown(after))
    Console().print(Padding(text, (0, 3)))


def _record(result: "DocumentAnswer") -> dict[str, object]:
    return {
        "question": result.question,
        "answered": result.answered,
        "sure": result.sure,
        "probability": _rounded(result.probability),
        "short": asdict(result.short) if result.short else None,
        "passages": [asdict(passage) | {"probability": _rounded(passage.probability)} for passage in result.passages],
        "searched": result.searched,
        "seconds": round(result.seconds, 3),
    }


def _rounded(probability: float | None) -> float | None:
    return None if probability is None else round(probability, 4)
