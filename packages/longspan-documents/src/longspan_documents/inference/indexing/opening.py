"""Opens an index of either kind; one without a model is opened without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from longspan.characters import on_one_line
from longspan.errors import InputError
from longspan.settings import show
from longspan_documents.inference.indexing.search import SearchIndex, has_search_index

if TYPE_CHECKING:
    from longspan_documents.inference.indexing.documents import DocumentIndex
    from longspan_documents.inference.reranker import Reranker


def open_index(
    folder: str | Path,
    model: str | Path | None = None,
    encoder: str | Path | None = None,
    *,
    reranker: str | Path | Reranker | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> DocumentIndex | SearchIndex:
    """Open the index of a folder, with or without a model; its `notes` list files that have changed since.

    Args:
        folder: the folder of the index.
        model: as for `DocumentIndex`.
        encoder: as for `SearchIndex`.
        reranker: as for both.
        device: as for both.
        dtype: as for both.

    Raises:
        InputError: as for both; or the index does not use a model or an encoder that is specified.
    """
    if not has_search_index(Path(folder)):
        if encoder is not None:
            raise InputError(f"encoder={show(encoder)} is for an index without a model; leave it out")
        from longspan_documents.inference.indexing.documents import DocumentIndex

        return DocumentIndex(folder, model, reranker=reranker, device=device, dtype=dtype)
    if model is not None:
        raise InputError(f"the index {on_one_line(str(folder))!r} has no use for model={show(model)}; leave it out")
    index = SearchIndex(folder, encoder, reranker=reranker, device=device, dtype=dtype)
    index.notes += filter(None, [index.stale()])
    return index
