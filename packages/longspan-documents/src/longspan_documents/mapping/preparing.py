"""What the processes of `longspan index --workers` do with each document; see `longspan_documents.mapping.indexing`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from longspan.characters import on_one_line
from longspan.settings import check
from longspan_documents.mapping.inputs import arrow

if TYPE_CHECKING:
    from longspan_documents.text.blocks import Document


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """A step of the making of an index, asked as verbs are (`longspan_documents.mapping.work`), but none that users
    name.

    Attributes:
        language: of the collection.
        vectors: whether passages get vectors, or words alone are kept.
        encoder: where the one lies that makes them; None means the bundled one.
        device: where it computes; None means the processor.
        abbreviations: further words that no sentence ends with.
    """

    language: str
    vectors: bool
    encoder: str | None = None
    device: str | None = None
    abbreviations: list[str] | None = None

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        """See `longspan_documents.mapping.work.Verb`."""
        return ()

    def columns(self) -> dict[str, Any]:
        """See `longspan_documents.mapping.work.Verb`."""
        pa = arrow()
        return {
            "digest": pa.string(),
            "document": pa.binary(),
            "stems": pa.list_(pa.list_(pa.string())),
            "vectors": pa.binary(),
        }

    def ready(self, *, raw: bool) -> Callable[[str | Document, Mapping[str, Any]], dict[str, Any]]:
        """See `longspan_documents.mapping.work.Verb`."""
        from longspan_documents.inference.indexing.preparing import Preparer
        from longspan_documents.text.reading import abbreviating

        encoder: Any = None
        if self.encoder is not None:
            from longspan_documents.inference.sentence_encoder import load_sentence_encoder

            encoder = load_sentence_encoder(self.encoder, self.device)
        elif self.vectors:
            from longspan_documents.inference.encoders import bundled_encoder

            encoder = bundled_encoder(self.device)
        prepare = Preparer(self.language, encoder, self.encoder is None)

        def do(document: str | Document, _: Mapping[str, Any]) -> dict[str, Any]:
            assert not isinstance(document, str), "an index is made of files"
            named = replace(document, name=on_one_line(document.name))
            done = prepare(abbreviating(named, self.abbreviations or ()))
            return {
                "digest": done.digest,
                "document": done.encoded,
                "stems": done.stems,
                "vectors": done.vectors.tobytes(),
            }

        return do
