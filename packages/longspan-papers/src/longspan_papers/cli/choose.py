"""`longspan choose`."""

from pathlib import Path
from typing import Annotated

import typer

from longspan.characters import counted
from longspan.cli.terminal import say, say_json
from longspan.errors import InputError
from longspan.options import Computing
from longspan_documents.cli.documents import Encoding, Json, Raw, what_is_read

epilog = what_is_read


def choose(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="DOCUMENT… QUESTION", help="Files or folders (- is standard input), then the question in quotes."
        ),
    ],
    model: Annotated[str, typer.Option(help="Folder of a model that chooses.", show_default=False)],
    candidates: Annotated[
        list[str],
        typer.Option("--candidate", "-c", help="What the answer may be; given once for each.", show_default=False),
    ],
    computing: Computing,
    json: Json = False,
    raw: Raw = False,
    encoding: Encoding = None,
) -> None:
    """Choose the candidate that answers a question, from the contents of several documents.

    Prints each candidate with its probability, the most likely one first. The model is trained with `longspan train`
    for the task candidate_choice, such as WikiHop's. The question must have the form of its training data: a relation
    and its subject.

    Example: `longspan choose ships/ "country sms posen" -c japan -c "german empire" --model runs/longformer-wikihop`.
    """
    from longspan_documents.inference.answer import open_documents
    from longspan_papers.wikihop.choosing import load_chooser

    *sources, question = words
    if not sources:
        raise InputError(f"{question!r} is all that is given; name a document and ask a question")
    chooser = load_chooser(model, computing.device, computing.dtype)
    documents, skipped = open_documents([Path(source) for source in sources], encoding=encoding, raw=raw)
    for note in skipped:
        say(f"note: {note}", error=True)
    choice = chooser.choose([document.text for document in documents], question, candidates)
    if json:
        rounded = {name: round(share, 6) for name, share in choice.probabilities.items()}
        say_json(
            {"question": choice.question, "answer": choice.answer, "probabilities": rounded, "pieces": choice.pieces}
        )
        return
    for name, share in choice.probabilities.items():
        say(f"{share:.2f}  {name}")
    summary = f"{counted(len(documents), 'document')} read in {counted(choice.pieces, 'piece')}"
    say(f"[{summary}, {choice.seconds:.1f} s]", error=True)
