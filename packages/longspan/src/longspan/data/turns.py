"""Dialogues, from any source, as turns of speakers in order; and those of QMSum and CRD3.

Both corpora are read as dialogues (`longspan_papers.dialogue`) and as documents with summaries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from longspan.characters import check_characters
from longspan.data.fields import Record, kind_of, objects_in, texts_in
from longspan.errors import InputError

_TAG = re.compile(r"\{[a-z]+\}")
_SPACED_MARK = re.compile(r"\s+([.,?!;:]|'\w{1,2}\b)")


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of one speaker.

    White space is normalised: `text` is on one line, with single spaces.

    Attributes:
        speaker: the name, which may contain colons; empty if unknown.
        text: the words; may be empty.
        start, end: its characters in the document, end exclusive; None for files of records.
        seconds: start and end time, if known; turns may overlap in time.
    """

    speaker: str
    text: str
    start: int | None = None
    end: int | None = None
    seconds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in ("speaker", "text"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise InputError(f"{name} of a turn is {kind_of(value)}; give a text")
            object.__setattr__(self, name, " ".join(check_characters(value, f"the {name} of a turn").split()))

    @property
    def line(self) -> str:
        """The turn as a line of a transcript: "Speaker: text", or the text alone."""
        return f"{self.speaker}: {self.text}".strip() if self.speaker else self.text

    @property
    def words(self) -> list[str]:
        """The words of the text, without the name."""
        return self.text.split()

    @property
    def is_spoken(self) -> bool:
        """Whether the text contains a letter or a digit."""
        return any(map(str.isalnum, self.text))


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """A dialogue.

    Attributes:
        id: the data set's id.
        turns: in order.
        topics: indices of the turns that begin a new topic (never 0); None if unknown.
    """

    id: str
    turns: tuple[Turn, ...]
    topics: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Converts sequences to tuples; raises `InputError` for topics outside of the dialogue."""
        object.__setattr__(self, "turns", tuple(self.turns))
        if self.topics is not None:
            topics = tuple(sorted(set(self.topics)))
            if topics and not 0 < topics[0] <= topics[-1] < len(self.turns):
                raise InputError(
                    f"topics of dialogue {self.id!r} begin with turns {topics[0]} to {topics[-1]}, but it has turns 0 "
                    f"to {len(self.turns) - 1}, and the first topic begins by itself; correct them"
                )
            object.__setattr__(self, "topics", topics)

    @cached_property
    def speakers(self) -> tuple[str, ...]:
        """All named speakers, in order of appearance."""
        return tuple(dict.fromkeys(turn.speaker for turn in self.turns if turn.speaker))

    @property
    def text(self) -> str:
        """One line for each turn."""
        return text_of(self.turns)


def text_of(turns: Iterable[Turn]) -> str:
    """Returns one line for each turn."""
    return "\n".join(turn.line for turn in turns)


def qmsum_turns(record: Record, *, silent: bool = False) -> list[Turn]:
    """Returns the turns of a QMSum meeting that contain words, or with `silent` all of them."""
    turns = [
        Turn(
            "".join(texts_in(turn, "speaker")), without_spaced_marks(_TAG.sub(" ", "".join(texts_in(turn, "content"))))
        )
        for turn in objects_in(record, "meeting_transcripts")
    ]
    return [turn for turn in turns if silent or turn.is_spoken]


def crd3_turns(record: Record) -> list[Turn]:
    """Returns the turns of a CRD3 episode, which may have several speakers."""
    return [
        Turn(" and ".join(texts_in(turn, "NAMES")), " ".join(texts_in(turn, "UTTERANCES")))
        for turn in objects_in(record, "TURNS")
    ]


def without_spaced_marks(text: str) -> str:
    """Removes spaces before punctuation ("we 're , yes")."""
    return _SPACED_MARK.sub(r"\1", " ".join(text.split()))
