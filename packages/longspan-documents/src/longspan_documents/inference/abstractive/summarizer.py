"""Abstractive summaries of documents of any length.

A document that is longer than the model's input is divided into parts. Each part is summarised, and the concatenated
summaries are summarised again. If there are more parts than `MOST_PARTS`, the bundled model first picks the sentences
that are read. With `long_documents="lengthen"`, the model is lengthened instead if possible (`longspan.lengthen`),
although it was not trained for that. The note of the result describes what was done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from longspan.characters import counted
from longspan.data.text.sentences import split_sentences
from longspan.errors import InputError
from longspan_documents.inference.abstractive.parts import parts_of
from longspan_documents.inference.abstractive.writers import Asked, Writer, Written
from longspan_documents.inference.results import Extent, ScoredSentence, Summary, extent_of, notes
from longspan_documents.inference.verbs import Decoding
from longspan_documents.text.blocks import Document
from longspan_documents.text.reading import document_of

MOST_PARTS = 16
"""Maximum number of parts: generating a summary of each takes most of the time."""
LEAST_ROOM = 16
"""Minimum number of document tokens that a model must be able to read at once."""
CUT = "the summary reached its longest length before its end; max_tokens (--max-tokens) makes that longer"
SHRINKS = 0.5
"""The summaries of parts are divided again while they have at most this share of the tokens that they summarise."""


class Picks(Protocol):
    """A summariser that picks sentences: the bundled model."""

    def summarize(
        self, document: Document, sentences: int | Extent | None = None, query: str | None = None
    ) -> Summary: ...


class Abstractive:
    """Summarises with a generative model.

    Args:
        writer: the model.
        decoding: how a document that is longer than the model's input is handled.
        picks: returns the extractive summariser, when one is needed.
        language: ISO 639-1 code for sentence splitting; None guesses it by the script.
    """

    streams = True
    """Whether `summarize` accepts `stream`."""

    def __init__(
        self, writer: Writer, *, decoding: Decoding, picks: Callable[[], Picks], language: str | None = None
    ) -> None:
        self.writer, self.decoding, self.picks, self.language = writer, decoding, picks, language

    def summarize(
        self,
        document: Document,
        sentences: int | Extent | None = None,
        query: str | None = None,
        *,
        stream: Callable[[str], None] | None = None,
    ) -> Summary:
        """Returns the generated summary, split into sentences; arguments as in `longspan.summarize`.

        Raises:
            InputError: a number of sentences or words is specified for a model that does not follow instructions, or
                the configuration of the model does not allow generation.
        """
        writer, asked = self.writer, self._asked(sentences, query)
        begin = time.perf_counter()
        encoded = writer.encode(document.words, asked)
        tokens, note = len(encoded["input_ids"]), None
        if self._fits(encoded):
            (written,) = writer.write([encoded], stream)
        elif (longer := self._lengthened(tokens)) is not None:
            note = (
                f"the document has {tokens:,} tokens and model {writer.source!r} reads {writer.limit:,}, so it was "
                f"lengthened to {longer.limit:,}, for which it was not trained; long_documents='parts' reads parts"
            )
            (written,) = longer.write([encoded], stream)
        else:
            written, note = self._in_parts(document, tokens, asked, stream)
        return self._summary(written, tokens, time.perf_counter() - begin, note)

    def summarize_several(
        self, documents: Sequence[Document], sentences: int | Extent | None = None, query: str | None = None
    ) -> Iterator[Summary]:
        """Yield the summary of each document, in order, as soon as it is finished.

        Documents that fit the model's input are batched by length, and the time of a batch is divided equally among
        them; a longer document is summarised when its turn comes. Arguments and errors as in `summarize`.
        """
        asked = self._asked(sentences, query)
        encoded = [self.writer.encode(document.words, asked) for document in documents]
        short = [place for place, features in enumerate(encoded) if self._fits(features)]
        batches = self.writer.write_batches([encoded[place] for place in short])
        done: dict[int, Summary] = {}
        for place, document in enumerate(documents):
            if not self._fits(encoded[place]):
                done[place] = self.summarize(document, sentences, query)
            while place not in done:
                begin = time.perf_counter()
                chosen, written = next(batches)
                share = (time.perf_counter() - begin) / len(chosen)
                for index, output in zip(chosen, written, strict=True):
                    done[short[index]] = self._summary(output, len(encoded[short[index]]["input_ids"]), share)
            yield done.pop(place)

    def _asked(self, sentences: int | Extent | None, query: str | None) -> Asked:
        extent = extent_of(sentences)
        if extent.given and not self.writer.follows:
            raise InputError(
                f"{extent.given} is given, but model {self.writer.source!r} writes its summary; "
                "give the longest length in tokens instead (max_tokens)"
            )
        return Asked(query=query, extent=extent)

    def _fits(self, encoded: dict[str, Any]) -> bool:
        """Returns whether the whole text fits the model's input."""
        return self.writer.limit is None or len(encoded["input_ids"]) <= self.writer.limit

    def _summary(self, written: Written, tokens: int, seconds: float, note: str | None = None) -> Summary:
        return Summary(
            sentences=tuple(ScoredSentence(sentence.text) for sentence in split_sentences(written.text, self.language)),
            tokens=tokens,
            seconds=seconds,
            note=notes(note, None if written.text else "the model wrote an empty summary", CUT * (not written.ended)),
        )

    def _lengthened(self, tokens: int) -> Writer | None:
        return None if self.decoding.long_documents == "parts" else self.writer.lengthened(tokens)

    def _in_parts(
        self, document: Document, tokens: int, asked: Asked, stream: Callable[[str], None] | None
    ) -> tuple[Written, str]:
        """Summarise the summaries of parts; returns the summary and a note on what was read."""
        limit, merging = self.writer.limit, replace(asked, what="summaries")
        assert limit is not None
        asked = replace(asked, what="part", extent=Extent())
        room = limit - max(self._count("a", asked), self._count("a", merging))
        if room < LEAST_ROOM:
            raise InputError(
                f"model {self.writer.source!r} reads {limit} tokens at once, which leaves {max(room, 0)} for the "
                "document; raise max_source_tokens, or give another model"
            )
        text, chosen = document.words, ""
        if tokens > MOST_PARTS * room:
            text = self._picked(
                document, (MOST_PARTS - 1) * (room - room // 4), asked
            )  # `parts_of` may fill parts to this length
            chosen = f" of {self._count(text, asked):,} that the bundled model picked"
        parts = self._parts(text, asked)
        read = self._count(text, asked)
        written = self._write_all(parts, asked)
        note = (
            f"the document has {tokens:,} tokens and model {self.writer.source!r} reads {limit:,} at once, so it was "
            f"read in {counted(len(parts), 'part')}{chosen}, whose summaries were merged"
        )
        while True:
            joined = "\n".join(filter(None, written))
            encoded = self.writer.encode(joined, merging)
            length = len(encoded["input_ids"])
            if not joined:
                return Written(""), note
            if length <= limit:
                return self.writer.write([encoded], stream)[0], note
            if length > SHRINKS * read:  # the summaries are about as long as what they summarise
                text = self._picked(document_of(joined, raw=True), room, merging)
                (first, *_) = self._parts(text, merging)
                return self.writer.write([self.writer.encode(first, merging)], stream)[0], note
            read = length
            written = self._write_all(self._parts(joined, merging), merging)

    def _parts(self, text: str, asked: Asked) -> list[str]:
        assert self.writer.limit is not None
        return parts_of(
            text,
            self.writer.limit,
            lambda part: self._count(part, asked),
            around=self._count("a", asked) - 1,
            language=self.language,
        )

    def _write_all(self, parts: list[str], asked: Asked) -> list[str]:
        return [text for text, _ in self.writer.write([self.writer.encode(part, asked) for part in parts])]

    def _count(self, text: str, asked: Asked) -> int:
        return len(self.writer.encode(text, asked)["input_ids"])

    def _picked(self, document: Document, room: int, asked: Asked) -> str:
        """Returns the best sentences by the bundled model, in order, with about `room` tokens together."""
        rated = self.picks().summarize(document, None, asked.query).document
        around = self._count("a", asked) - 1
        order = sorted(range(len(rated)), key=lambda index: -_score(rated[index]))
        taken: list[int] = []
        for index in order:
            room -= self._count(str(rated[index]), asked) - around
            if room < 0:
                break
            taken.append(index)
        return "\n".join(str(rated[index]) for index in sorted(taken)) or document.words


def _score(sentence: Any) -> float:
    return sentence.score or 0.0
