"""`longspan map salutation`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from letterbox.letters import salutation
from longspan_documents.mapping.inputs import arrow
from longspan_documents.mapping.verb import Do, Verb
from longspan_documents.text.options import Reading

if TYPE_CHECKING:
    from longspan_documents.text.blocks import Document


class Salutation(Verb[Reading]):
    """To whom each letter is written; see `longspan.salutation`."""

    declared = Reading

    def columns(self) -> dict[str, Any]:
        """The type of the one column that it adds."""
        return {"salutation": arrow().string()}

    def ready(self) -> Do:
        """A function of a document; nothing has to be loaded."""

        def do(document: str | Document, _: Mapping[str, Any]) -> dict[str, Any]:
            return {"salutation": salutation(document if isinstance(document, str) else document.text)}

        return do
