"""A document summarised by a model that writes, whatever its length.

A document that is longer than the model reads is read in parts: each is summarised, and the summaries, one behind the
other, are the text that the last summary is of. Of a document that has more parts than `MOST_PARTS` the bundled model
picks the sentences that are read. Where that is asked for and can be done, the model is made longer instead
(`longspan.lengthen`), for which it was not trained. What was done stands in the note of the result.
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
"""More parts are not read: each is a summary to be written, which takes most of the time."""
LEAST_ROOM = 16
"""Tokens of a document that a model must be able to read at once."""
CUT = "the summary reached its longest length before its end; max_tokens (--max-tokens) makes that longer"
SHRINKS = 0.5
"""Summaries of parts are read in parts again while they have at most so many times the tokens of what they are of."""


class Picks(Protocol):
    """What picks sentences: the bundled model."""

    def summarize(self, document: Document, sentences: int | Extent | None = None, query: str | None = None) -> Summary:
        """See `longspan_documents.inference.summarize.Summarizer`."""
        ...


class Abstractive:
    """Summarises by writing, token by token.

    Args:
        writer: the model.
        decoding: says what is done with a document that is longer than the model reads.
        picks: gives the model that picks sentences, when one is needed.
        language: ISO 639-1 code for cutting sentences; None guesses by the script.
    """

    streams = True
    """`summarize` takes `stream`."""

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
        """What the model writes about a document, as sentences; arguments as in `longspan.summarize`.

        Raises:
            InputError: a number of sentences or words is given to a model that follows no instructions, or the model
                cannot write as it is configured.
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
        """What `summarize` gives of each of some documents, in their order, as soon as it is there.

        Documents that the model reads at once go through it in batches of like length, of whose time each has an equal
        share; a longer one follows when its turn comes. Arguments and errors as in `summarize`.
        """
        asked = self._asked(sentences, query)
        encoded = [self.writer.encode(document.words, asked) for document in documents]
        short = [place for place, each in enumerate(encoded) if self._fits(each)]
        batches = self.writer.write_batches([encoded[place] for place in short])
        done: dict[int, Summary] = {}
        for place, document in enumerate(documents):
            if not self._fits(encoded[place]):
                done[place] = self.summarize(document, sentences, query)
            while place not in done:
                begin = time.perf_counter()
                chosen, written = next(batches)
                share = (time.perf_counter() - begin) / len(chosen)
                for index, one in zip(chosen, written, strict=True):
                    done[short[index]] = self._summary(one, len(encoded[short[index]]["input_ids"]), share)
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
        """Whether the model reads a text at once."""
        return self.writer.limit is None or len(encoded["input_ids"]) <= self.writer.limit

    def _summary(self, written: Written, tokens: int, seconds: float, note: str | None = None) -> Summary:
        return Summary(
            sentences=tuple(ScoredSentence(one.text) for one in split_sentences(written.text, self.language)),
            tokens=tokens,
            seconds=seconds,
            note=notes(note, None if written.text else "the model wrote an empty summary", CUT * (not written.ended)),
        )

    def _lengthened(self, tokens: int) -> Writer | None:
        return None if self.decoding.long_documents == "parts" else self.writer.lengthened(tokens)

    def _in_parts(
        self, document: Document, tokens: int, asked: Asked, stream: Callable[[str], None] | None
    ) -> tuple[Written, str]:
        """The summary of summaries of parts, and a note on what was read."""
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
            text = self._picked(document, (MOST_PARTS - 1) * (room - room // 4), asked)  # as `parts_of` may fill them
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
            if length > SHRINKS * read:  # a model whose summaries are as long as what they are of
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
        """The sentences that the bundled model rates best, of about so many tokens together, in order."""
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
