"""`longspan classify`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.terminal import name_of, say, say_json
from longspan.errors import InputError
from longspan_documents.cli.documents import Json, what_is_read
from longspan_documents.inference.verbs import Classify

epilog = what_is_read

if TYPE_CHECKING:
    from longspan_documents.inference.classify import DocumentLabel


def classify(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Documents, folders or tables of them; - is standard input.")
    ],
    options: Classify,
    text_field: Annotated[
        str | None, typer.Option(help="Column of the texts in tables.", show_default="as trained, else by its name")
    ] = None,
    json: Json = False,
) -> None:
    """Predict the label of a document, with its probability.

    Prints the label, its probability and the file, a line for each document; every row of a CSV, TSV, JSON Lines or
    Parquet file is one, unless --raw. The model is one that `longspan train` made for the task `classification`, or a
    published one for sequence classification; texts are cleaned and cut as in its training.

    Examples: `longspan classify news.html --model runs/hyperpartisan`, `longspan classify mails/ --model DIR --json`,
    `longspan classify rows.csv --model DIR --text-field body`.
    """
    from longspan.progress import progress_bar
    from longspan_documents.inference.classify import classifier_in

    # The model first: it is the most common mistake, and reading many documents takes a while.
    classifier = classifier_in(options)
    texts = list(_texts(files, options, text_field, classifier.task.text_field))
    labels = [classifier.classify_text(text) for _, _, text in progress_bar(texts, doing="classifying")]
    names = [file if row is None else f"{file}, {row}" for file, row, _ in texts]
    if json:
        say_json([_record(file, row, label) for (file, row, _), label in zip(texts, labels, strict=True)])
    else:
        widest = max(len(label.label) for label in labels)
        for name, label in zip(names, labels, strict=True):
            say(f"{label.label:<{widest}}  {label.probability:.2f}  {name}")
    for name, label in zip(names, labels, strict=True):
        if label.note:
            say(f"note: {name}: {label.note}", error=True)


def _texts(
    files: list[str], options: Classify, text_field: str | None, trained_field: str | None
) -> Iterator[tuple[str, str | None, str]]:
    """Yield `(file, row or None, text)` of each document."""
    from longspan.characters import on_one_line
    from longspan.data.labelled import read_texts
    from longspan.data.tables import holds_records
    from longspan_documents.inference.answer import read_documents

    tables = [file for file in files if holds_records(file) and not options.raw and not Path(file).is_dir()]
    if text_field is not None and not tables:
        raise InputError(f"--text-field is {text_field!r}, and no file is a table of rows; leave it out")
    for file in files:
        if file in tables:
            if options.encoding is not None:
                raise InputError(
                    f"--encoding is {options.encoding!r}, and {file} is a table, which is UTF-8; save it so"
                )
            rows = list(read_texts(Path(file), text_field or trained_field))
            if not rows:
                raise InputError(f"{file} has no rows; give a table with texts")
            yield from ((name_of(file), on_one_line(row), text) for row, text in rows)
            continue
        documents, skipped = read_documents([Path(file)], options)
        for note in skipped:
            say(f"note: {note}", error=True)
        yield from ((document.name, None, document.words) for document in documents)


def _record(file: str, row: str | None, result: "DocumentLabel") -> dict[str, object]:
    return {
        "file": file,
        "row": row,
        "label": result.label,
        "probability": round(result.probability, 6),
        "probabilities": {label: round(value, 6) for label, value in result.probabilities.items()},
        "tokens": result.tokens,
        "of_tokens": result.of_tokens,
        "seconds": round(result.seconds, 3),
        "note": result.note,
    }
