"""Coreference over a corpus: `longspan map coref`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longspan.settings import check
from longspan_documents.mapping.inputs import arrow
from longspan_documents.mapping.work import Alone, Do, Dtype, opened_document
from longspan_papers.coreference.resolving import load_resolver

if TYPE_CHECKING:
    from longspan_documents.text.blocks import Document


@dataclass(frozen=True, kw_only=True)
class Coref(Alone):
    """Coreference, as by `longspan coref`."""

    model: str
    device: str | None = None
    dtype: Dtype | None = None

    def __post_init__(self) -> None:
        """Raises `InputError` for an invalid option."""
        check(self)

    def columns(self) -> dict[str, Any]:
        """See `Verb`."""
        pa = arrow()
        mention = pa.struct([("text", pa.string()), ("start", pa.int64()), ("end", pa.int64())])
        return {"clusters": pa.list_(pa.list_(mention))}

    def ready(self, *, raw: bool) -> Do:
        """See `Verb`."""
        resolver = load_resolver(self.model, self.device, self.dtype)

        def do(document: str | Document, _: Mapping[str, Any]) -> dict[str, Any]:
            found = resolver.resolve(opened_document(document, raw)[0])
            return {
                "clusters": [
                    [{"text": found.text[start:end], "start": start, "end": end} for start, end in cluster]
                    for cluster in found.clusters
                ]
            }

        return do
