"""Coreference over a corpus: `longspan map coref`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from longspan_documents.mapping.verb import Do, Verb
from longspan_papers.verbs import Coref as Options

if TYPE_CHECKING:
    from longspan_documents.text.blocks import Document


class Coref(Verb[Options]):
    """Coreference, as by `longspan coref`."""

    declared = Options

    def columns(self) -> dict[str, Any]:
        """See `Verb`."""
        from longspan_documents.mapping.inputs import arrow

        pa = arrow()
        mention = pa.struct([("text", pa.string()), ("start", pa.int64()), ("end", pa.int64())])
        return {"clusters": pa.list_(pa.list_(mention))}

    def ready(self) -> Do:
        """See `Verb`."""
        from longspan_papers.coreference.resolving import load_resolver

        resolver = load_resolver(self.options.model, self.options.device, self.options.dtype)

        def do(document: str | Document, _: Mapping[str, Any]) -> dict[str, Any]:
            found = resolver.resolve(self.opened(document)[0])
            return {
                "clusters": [
                    [{"text": found.text[start:end], "start": start, "end": end} for start, end in cluster]
                    for cluster in found.clusters
                ]
            }

        return do
