"""LangChain: passages that answer a question as a retriever, summaries of documents of any length as a runnable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from longspan.imports import require
from longspan_documents.inference.answer import Answerer, open_documents
from longspan_documents.inference.indexing.opening import open_index
from longspan_documents.inference.summarize import load_summarizer, summarize
from longspan_documents.text.reading import document_of

CORE = "langchain_core"
documents, retrievers, runnables = (
    require(f"{CORE}.{name}", extra="langchain", purpose="longspan_documents.integrations.langchain")
    for name in ("documents", "retrievers", "runnables")
)


class Retriever(retrievers.BaseRetriever):
    """Retrieves the most likely answering passages, best first, as LangChain documents.

    `metadata` contains that of their source document, and `source`, `start` and `end` (characters), `first_line`,
    `last_line`, `page`, `heading` and `probability`.
    """

    answerer: Any
    metadata_of: tuple[dict[str, Any], ...] = ()
    top: int = 3

    @classmethod
    def from_documents(cls, sources: Sequence[Any], *, top: int = 3, **options: Any) -> Self:
        """Reads documents once, for many questions.

        Args:
            sources: LangChain documents, texts, or paths of files and folders.
            top: number of passages.
            **options: `model`, `encoder`, `reranker`, `device` and `dtype`, as in `longspan.answer`.
        """
        opened, told = [], []
        every: Sequence[Any] = [sources] if isinstance(sources, str | Path) else sources
        for source in every:
            theirs = isinstance(source, documents.Document)
            name = str(source.metadata.get("source", "the document")) if theirs else ""
            opened += open_documents(document_of(source.page_content, name=name) if theirs else source)[0]
            told += [source.metadata if theirs else {}] * (len(opened) - len(told))
        return cls(answerer=Answerer(opened, **options), metadata_of=tuple(told), top=top)

    @classmethod
    def from_index(cls, folder: str | Path, *, top: int = 3, **options: Any) -> Self:
        """Opens the index that `longspan.index` created in a folder; options are those of `open_index`."""
        return cls(answerer=open_index(folder, **options), top=top)

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Any]:
        return [self._document(passage) for passage in self.answerer.answer(query, top=self.top).passages]

    def _document(self, passage: Any) -> Any:
        metadata = self.metadata_of[passage.document] if self.metadata_of else {}
        places = {name: getattr(passage.quote, name) for name in ("start", "end", "first_line", "last_line", "page")}
        metadata_of_passage = {"source": passage.file} | metadata | places
        metadata_of_passage |= {"heading": passage.heading, "probability": passage.probability}
        return documents.Document(page_content=passage.text, metadata=metadata_of_passage)


def summarizer(model: str | Path | None = None, **options: Any) -> Any:
    """Returns a runnable from a text, a LangChain document, or a list of these, which are concatenated, to the
    summary's text.

    Args:
        model: as in `longspan.summarize`; it is loaded once.
        **options: `sentences`, `words`, `length`, `query`, `decoding`, `device` or `dtype`, as in `longspan.summarize`.
    """
    loading = {name: options.pop(name) for name in ("decoding", "device", "dtype") if name in options}
    loaded = load_summarizer(model, **loading)

    def summary(given: Any) -> str:
        parts = given if isinstance(given, list) else [given]
        texts = [getattr(part, "page_content", part) for part in parts]
        # Line breaks mark a document's words as a text, even if they are a file name.
        joined = texts[0] if len(parts) == 1 and isinstance(parts[0], str) else "".join(f"{text}\n\n" for text in texts)
        return summarize(joined, model=loaded, **options).text

    return runnables.RunnableLambda(summary, name="longspan_summarize")
