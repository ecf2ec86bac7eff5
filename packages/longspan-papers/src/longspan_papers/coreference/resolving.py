"""Coreference of a document of any length: clusters of mentions with their character offsets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.devices import check_named
from longspan.settings import check_kind
from longspan_papers.coreference.rows import CoreferenceRow

if TYPE_CHECKING:
    from longspan_documents.text.blocks import Document

# Splits English like treebanks: "did|n't", "Ada|'s", but "well-known".
_WORD = re.compile(r"\w+?(?=n['’]t\b)|n['’]t\b|['’](?:s|ll|re|ve|d|m)\b|\w+(?:-\w+)*|[^\w\s]", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A document with its predicted clusters.

    Attributes:
        text: of the document.
        row: its words and clusters.
        places: first character and end of each word in `text`.
    """

    text: str
    row: CoreferenceRow
    places: tuple[tuple[int, int], ...]

    @property
    def clusters(self) -> list[list[tuple[int, int]]]:
        """First character and end of each mention in `text`, in the order of the clusters."""
        return [
            [(self.places[start][0], self.places[end][1]) for start, end in cluster] for cluster in self.row.clusters
        ]

    def pieces(self) -> Iterator[tuple[str, int | None]]:
        """Yields the text with its mentions in brackets, `[the old man]3`, split where clusters change: each piece with
        the cluster of its innermost mention."""
        events: list[tuple[int, int, int, int]] = []
        for number, cluster in enumerate(self.clusters):
            for start, end in cluster:
                # At one position: ends first, inner before outer; then starts, outer before inner; then empty mentions,
                # which start and end here, as a word without characters does, of which OntoGUM has one.
                events += [(start, 1, -end, number), (end, 0 if start < end else 2, -start, number)]
        around: list[int] = []
        place = 0
        for at, begins, _, number in sorted(events):
            if at > place:
                yield self.text[place:at], around[-1] if around else None
                place = at
            if begins == 1:
                around.append(number)
                yield "[", number
            else:
                # The innermost with that number, since mentions may cross.
                del around[len(around) - 1 - around[::-1].index(number)]
                yield f"]{number}", number
        if place < len(self.text):
            yield self.text[place:], None


class Resolver:
    """A loaded coreference model."""

    def __init__(self, model: Any, tokenizer: Any, task: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.task = task

    def resolve(self, document: str | Path | Document | CoreferenceRow) -> Resolved:
        """Returns the clusters of a document.

        Args:
            document: the text itself, a `Path` to a file of any format that `longspan` reads, the result of `read`, or
                words.
        """
        from longspan_documents.text.reading import as_document

        if isinstance(document, CoreferenceRow):
            text, row, spans = _joined(document)
        else:
            text, row, spans = _cut(as_document(document))
        (clusters,) = self.task.predict(self.model, self.tokenizer, [row])
        return Resolved(text=text, row=replace(row, clusters=clusters), places=spans)


def load_resolver(source: str | Path, device: str | None = None, dtype: str | None = None) -> Resolver:
    """Loads a coreference model for many documents; the two most recent models stay in memory.

    Args:
        source: its folder.
        device: PyTorch device name ("cpu", "cuda", "cuda:1", "mps"); None is the CPU.
        dtype: of its weights: "float32", "bfloat16" or "float16"; None is float32.

    Raises:
        InputError: it cannot be loaded, or is no coreference model; the device is not available.
    """
    check_kind(source, "model", (str, Path), "a folder or a name")
    check_named(device, dtype)
    return _load(str(source), device, dtype)


@lru_cache(maxsize=2)
def _load(source: str, device: str | None, dtype: str | None) -> Resolver:
    from longspan.checkpoints.loading import load_pair
    from longspan.inference.model_use import other_use
    from longspan.models import LongspanForCoreference
    from longspan.tasks import task_of_folder
    from longspan_papers.coreference.task import Coreference

    model, tokenizer = load_pair(source, device, dtype)
    if not isinstance(model, LongspanForCoreference):
        raise other_use(source, type(model).__name__, "which finds no coreference")
    task = task_of_folder(Path(source))
    task = task if isinstance(task, Coreference) else Coreference().fitted(model.config)
    return Resolver(model, tokenizer, task)


def _cut(document: Document) -> tuple[str, CoreferenceRow, tuple[tuple[int, int], ...]]:
    """Splits a document into the words of its sentences, with their speakers and character offsets."""
    from longspan_documents.text.reading import sentences_of

    sentences: list[tuple[str, ...]] = []
    speakers: list[tuple[str, ...]] = []
    cuts: list[tuple[int, int]] = []
    for sentence in sentences_of(document):
        spans = [match.span() for match in _WORD.finditer(document.text, sentence.start, sentence.end)]
        if spans:
            sentences.append(tuple(document.text[start:end] for start, end in spans))
            speakers.append((sentence.speaker or "",) * len(spans))
            cuts += spans
    known_speakers = tuple(speakers) if any(chain.from_iterable(speakers)) else None
    row = CoreferenceRow(id=document.name, sentences=tuple(sentences), speakers=known_speakers)
    return document.text, row, tuple(cuts)


def _joined(row: CoreferenceRow) -> tuple[str, CoreferenceRow, tuple[tuple[int, int], ...]]:
    """Returns a document of words as text: one line per sentence, spaces between words."""
    text, spans = "", []
    for sentence in row.sentences:
        for index, word in enumerate(sentence):
            text += " " if index else ""
            spans.append((len(text), len(text) + len(word)))
            text += word
        text += "\n"
    return text, row, tuple(spans)


def as_records(documents: Sequence[Resolved]) -> list[dict[str, Any]]:
    """Returns documents as JSON data: words with clusters, in the common format, and the character offsets of the
    mentions."""
    from longspan_papers.coreference.reading import record_of

    return [
        {
            **record_of(document.row),
            "mentions": [
                [{"start": start, "end": end, "text": document.text[start:end]} for start, end in cluster]
                for cluster in document.clusters
            ],
        }
        for document in documents
    ]
