"""`longspan map salutation`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from letterbox.letters import salutation
from longspan_documents.mapping.inputs import arrow
from longspan_documents.mapping.work import Alone, Do

if TYPE_CHECKING:
    from longspan_documents.text.blocks import Document


@dataclass(frozen=True, kw_only=True)
class Salutation(Alone):
    """To whom each letter is written; see `longspan.salutation`."""

    def columns(self) -> dict[str, Any]:
        """The type of the one column that it adds."""
        return {"salutation": arrow().string()}

    def ready(self, *, raw: bool) -> Do:
        """A function of a document; nothing has to be loaded."""

        def do(document: str | Document, _: Mapping[str, Any]) -> dict[str, Any]:
            return {"salutation": salutation(document if isinstance(document, str) else document.text)}

        return do
