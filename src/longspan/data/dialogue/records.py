"""Dialogues in the records of public data sets, and how their fields become turns.

| layout | known by the fields | turns |
|---|---|---|
| `qmsum` | meeting_transcripts | `speaker` and `content` of each, without corpus tags; `topic_list` |
| `crd3` | TURNS | `NAMES`, joined by "and", and `UTTERANCES`, lines of captions |
| `mediasum` | utt, speaker | two lists of the same length |
| `summscreen` | Transcript | a list of lines, "Speaker: text" or a stage direction |
| `turns` | turns | `speaker` and `text` of each |
| `lines` | dialogue, transcript, text or src | lines of "Speaker: text", as a text or as a list |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from longspan.data.dialogue.plain import turns_of_lines
from longspan.data.dialogue.turns import Dialogue, Turn
from longspan.data.fields import Record, id_of, list_of, objects_in, texts_in, value_of
from longspan.errors import InputError

TEXT_FIELDS = ("dialogue", "transcript", "text", "source", "document", "src")
"""Where records hold a transcript as text, the most particular name first."""

_TAG = re.compile(r"\{[a-z]+\}")
_SPACED_MARK = re.compile(r"\s+([.,?!;:]|'\w{1,2}\b)")


def dialogue_of(record: Record, default_id: str) -> Dialogue:
    """The dialogue of one record, without turns that hold no letter or digit.

    Raises:
        InputError: its fields are of no layout, or do not hold what the layout says.
    """
    layout = next((layout for layout in LAYOUTS.values() if layout.known_by <= record.keys()), None)
    if layout is not None:
        turns = layout.turns(record)
    else:
        field = next((name for name in TEXT_FIELDS if name in record), None)
        if field is None:
            raise InputError(
                f"no known layout of dialogues has the fields {', '.join(sorted(map(str, record))) or '(none)'}; give "
                "'turns', a list of objects with 'speaker' and 'text'"
            )
        if field == "text" and "speaker" in record:
            raise InputError(
                "the record has 'speaker' and 'text', a single turn; give a record for each dialogue, with 'turns', a "
                "list of these"
            )
        turns = turns_of_lines(line for text in texts_in(record, field) for line in text.split("\n"))
    kept = [index for index, turn in enumerate(turns) if turn.is_spoken]
    topics = _topics(record, kept) if "topic_list" in record else None
    return Dialogue(id=id_of(record, default_id), turns=tuple(turns[index] for index in kept), topics=topics)


def qmsum_turns(record: Record) -> list[Turn]:
    """The turns of a meeting of QMSum that hold words."""
    return [turn for turn in _qmsum(record) if turn.is_spoken]


def crd3_turns(record: Record) -> list[Turn]:
    """The turns of an episode of CRD3; several may speak at once."""
    return [
        Turn(" and ".join(texts_in(turn, "NAMES")), " ".join(texts_in(turn, "UTTERANCES")))
        for turn in objects_in(record, "TURNS")
    ]


def without_spaced_marks(text: str) -> str:
    """A text whose punctuation stands apart ("we 're , yes") as people write it."""
    return _SPACED_MARK.sub(r"\1", " ".join(text.split()))


def _qmsum(record: Record) -> list[Turn]:
    return [
        Turn(
            "".join(texts_in(turn, "speaker")), without_spaced_marks(_TAG.sub(" ", "".join(texts_in(turn, "content"))))
        )
        for turn in objects_in(record, "meeting_transcripts")
    ]


def _topics(record: Record, kept: list[int]) -> tuple[int, ...]:
    """With which of the turns `kept`, by their indices in the record, a span of QMSum's topics begins.

    A span ends where the next one begins; some turns belong to none, and count to the one before.
    """
    spans = (span for topic in objects_in(record, "topic_list") for span in list_of(topic, "relevant_text_span"))
    try:
        starts = sorted({int(start) for start, _ in spans})
    except (TypeError, ValueError):
        raise InputError("field 'relevant_text_span' holds other than pairs of turns; give [first, last]") from None
    places = {next((place for place, index in enumerate(kept) if index >= start), 0) for start in starts}
    return tuple(sorted(places - {0}))


def _mediasum(record: Record) -> list[Turn]:
    said, speakers = list_of(record, "utt"), list_of(record, "speaker")
    if len(said) != len(speakers):
        raise InputError(f"fields 'utt' and 'speaker' have {len(said)} and {len(speakers)} entries; give one for each")
    return [Turn(speaker, text) for speaker, text in zip(speakers, said, strict=True)]


def _summscreen(record: Record) -> list[Turn]:
    return turns_of_lines(texts_in(record, "Transcript"))


def _turns(record: Record) -> list[Turn]:
    return [
        Turn(value_of(turn, "speaker", "a turn") or "", value_of(turn, "text", "a turn"))
        for turn in objects_in(record, "turns")
    ]


class Layout(NamedTuple):
    """How records of one layout become turns, and the fields by which they are known."""

    turns: Callable[[Record], list[Turn]]
    known_by: frozenset[str]


LAYOUTS: dict[str, Layout] = {
    "qmsum": Layout(_qmsum, frozenset({"meeting_transcripts"})),
    "crd3": Layout(crd3_turns, frozenset({"TURNS"})),
    "mediasum": Layout(_mediasum, frozenset({"utt", "speaker"})),
    "summscreen": Layout(_summscreen, frozenset({"Transcript"})),
    "turns": Layout(_turns, frozenset({"turns"})),
}
