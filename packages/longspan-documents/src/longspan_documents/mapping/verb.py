"""The interface of a verb for `longspan map`: options, added columns, and a function of each document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from longspan_documents.text.options import Reading

if TYPE_CHECKING:
    from longspan_documents.text.blocks import Document

Do = Callable[["str | Document", Mapping[str, Any]], dict[str, Any]]
"""From a document, and the columns of its row that `reads` names, to the values of the added columns."""
Declared = TypeVar("Declared", bound=Reading)


class Verb(Generic[Declared]):
    """Base class of verbs.

    Attributes:
        declared: the class of its options.
    """

    declared: ClassVar[type[Any]]

    def __init__(self, options: Declared) -> None:
        self.options = options

    @property
    def reads(self) -> tuple[str, ...]:
        """Input columns that it needs besides the text."""
        return ()

    def columns(self) -> dict[str, Any]:
        """Added columns and their Arrow types."""
        raise NotImplementedError

    def ready(self) -> Do:
        """Load the models; returns the function that is called for each document."""
        raise NotImplementedError

    def opened(self, document: str | Document) -> tuple[Document, str | None]:
        """Returns the text of a row as a document, even if it is the name of a file, and a note on replaced
        characters."""
        from longspan.characters import mend
        from longspan_documents.inference.results import notes
        from longspan_documents.text.reading import abbreviating, document_of, further_abbreviations

        if not isinstance(document, str):
            return document, None  # its file was read with these options
        text, halves = mend(document)
        read = document_of(text, raw=self.options.raw)
        return abbreviating(read, further_abbreviations(self.options)), notes(halves=halves)
