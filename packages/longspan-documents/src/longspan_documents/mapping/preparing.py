"""The work of `longspan index --workers` for each document; see `longspan_documents.mapping.indexing`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from longspan.characters import on_one_line
from longspan.options import Device, Option
from longspan_documents.mapping.inputs import arrow
from longspan_documents.mapping.verb import Do, Verb
from longspan_documents.text.options import SentenceReading

if TYPE_CHECKING:
    from longspan_documents.text.blocks import Document


@dataclass(frozen=True)
class Preparation(SentenceReading):
    """How the documents of an index are prepared; internal options."""

    _: KW_ONLY
    language: Annotated[str, Option("Of the collection.", where=("map",))]
    vectors: Annotated[bool, Option("Whether passages get vectors, or words alone are kept.", where=("map",))] = False
    encoder: Annotated[str | None, Option("The one that makes them; None is the bundled one.", where=("map",))] = None
    device: Device = None


class Prepare(Verb[Preparation]):
    """A step of building an index, in the form of a verb."""

    declared = Preparation

    def columns(self) -> dict[str, Any]:
        """See `Verb`."""
        pa = arrow()
        return {
            "digest": pa.string(),
            "document": pa.binary(),
            "stems": pa.list_(pa.list_(pa.string())),
            "vectors": pa.binary(),
        }

    def ready(self) -> Do:
        """See `Verb`."""
        from longspan_documents.inference.indexing.preparing import Preparer

        encoder: Any = None
        if self.options.encoder is not None:
            from longspan_documents.inference.sentence_encoder import load_sentence_encoder

            encoder = load_sentence_encoder(self.options.encoder, self.options.device)
        elif self.options.vectors:
            from longspan_documents.inference.encoders import bundled_encoder

            encoder = bundled_encoder(self.options.device)
        prepare = Preparer(self.options.language, encoder, self.options.encoder is None)

        def do(document: str | Document, _: Mapping[str, Any]) -> dict[str, Any]:
            assert not isinstance(document, str), "an index is made of files"
            named = replace(document, name=on_one_line(document.name))
            done = prepare(named)
            return {
                "digest": done.digest,
                "document": done.encoded,
                "stems": done.stems,
                "vectors": done.vectors.tobytes(),
            }

        return do
