"""`longspan classify`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.documents import Encoding, Json, Raw
from longspan.cli.terminal import say, say_json

if TYPE_CHECKING:
    from longspan.inference.classify import DocumentLabel


def classify(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Documents or folders of them; - is standard input.")
    ],
    model: Annotated[str, typer.Option(help="Folder of a model that classifies.", show_default=False)],
    json: Json = False,
    raw: Raw = False,
    encoding: Encoding = None,
) -> None:
    """Tell which label a document has, and how sure that is.

    Prints the label, its probability and the file, a line for each document. The model is one that `longspan train`
    made for the task `classification`, or a published one for sequence classification; texts are cleaned and cut as in
    its training.

    Examples: `longspan classify news.html --model runs/hyperpartisan`, `longspan classify mails/ --model DIR --json`.
    """
    from longspan.inference.answer import open_documents
    from longspan.inference.classify import load_classifier
    from longspan.progress import progress_bar

    # The model first: it is what is most often wrong, and reading many documents takes a while.
    classifier = load_classifier(model)
    documents, skipped = open_documents([Path(file) for file in files], encoding=encoding, raw=raw)
    for note in skipped:
        say(f"note: {note}", error=True)
    found = [classifier.classify(document) for document in progress_bar(documents, doing="classifying")]
    names = [document.name for document in documents]
    if json:
        say_json([_record(name, one) for name, one in zip(names, found, strict=True)])
    else:
        widest = max(len(one.label) for one in found)
        for name, one in zip(names, found, strict=True):
            say(f"{one.label:<{widest}}  {one.probability:.2f}  {name}")
    for name, one in zip(names, found, strict=True):
        if one.note:
            say(f"note: {name}: {one.note}", error=True)


def _record(name: str, found: "DocumentLabel") -> dict[str, object]:
    return {
        "file": name,
        "label": found.label,
        "probability": round(found.probability, 6),
        "probabilities": {label: round(value, 6) for label, value in found.probabilities.items()},
        "tokens": found.tokens,
        "of_tokens": found.of_tokens,
        "seconds": round(found.seconds, 3),
        "note": found.note,
    }
