"""An index without a model: the words of a collection and the vectors of its passages, which is queried quickly.

```
search.json                 the encoder, and each part with its bytes and its documents; written last
part-000001.safetensors     see `longspan_documents.inference.indexing.parts`
```

`longspan_documents.inference.indexing.growing` writes it.
"""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from longspan.characters import on_one_line
from longspan.errors import InputError
from longspan.files import claimed, is_empty, output_folder
from longspan.model_files import read_json
from longspan.settings import check_kind, show
from longspan_documents.inference.answer import BY_WORDS, FIRST, NOT_ENGLISH, check_asked, ranked_passage
from longspan_documents.inference.encoders import UNKNOWN, bundled_encoder
from longspan_documents.inference.indexing.checks import AGAIN, check_search_listing
from longspan_documents.inference.indexing.growing import FORMAT, LIST, GrowingIndex, write_list
from longspan_documents.inference.indexing.parts import Part, word_scores
from longspan_documents.inference.indexing.sources import Added, stale_files, stale_note
from longspan_documents.inference.plain_encoder import plain_encoder
from longspan_documents.inference.ranking import (
    LIKELY,
    SHOWN,
    Evidence,
    best_sentence,
    load_weights,
    named_shares,
    query_stems,
    stems_of,
)
from longspan_documents.inference.results import DocumentAnswer, RankedPassage, asks_in_english, notes, reads_english
from longspan_documents.inference.verbs import ANSWERABLE
from longspan_documents.text.blocks import Document
from longspan_documents.text.passages import Passage

if TYPE_CHECKING:
    from longspan_documents.inference.reranker import Reranker
    from longspan_documents.inference.sentence_encoder import SentenceEncoder


def has_search_index(folder: Path) -> bool:
    """Whether a folder contains an index without a model."""
    return (folder / LIST).exists()


class SearchIndex(GrowingIndex):
    """A collection that is searched by words and vectors.

    Args:
        folder: the folder of the index.
        encoder: folder of the index's encoder, if it is not the bundled one; None uses the recorded folder, if it
            exists.
        reranker: a cross-encoder that reranks the best passages, as in `longspan.answer`.
        device: of encoder and reranker, as PyTorch names devices; None is the CPU.
        dtype: of the weights of the reranker and of an encoder that is not bundled; None is float32.

    Attributes:
        notes: a sentence for each damaged part that is ignored, and for each file that was skipped.
        added: counts of the last `add`.

    Raises:
        InputError: there is no index, its list is damaged, its encoder is missing, or a device does not exist.
    """

    def __init__(
        self,
        folder: str | Path,
        encoder: str | Path | SentenceEncoder | None = None,
        *,
        reranker: str | Path | Reranker | None = None,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        check_kind(folder, "folder", (str, Path), "the folder of an index")
        self.folder, self.added = Path(folder), Added()
        self._given, self.device, self.dtype = encoder, device, dtype
        self._read()
        self._reranker = None
        if device is not None or dtype is not None or reranker is not None:
            from longspan.devices import check_numbers, check_place

            check_numbers(dtype, self._list["encoder"], reranker)
            check_place(device, dtype)
        if reranker is not None:
            from longspan_documents.inference.reranker import load_reranker

            self._reranker = load_reranker(reranker, device, dtype)

    @classmethod
    def new(cls, folder: str | Path, encoder: str | Path | None = None, *, device: str | None = None) -> SearchIndex:
        """Create an empty index in a new or empty folder."""
        if device is not None:
            from longspan.devices import check_place

            check_place(device)
        place = output_folder(folder)
        if not is_empty(place):
            raise InputError(f"{on_one_line(str(folder))!r} is not empty and no index; give another place")
        if encoder is not None:
            from longspan_documents.inference.sentence_encoder import load_sentence_encoder

            load_sentence_encoder(encoder, device)  # raises before anything is written
        with claimed(place):
            write_list(
                place, {"encoder": None if encoder is None else str(encoder), "language": None, "width": 0, "parts": []}
            )
        return cls(place, encoder, device=device)

    def _read(self) -> None:
        if not (self.folder / LIST).is_file():
            raise InputError(f"'{on_one_line(str(self.folder))}' has no {LIST}; make an index with `longspan index`")
        body = read_json(self.folder / LIST)
        if body.pop("format", None) != FORMAT:
            raise InputError(f"'{self.folder / LIST}' is of another version of Longspan; {AGAIN}")
        try:
            check_search_listing(body)
        except InputError as error:
            raise InputError(f"'{self.folder / LIST}' is not as Longspan writes it ({error}); {AGAIN}") from error
        self._list = body
        self.notes: list[str] = []
        self._parts: list[tuple[Part, dict[str, Any]]] = []
        for listed in body["parts"]:
            try:
                part = Part(self.folder / listed["file"], listed["bytes"], body["width"])
                part.of_documents([entry["document"] for entry in listed["entries"]])
                self._parts.append((part, listed))
            except InputError as error:
                self.notes.append(f"{error}; it is left out: index its documents again")
        for name in ("_alive", "_offsets", "_questions"):
            self.__dict__.pop(name, None)

    # Contents --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of documents."""
        return sum(entry["document"] is not None for _, listed in self._parts for entry in listed["entries"])

    @property
    def documents(self) -> list[Document]:
        """All documents, which are read for this."""
        return [
            part.document(entry["document"])[0]
            for part, listed in self._parts
            for entry in listed["entries"]
            if entry["document"] is not None
        ]

    @property
    def bytes(self) -> int:
        """The size of the index's files in bytes."""
        return sum(listed["bytes"] for listed in self._list["parts"])

    def stale(self) -> str | None:
        """Returns a sentence on files that have been deleted or changed since they were read; None if there are
        none."""
        return stale_note(*stale_files(self._entries.values()))

    @cached_property
    def _alive(self) -> np.ndarray:
        """Which passages of all parts in order belong to documents that have not changed since, `(P,)`."""
        marks = [part.of_documents([entry["document"] for entry in listed["entries"]]) for part, listed in self._parts]
        return np.concatenate(marks) if marks else np.zeros(0, dtype=bool)

    @cached_property
    def _offsets(self) -> np.ndarray:
        """The index of the first passage of each part, and the number of all passages."""
        return np.cumsum([0, *(len(part.lengths) for part, _ in self._parts)])

    @cached_property
    def _encoder(self) -> Any:
        """The encoder of the vectors; None if there are none."""
        if not self._list["width"]:
            return None
        if self._list["encoder"] is None:
            return bundled_encoder(self.device)
        from longspan.checkpoints.sources import local_folder
        from longspan_documents.inference.sentence_encoder import MULTILINGUAL, load_sentence_encoder

        if self._given is None and self._list["encoder"] == MULTILINGUAL:
            return load_sentence_encoder(MULTILINGUAL, self.device, self.dtype)
        # An index is untrusted data, so names in it are not downloaded.
        source = self._given if self._given is not None else local_folder(self._list["encoder"])
        made = f"the index {on_one_line(str(self.folder))!r} was made by the encoder {show(self._list['encoder'])}"
        if source is None:
            raise InputError(f"{made}, which is no folder here and not in the cache; give it with --encoder")
        try:
            return load_sentence_encoder(source, self.device, self.dtype)
        except InputError as error:
            raise InputError(f"{made}, and {show(source)} is none: {error}; give it with --encoder") from error

    @cached_property
    def _questions(self) -> Any:
        """The encoder of questions and of sentences that are shown: the bundled one, without PyTorch unless a device is
        specified, or the index's own."""
        plain = self._list["width"] and self._list["encoder"] is None and self.device is None
        return plain_encoder() if plain else self._encoder

    # Querying --------------------------------------------------------------------------------------------------------

    def answer(
        self, question: str, *, top: int = SHOWN, threshold: float | None = None, answerable: float = ANSWERABLE
    ) -> DocumentAnswer:
        """Answer a question; see `longspan.answer`. `scores` is empty, since a collection has too many passages to
        list."""
        check_asked(question, top, threshold, answerable)
        if not self._alive.any():
            raise InputError(
                f"the index {on_one_line(str(self.folder))!r} holds no document that can be read"
                f"{''.join(f' ({note})' for note in self.notes[:1])}; add some with `longspan index`"
            )
        begin = time.perf_counter()
        question = " ".join(question.split())
        columns, rarities = self._columns(question)
        kind = "words" if self._questions is None else "encoder" if self._list["encoder"] else "index"
        asked_in_english = asks_in_english(question)
        if kind == "index" and not asked_in_english:  # the vector of the question means nothing
            kind = "words"
        weights = load_weights()[kind]
        score = np.zeros(len(self._alive))
        for name, weight in weights.rank.items():
            score += weight * columns[name]
        alive = np.flatnonzero(self._alive)
        ranked = alive[np.argsort(-score[alive], kind="stable")]
        order = ranked[: max(top, SHOWN)]
        read = [self._passage(int(number)) for number in order]
        columns["names"] = np.zeros(len(score))
        columns["names"][order] = named_shares(
            question, [f"{passage.heading or ''}\n{passage.text}" for _, passage, _ in read]
        )
        table = np.stack(list(columns.values()), axis=1)[alive]
        ranking = weights.ranking(Evidence(tuple(columns), table), answerable)
        english = asked_in_english and self._is_english(read[0][1].text)
        chances = ranking.passage_probabilities.tolist() if english else [None] * len(alive)
        chance = dict(zip(alive.tolist(), chances, strict=True))
        if self._reranker is not None:
            order = ranked[: max(top, FIRST)]
            read += [self._passage(int(number)) for number in order[len(read) :]]
            order_again = self._reranker.order(question, [passage.text for _, passage, _ in read])
            order, read = order[order_again], [read[place] for place in order_again]
        shown = [
            self._ranked(question, rarities, entry, passage, document, chance[int(number)])
            for number, (document, passage, entry) in zip(order[:top], read[:top], strict=True)
        ]
        foreign = None if english else NOT_ENGLISH if self._list["encoder"] else BY_WORDS
        return DocumentAnswer(
            question=question,
            answered=ranking.may_answer(threshold, calibrated=english),
            probability=ranking.probability if english else None,
            there=ranking.there if english else None,
            likely=LIKELY,
            passages=tuple(shown),
            searched=len(alive),
            seconds=time.perf_counter() - begin,
            note=notes(foreign, *self.notes),
        )

    def _is_english(self, passage: str) -> bool:
        """Whether the best passage is English: in an index with words alone, never; with the bundled encoder, unless
        it does not know its words; with another encoder, by its words."""
        if self._questions is None:
            return False
        if self._list["encoder"] is None:
            return self._questions.tokenizer.unknown_share(passage) <= UNKNOWN
        return reads_english(passage)

    def _columns(self, question: str) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Returns the evidence of words and vectors for every passage, `(P,)` each, and the rarity of the question's
        stems."""
        stems = list(dict.fromkeys(query_stems(question, self._list["language"] or "en")))
        words, rarities = word_scores([part for part, _ in self._parts], self._alive, stems)
        columns = {"words": words / (sum(rarities.values()) or 1.0)}
        if self._questions is not None:
            width = self._list["width"]
            if self._questions.dimensions != width:
                raise InputError(
                    f"the index {on_one_line(str(self.folder))!r} holds vectors of {width:,} numbers, and the encoder "
                    f"gives {self._questions.dimensions:,}; give the encoder that it was made by, or {AGAIN}"
                )
            vectors = [part.vectors for part, _ in self._parts]
            if self._list["encoder"] is None:
                asked = self._questions.embed([question])[0]
                columns["passage"] = np.concatenate([part_vectors @ asked for part_vectors in vectors]).astype(
                    np.float64
                )
            else:
                columns["passage"] = self._questions.similarities(question, np.concatenate(vectors))
        return columns, rarities

    def _passage(self, number: int) -> tuple[Document, Passage, int]:
        """Returns a passage by its index among all, with its document and the document's index."""
        place = int(np.searchsorted(self._offsets, number, side="right")) - 1
        part, row = self._parts[place][0], number - int(self._offsets[place])
        owner = int(part.owners[row])
        document, passages = part.document(owner)
        before = sum(len(part_before.starts) - 1 for part_before, _ in self._parts[:place])
        return document, passages[row - int(part.starts[owner])], before + owner

    def _ranked(
        self,
        question: str,
        rarities: dict[str, float],
        number: int,
        passage: Passage,
        document: Document,
        probability: float | None,
    ) -> RankedPassage:
        texts = [sentence.text for sentence in passage.sentences]
        total = sum(rarities.values()) or 1.0
        known = [set(stems_of(text, self._list["language"] or "en")) for text in texts]
        near = np.array([sum(rarity for stem, rarity in rarities.items() if stem in stems) / total for stems in known])
        if self._questions is not None and self._list["encoder"] is None:
            near += self._questions.embed_document(texts) @ self._questions.embed([question])[0]
        elif self._questions is not None:
            near += self._questions.similarities(question, self._questions.vectors(texts, "passage"))
        return ranked_passage(document, number, passage, best_sentence(question, texts, near), probability)
