"""Public names and commands of the project's other packages, for messages on what to install."""

from __future__ import annotations

from longspan.imports import MissingLibraryError

NAMES = {
    "documents": (
        *("DocumentAnswer", "DocumentIndex", "DocumentLabel", "Mapped", "PlacedPassage", "Summary", "answer", "chunks"),
        *("classify", "embed", "embed_document", "importance", "index", "map", "map_documents", "pipeline"),
        *("serve", "summarize"),
    ),
    "papers": ("Choice", "choose", "coref", "noise"),
}
"""Extra → names of functions, classes and commands of its package."""


def check_installed(what: str, name: str) -> None:
    """Raises `MissingLibraryError` if a name belongs to a package that is not installed.

    Args:
        what: description for the message, such as "longspan summarize".
        name: name of the function, class or command.
    """
    for extra, names in NAMES.items():
        if name in names:
            raise MissingLibraryError(
                f"{what} is in the package longspan-{extra}; install it with: pip install 'longspan[{extra}]'"
            )
