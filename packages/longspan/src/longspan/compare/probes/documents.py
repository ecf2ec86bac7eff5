"""Probes on bytes of documents: those of LONGSPAN_DATA, or synthetic ones if it is not set."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np

from longspan.compare.probes.base import HELD_OUT, Form, Probe, Row, asked, asked_at_end
from longspan.data.corpus.sources import Corpus
from longspan.errors import InputError
from longspan.files import whole_folder

BYTES = 256
MOST_DOCUMENTS = 200
"""Maximum number of documents of a source."""
MOST_BYTES = 2_000_000
"""Maximum number of bytes of a source."""
FEWEST = 10
"""Minimum number of documents of a source."""
HELD_OUT_SHARE = 5
"""One in this number of documents of a source is held out."""


class Documents(Probe):
    """Pieces of documents, as bytes. Training and held-out rows come from different documents."""

    source: ClassVar[str | None] = None
    """The only data set that it reads; `None` reads all available ones."""
    answers: int = 2
    """Number of answers that are not bytes."""
    least = 32

    @classmethod
    def prepare(cls, folder: Path) -> dict[str, str]:
        place = folder / f"documents-{cls.name}"
        if not place.is_dir():
            has_data = bool(os.environ.get("LONGSPAN_DATA"))
            if cls.source is not None and not has_data:
                raise InputError(
                    f"task {cls.name!r} reads the data set {cls.source!r}; set LONGSPAN_DATA to the folder that holds "
                    "it"
                )
            all_sources = text_sources() if has_data else made_up_sources()
            write_documents(place, all_sources if cls.source is None else iter([(cls.source, read_source(cls.source))]))
        sources = json.loads((place / "sources.json").read_text(encoding="utf-8"))
        return {"documents": "; ".join(f"{count:,} of {name}" for name, count in sources.items())}

    @property
    def vocabulary(self) -> int:
        return BYTES + self.answers + 3  # the question token, the separator, padding

    @property
    def ask(self) -> int:
        """The id of the question token, after those of bytes and answers."""
        return BYTES + self.answers

    @cached_property
    def _data(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All bytes, the beginning and end of each document `(N, 2)`, and its source `(N,)`."""
        assert self.folder is not None, "documents are read from where `prepare` wrote them"
        place = self.folder / f"documents-{self.name}"
        rows = np.load(place / "documents.npy")
        return np.load(place / "bytes.npy", mmap_mode="r"), rows[:, :2], rows[:, 2]

    def row(self, seed: int, number: int, form: Form) -> Row:
        self._training = seed < HELD_OUT
        return super().row(seed, number, form)

    def of_source(self, source: int | None) -> np.ndarray:
        """Returns the documents of a source, or all, from which rows of this seed may be generated."""
        sources = self._data[2]
        held_out = np.arange(len(sources)) % HELD_OUT_SHARE == 0
        wanted = ~held_out if self._training else held_out
        return np.flatnonzero(wanted if source is None else wanted & (sources == source))

    def piece(
        self, random: np.random.Generator, document: int, length: int, part: tuple[float, float] = (0, 1)
    ) -> np.ndarray:
        """Returns `length` bytes of a document, or fewer if it is shorter, from a random position within a part of
        it."""
        data, ends, _ = self._data
        start, end = ends[document]
        first, last = (int(start + share * (end - start)) for share in part)
        begin = int(random.integers(first, max(first, last - length) + 1))
        return np.asarray(data[begin : min(begin + length, last)], dtype=np.int64)


class Bytes(Documents):
    """Byte-level classification of documents (Long Range Arena: text): which source is this piece from?

    The sources are those of LONGSPAN_DATA, or synthetic languages. The question is the last token. The evidence is
    spread over the piece: can attention collect weak evidence from everywhere?
    """

    name = "bytes"
    answers = 32

    @property
    def chance(self) -> float:
        return 1 / self._count

    @cached_property
    def _count(self) -> int:
        return int(self._data[2].max()) + 1

    def make(self, random: np.random.Generator, form: Form) -> Row:
        source = int(random.integers(self._count))
        document = int(random.choice(self.of_source(source)))
        return asked_at_end(np.append(self.piece(random, document, self.tokens - 1), self.ask), BYTES + source)


class Matching(Documents):
    """Byte-level matching of documents (Long Range Arena: retrieval): are two pieces from the same document?

    Two pieces of half the length, of one document or of two of the same source, with a separator. The question is the
    last token. The evidence is names and words that occur in both: can attention compare distant positions?
    """

    name = "matching"

    @property
    def chance(self) -> float:
        return 0.5

    def make(self, random: np.random.Generator, form: Form) -> Row:
        same = int(random.integers(2))
        first = int(random.choice(self.of_source(None)))
        candidates = self.of_source(int(self._data[2][first]))
        second = first if same or len(candidates) < 2 else int(random.choice(candidates[candidates != first]))
        length = (self.tokens - 2) // 2
        halves = [self.piece(random, first, length, (0, 0.5)), self.piece(random, second, length, (0.5, 1))]
        ids = np.concatenate([halves[0], [self.ask + 1], halves[1], [self.ask]])
        return asked_at_end(ids, BYTES + int(second == first))


class Novels(Documents):
    """A language model over the bytes of novels (the data set `pg_novels` of LONGSPAN_DATA): predict each next byte.

    Scored over the second half of each row, so that every prediction has half a row of context. Mostly local: it shows
    what a mechanism loses locally for its long range. Causal only.
    """

    name = "novels"
    forms = ("causal",)
    score = "bits per byte"
    source = "pg_novels"

    @property
    def chance(self) -> None:
        return None

    def make(self, random: np.random.Generator, form: Form) -> Row:
        document = int(random.choice(self.of_source(None)))
        ids = self.piece(random, document, self.tokens + 1)
        first = 0 if self._training else len(ids) // 2
        row = asked(ids[:-1], np.arange(first, len(ids) - 1), ids[first + 1 :])
        return Row(ids=row.ids, labels=row.labels, is_global=np.zeros(len(row.ids), bool), distances=row.distances)


# Sources of documents
# --------------------------------------------------------------------------------------------------


def text_sources() -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the data sets of LONGSPAN_DATA whose training split can be read as texts; others are skipped."""
    home = Path(os.environ["LONGSPAN_DATA"])
    if not home.is_dir():
        raise InputError(f"LONGSPAN_DATA={str(home)!r} is no folder; point it at the data, or unset it")
    for name in sorted(folder.name for folder in home.iterdir() if folder.is_dir()):
        yield name, read_source(name)


def read_source(name: str) -> Iterator[bytes]:
    """Yield the texts of a data set, as bytes."""
    for text in Corpus(source=name, limit=MOST_DOCUMENTS).texts():
        yield text.encode("utf-8", "replace")


def made_up_sources() -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield four synthetic languages with separate vocabularies; each document prefers some of the words."""
    for number in range(4):
        yield f"made-up {number + 1}", _made_up(np.random.Generator(np.random.Philox(key=[7, number])))


def _made_up(random: np.random.Generator) -> Iterator[bytes]:
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
    words = [bytes(random.choice(letters, size=random.integers(2, 9))) for _ in range(400)]
    for _ in range(60):
        chosen = random.choice(len(words), size=40)
        yield b" ".join(words[index] for index in random.choice(chosen, size=3000))


def write_documents(place: Path, sources: Iterator[tuple[str, Iterator[bytes]]]) -> None:
    """Write the documents of each source with enough of them to a new folder.

    Raises:
        InputError: there are none.
    """
    by_source: dict[str, list[bytes]] = {}
    for name, texts in sources:
        documents, total = [], 0
        try:
            for text in islice(texts, MOST_DOCUMENTS):
                documents.append(text[: MOST_BYTES // FEWEST])
                total += len(documents[-1])
                if total > MOST_BYTES:
                    break
        except InputError:
            documents = []  # its records contain no text, such as tables of coreference
        if len(documents) >= FEWEST and len(by_source) < Bytes.answers:
            by_source[name] = documents
    if not by_source:
        raise InputError(f"LONGSPAN_DATA={os.environ.get('LONGSPAN_DATA')!r} holds no documents; point it at some")
    ends = np.cumsum([0, *(len(text) for texts in by_source.values() for text in texts)])
    source = np.repeat(np.arange(len(by_source)), [len(texts) for texts in by_source.values()])
    with whole_folder(place) as partial:
        np.save(
            partial / "bytes.npy", np.frombuffer(b"".join(b"".join(texts) for texts in by_source.values()), np.uint8)
        )
        np.save(partial / "documents.npy", np.stack([ends[:-1], ends[1:], source], axis=1))
        counts = {name: len(texts) for name, texts in by_source.items()}
        (partial / "sources.json").write_text(json.dumps(counts), encoding="utf-8")
