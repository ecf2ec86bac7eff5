"""Which public names and commands other packages of the project bring, to say what to install where one is missing."""

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
"""Extra → names of functions, classes and commands that its package adds."""


def check_installed(what: str, name: str) -> None:
    """Raise `MissingLibraryError` where a name is one that a package would bring which is not installed.

    Args:
        what: how the sentence calls it, such as "longspan summarize".
        name: of the function, class or command.
    """
    for extra, names in NAMES.items():
        if name in names:
            raise MissingLibraryError(
                f"{what} is in the package longspan-{extra}; install it with: pip install 'longspan[{extra}]'"
            )
