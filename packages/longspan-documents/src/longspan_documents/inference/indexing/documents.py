"""`longspan.index` and `DocumentIndex`: a collection that is read once and queried many times.

The states of each passage below the upper layers of a decomposed model are stored in files. A question passes through
the lower layers separately; passages are ranked by its words, and the upper layers read it together with the stored
states of the best passages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from longspan.characters import on_one_line
from longspan.checkpoints.sources import local_folder
from longspan.devices import check_numbers, check_place
from longspan.errors import InputError
from longspan.files import claimed, is_empty, output_folder
from longspan.options import expand_options
from longspan.progress import progress_bar
from longspan.settings import check_kind, show
from longspan_documents.inference.answer import Answerer, Source, sources_in
from longspan_documents.inference.indexing.growing import LIST
from longspan_documents.inference.indexing.search import SearchIndex, has_search_index
from longspan_documents.inference.indexing.sources import Added, digest_of, not_left_empty, opened
from longspan_documents.inference.indexing.states import StateReader, made_by, open_model
from longspan_documents.inference.indexing.store import (
    COPY,
    DTYPES,
    MANIFEST,
    Contents,
    Entry,
    Piece,
    Shard,
    has_index,
    read_contents,
    write_shard,
)
from longspan_documents.inference.ranking import SHOWN
from longspan_documents.inference.results import DocumentAnswer, notes
from longspan_documents.inference.verbs import ANSWERABLE, Index
from longspan_documents.text.blocks import Document
from longspan_documents.text.folders import documents_in
from longspan_documents.text.options import Reading, SentenceReading
from longspan_documents.text.passages import Passage, passages_of

if TYPE_CHECKING:
    from longspan_documents.inference.reranker import Reranker

SHARD_BYTES = 64 * 2**20
"""A shard is written when its states reach this size."""
Stored = Literal["float16", "bfloat16", "float32"]


@expand_options(Index)
def index(documents: Source | Sequence[Source], output: str | Path, options: Index) -> DocumentIndex | SearchIndex:
    """Create an index of documents, or add documents to an existing one.

    Without a model, it contains the words of the documents and the vectors of their passages
    (`longspan_documents.inference.indexing.search`); with one, the states of its lower layers.

    Args:
        documents: texts, paths of files and folders, or documents that have been read, as for `longspan.answer`.
        output: the folder of the index.

    Returns:
        The index; its `added` and `notes` describe what was done.

    Raises:
        InputError: as `longspan.answer`; the model differs from that of the index; or the folder contains other files.
            Documents that were finished before the error stay in the index.
    """
    return index_documents(documents, output, options)


def index_documents(
    documents: Source | Sequence[Source], output: str | Path, options: Index
) -> DocumentIndex | SearchIndex:
    """Create an index, or add documents to one; see `index`."""
    documents = sources_in(documents, options, "documents")
    model, lower_layers, encoder = options.model, options.lower_layers, options.encoder
    folder = output_folder(output)
    if model is None and not has_index(folder):
        return _searchable(documents, output, options)
    if has_search_index(folder) or encoder is not None:
        argument = f"model={show(model)}" if encoder is None else f"encoder={show(encoder)}"
        raise InputError(
            f"{argument} does not fit the index {on_one_line(str(output))!r}; leave it out, or make another"
        )
    if has_index(folder):
        library = DocumentIndex(folder, model, device=options.device)
        if lower_layers is not None and library.contents.made_by["lower_layers"] not in (None, lower_layers):
            raise InputError(
                f"lower_layers={lower_layers}, but the index {on_one_line(str(output))!r} has "
                f"{library.contents.made_by['lower_layers']}; leave it out, or make another index"
            )
    else:
        assert model is not None
        with not_left_empty(folder, MANIFEST, COPY):
            library = DocumentIndex.new(
                folder, model, lower_layers=lower_layers, dtype=options.dtype, device=options.device
            )
            skipped = library.add_read(documents, options)
            library.notes += skipped  # earlier notes were read again
        return library
    skipped = library.add_read(documents, options)
    library.notes += skipped  # earlier notes were read again
    return library


def _searchable(documents: Source | Sequence[Source], output: str | Path, options: Index) -> SearchIndex:
    """Create an index without a model, or add to one."""
    if options.lower_layers is not None:
        raise InputError(
            f"lower_layers={show(options.lower_layers)} decomposes a model, and none is given; give one, or leave it "
            "out"
        )
    folder = output_folder(output)
    with not_left_empty(folder, LIST):
        opening = SearchIndex if has_search_index(folder) else SearchIndex.new
        library = opening(folder, options.encoder, device=options.device)
        skipped = library.add_read(documents, options)
        library.notes += skipped  # earlier notes were read again
    return library


class DocumentIndex:
    """An existing index with a model; the checksum of every shard is verified.

    Args:
        folder: the folder of the index.
        model: folder or Hub name of its model; None uses the recorded source if it is a local folder or a cached name.
            A name that only the index specifies is never downloaded.
        reranker: a cross-encoder that reranks the best passages, as in `longspan.answer`.
        device: of model and reranker, as PyTorch names devices; None is the CPU.
        dtype: of the reranker's weights; the model computes in float32, as its states are.

    Attributes:
        notes: a sentence for each damaged shard that is ignored, and for each file that `index` skipped.
        added: counts of the last `add`.

    Raises:
        InputError: there is no index, its list is damaged, the model is not that of the index, or a device does not
            exist.
    """

    def __init__(
        self,
        folder: str | Path,
        model: str | Path | None = None,
        *,
        reranker: str | Path | Reranker | None = None,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        check_kind(folder, "folder", (str, Path), "the folder of an index")
        check_place(device, dtype)
        check_numbers(dtype, reranker)
        self.folder, self.added = Path(folder), Added()
        self.contents, _ = read_contents(self.folder)
        name, recorded = on_one_line(str(folder)), self.contents.made_by["source"]
        # An index is untrusted data, so names in it are not downloaded.
        source = local_folder(recorded) if model is None else model
        if source is None:
            raise InputError(
                f"the index {name!r} was made by the model {recorded!r}, which is no folder here and not in the cache; "
                "give that model with --model"
            )
        lower = self.contents.made_by["lower_layers"]
        try:
            self._reader = StateReader(*open_model(source, lower, device), self._pieces)
        except InputError as error:
            made = "" if lower is None else f" with lower_layers={lower}"
            raise InputError(
                f"the index {name!r} was made by a model{made}, and {str(source)!r} is none: {error}; give that model "
                "with --model"
            ) from error
        self._read()
        made = made_by(self._reader.model, self._reader.tokenizer)
        for what in ("weights", "tokenizer"):
            if made[what] != self.contents.made_by[what]:
                raise InputError(
                    f"the index {name!r} was built by another model: the {what} of {str(source)!r} differ from those "
                    f"of {recorded!r} then; give that model with --model, or make the index again"
                )
        self._reranker = None
        if reranker is not None:
            from longspan_documents.inference.reranker import load_reranker

            self._reranker = load_reranker(reranker, device, dtype)

    @classmethod
    def new(
        cls,
        folder: str | Path,
        model: str | Path,
        *,
        lower_layers: int | None = None,
        dtype: Stored = "float16",
        device: str | None = None,
    ) -> DocumentIndex:
        """Create an empty index in a new or empty folder; errors as in `index`."""
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise InputError(f"dtype is {show(dtype)}; choose {', '.join(DTYPES)}")
        place = output_folder(folder)
        if not is_empty(place):
            raise InputError(f"{on_one_line(str(folder))!r} is not empty and no index; give another place")
        made = made_by(*open_model(model, lower_layers, device))
        about = {"source": str(model), "lower_layers": lower_layers, "dtype": dtype}
        with claimed(place):
            Contents({**about, **made}).write(place)
        return cls(place, model, device=device)

    def _read(self) -> None:
        """Read the current list of shards, and open every undamaged shard."""
        self.contents, note = read_contents(self.folder)
        self.notes, self._shards = ([note] if note else []), []
        for shard in self.contents.shards:
            try:
                self._shards.append(Shard(self.folder, shard, self._reader.model.config.hidden_size))
            except InputError as error:
                lost = ", ".join(on_one_line(document["name"]) for document in shard["documents"])
                self.notes.append(f"{error}; it is left out, and with it {lost}: index these again")
        self.__dict__.pop("_indexed", None)
        self.__dict__.pop("_answerer", None)

    @cached_property
    def _indexed(self) -> list[tuple[Shard, Document, tuple[Passage, ...], list[range]]]:
        return [(shard, *indexed) for shard in self._shards for indexed in shard.documents]

    def __len__(self) -> int:
        """The number of documents."""
        return len(self._indexed)

    @property
    def documents(self) -> list[Document]:
        """The documents, with names and texts."""
        return [document for _, document, _, _ in self._indexed]

    @property
    def bytes(self) -> int:
        """The size of the index's files in bytes."""
        return sum(shard["bytes"] for shard in self.contents.shards)

    def _pieces(self, number: int, start: int) -> list[Piece]:
        """Returns the pieces of a document's passage by its first character."""
        shard, _, passages, pieces = self._indexed[number]
        place = next(place for place, passage in enumerate(passages) if passage.start == start)
        return [shard.piece(piece) for piece in pieces[place]]

    # Querying --------------------------------------------------------------------------------------------------------

    @cached_property
    def _answerer(self) -> Answerer:
        if not self._indexed:
            raise InputError(
                f"the index {on_one_line(str(self.folder))!r} holds no document that can be read"
                f"{''.join(f' ({note})' for note in self.notes[:1])}; add some with `longspan index`"
            )
        passages = [passages for _, _, passages, _ in self._indexed]
        return Answerer(self.documents, self._reader, passages=passages, reranker=self._reranker)

    def answer(
        self, question: str, *, top: int = SHOWN, threshold: float | None = None, answerable: float = ANSWERABLE
    ) -> DocumentAnswer:
        """Answer a question from the stored states; see `longspan.answer`."""
        result = self._answerer.answer(question, top=top, threshold=threshold, answerable=answerable)
        return replace(result, note=notes(result.note, *self.notes))

    # Adding ----------------------------------------------------------------------------------------------------------

    @expand_options(SentenceReading)
    def add(self, documents: Source | Sequence[Source], options: Reading) -> list[str]:
        """Add new documents; returns notes on skipped files. Arguments and errors as in `index`.

        After an interruption or an unreadable document, the documents before it are in the index.
        """
        return self.add_read(documents, options)

    def add_read(self, documents: Source | Sequence[Source], reading: Reading) -> list[str]:
        """Add documents with these reading options; see `add`."""
        skipped: list[str] = []
        with claimed(self.folder):
            self._read()
            known = {document["digest"] for document in self._whole()}
            waiting: list[Entry] = []
            self.added = Added()
            try:
                for document in _documents(documents, skipped, reading):
                    if digest_of(document) in known:
                        self.added = replace(self.added, known=self.added.known + 1)
                        continue
                    passages = passages_of(document)
                    waiting.append(Entry(document, tuple(passages), tuple(self._reader.pieces(document, passages))))
                    known.add(waiting[-1].digest)
                    size = sum(
                        piece.states.numel() * 2
                        for entry in waiting
                        for passage_pieces in entry.pieces
                        for piece in passage_pieces
                    )
                    if size >= SHARD_BYTES:
                        self._write(waiting)
                        waiting = []
            finally:
                self._write(waiting)
                self._read()
        return skipped

    def _whole(self) -> list[dict[str, str]]:
        whole = {shard.file.name for shard in self._shards}
        return [document for shard in self.contents.shards if shard["file"] in whole for document in shard["documents"]]

    def _write(self, entries: Sequence[Entry]) -> None:
        """Write a shard, then the list with it; damaged shards are removed if all their documents are present again."""
        if not entries:
            return
        numbers = [int(shard["file"][6:].partition(".")[0]) for shard in self.contents.shards]
        listed = write_shard(self.folder, 1 + max(numbers, default=0), entries, self.contents.made_by["dtype"])
        self.contents.shards.append(listed)
        self._shards.append(Shard(self.folder, listed))
        there = {document["digest"] for document in self._whole()}
        whole = {shard.file.name for shard in self._shards}
        self.contents.shards = [
            shard
            for shard in self.contents.shards
            if shard["file"] in whole or not {document["digest"] for document in shard["documents"]} <= there
        ]
        self.contents.write(self.folder)
        passages = sum(len(entry.passages) for entry in entries)
        self.added = replace(
            self.added, documents=self.added.documents + len(entries), passages=self.added.passages + passages
        )


def _documents(sources: Source | Sequence[Source], skipped: list[str], reading: Reading) -> Iterator[Document]:
    """Yield documents; unreadable files in folders are skipped, with a note in `skipped`."""
    named_sources: list[tuple[Any, bool]] = []
    for source in [sources] if isinstance(sources, str | Path | Document) else sources:
        if isinstance(source, Path) and os.path.isdir(source):
            files, note = documents_in(source)
            skipped += [f"{on_one_line(str(source))}: {note}"] if note else []
            named_sources += [(file, False) for file in files]
        else:
            named_sources.append((source, True))
    if not named_sources:
        raise InputError("there is no document to index; give a text, a file or a folder")
    for source, named in progress_bar(named_sources, doing="indexing", unit=" documents"):
        try:
            documents, more = opened(source, reading)
        except InputError as error:
            if named:
                raise
            skipped.append(f"passed over: {error}")
        else:
            skipped += more
            yield from documents
