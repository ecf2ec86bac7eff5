"""Documents, records and subtitles as dialogues.

Plain documents are transcripts of "Speaker: text", interviews, chats, and texts without speaker names. Records are
those of public data sets:

| layout | recognised by the fields | turns |
|---|---|---|
| `qmsum` | meeting_transcripts | `speaker` and `content` of each, without corpus tags; `topic_list` |
| `crd3` | TURNS | `NAMES`, joined by "and", and `UTTERANCES`, lines of captions |
| `mediasum` | utt, speaker | two lists of the same length |
| `summscreen` | Transcript | a list of lines, "Speaker: text" or a stage direction |
| `turns` | turns | `speaker` and `text` of each |
| `lines` | dialogue, transcript, text or src | lines of "Speaker: text", as a text or as a list |

Subtitles are SubRip (.srt), WebVTT (.vtt), and the XML files of OPUS OpenSubtitles. A film of OPUS is one file,
`<document id="…"><s id="1"><time id="T1S" value="00:00:01,000"/>…</s>…</document>`, whose sentences hold text, or a
`<w>` for each word. Subtitles name speakers only in WebVTT's voice tags, or as "NAME: text". Markup is removed by
`longspan_documents.text.plain_text`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from longspan.data.fields import Record, id_of, list_of, objects_in, texts_in, value_of
from longspan.data.jsonl import LONGEST, UNREADABLE, read_bytes, unreadable
from longspan.data.turns import Dialogue, Turn, crd3_turns, qmsum_turns, without_spaced_marks
from longspan.errors import InputError, last_line
from longspan_documents.text.blocks import Document
from longspan_documents.text.captions import Cue, by_time, cues_in, moment_of, parts_of
from longspan_documents.text.documents import decode
from longspan_documents.text.reading import document_of
from longspan_documents.text.tidying.turns import beginnings

MARKED = 0.5
"""If at least this share of the lines begins with a name, the other lines continue the turn before them."""

_DASH = re.compile(r"^[-–—]+\s*(?=\S)")
"""The dash that begins a turn without a speaker name, in subtitles and novels."""


def read_text(text: str, name: str) -> Dialogue:
    """Returns the dialogue of a transcript in memory."""
    return document_dialogue(document_of(text, name=name))


def document_dialogue(document: Document) -> Dialogue:
    """Returns the dialogue of a document of any kind, as returned by `longspan_documents.text.reading.read`.

    If the document has recognised turns, these are used, and text between them has no speaker. Otherwise, and with at
    most one speaker, every line is parsed separately, see `turns_of_lines`.
    """
    blocks = [block for block in document.blocks if block.kind not in {"boilerplate", "references"}]
    if any(block.kind == "turn" for block in blocks):
        turns = [Turn(block.speaker or "", block.text, block.body.start, block.body.end) for block in blocks]
    else:
        turns = turns_of_lines(document.text.split("\n"), placed=True)
    return Dialogue(id=document.name, turns=tuple(turn for turn in turns if turn.is_spoken))


def turns_of_lines(lines: Iterable[str], *, placed: bool = False) -> list[Turn]:
    """Splits the lines of a transcript into turns: lines that begin with a name, and those that continue them.

    If most lines begin with a name, the others continue the turn before them. If few do, as in a transcript without
    speaker names, every line is a turn. A dash before a turn is dropped.

    Args:
        lines: without their line ends.
        placed: whether turns record their character offsets in the text of these lines.
    """
    turns: list[Turn] = []
    named, place = 0, 0
    for line in lines:
        begin, place = place, place + len(line) + 1
        if not line.strip():
            continue
        mark = next((mark for mark in beginnings(line) if mark.start == 0), None)
        named += mark is not None
        words = line if mark is None else line[mark.words :]
        where = (begin, begin + len(line)) if placed else (None, None)
        turns.append(Turn("" if mark is None else mark.name, _DASH.sub("", words.strip()), *where))
    return _joined(turns) if named and named >= MARKED * len(turns) else turns


def _joined(turns: list[Turn]) -> list[Turn]:
    """Joins a turn without a name to the one before."""
    groups: list[list[Turn]] = []
    for turn in turns:
        if groups and not turn.speaker:
            groups[-1].append(turn)
        else:
            groups.append([turn])
    return [
        Turn(first.speaker, " ".join(turn.text for turn in (first, *more)), first.start, (more or [first])[-1].end)
        for first, *more in groups
    ]


TEXT_FIELDS = ("dialogue", "transcript", "text", "source", "document", "src")
"""Record fields that hold a transcript as text, the most specific name first."""


def dialogue_of(record: Record, default_id: str) -> Dialogue:
    """Returns the dialogue of one record, without turns that have no letter or digit.

    Raises:
        InputError: its fields match no layout, or have other types than the layout requires.
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
    spoken = [index for index, turn in enumerate(turns) if turn.is_spoken]
    topics = _topics(record, spoken) if "topic_list" in record else None
    return Dialogue(id=id_of(record, default_id), turns=tuple(turns[index] for index in spoken), topics=topics)


def _topics(record: Record, spoken: list[int]) -> tuple[int, ...]:
    """Returns the `spoken` turns, by record index, with which a topic span of QMSum begins.

    A span ends where the next one begins; turns outside all spans belong to the preceding span.
    """
    spans = (span for topic in objects_in(record, "topic_list") for span in list_of(topic, "relevant_text_span"))
    try:
        starts = sorted({int(start) for start, _ in spans})
    except (TypeError, ValueError):
        raise InputError("field 'relevant_text_span' holds other than pairs of turns; give [first, last]") from None
    places = {next((place for place, index in enumerate(spoken) if index >= start), 0) for start in starts}
    return tuple(sorted(places - {0}))


def _mediasum(record: Record) -> list[Turn]:
    utterances, speakers = list_of(record, "utt"), list_of(record, "speaker")
    if len(utterances) != len(speakers):
        raise InputError(
            f"fields 'utt' and 'speaker' have {len(utterances)} and {len(speakers)} entries; give one for each"
        )
    return [Turn(speaker, text) for speaker, text in zip(speakers, utterances, strict=True)]


def _summscreen(record: Record) -> list[Turn]:
    return turns_of_lines(texts_in(record, "Transcript"))


def _turns(record: Record) -> list[Turn]:
    return [
        Turn(value_of(turn, "speaker", "a turn") or "", value_of(turn, "text", "a turn"))
        for turn in objects_in(record, "turns")
    ]


class Layout(NamedTuple):
    """Converts records of one layout to turns, with the fields that identify the layout."""

    turns: Callable[[Record], list[Turn]]
    known_by: frozenset[str]


LAYOUTS: dict[str, Layout] = {
    "qmsum": Layout(partial(qmsum_turns, silent=True), frozenset({"meeting_transcripts"})),
    "crd3": Layout(crd3_turns, frozenset({"TURNS"})),
    "mediasum": Layout(_mediasum, frozenset({"utt", "speaker"})),
    "summscreen": Layout(_summscreen, frozenset({"Transcript"})),
    "turns": Layout(_turns, frozenset({"turns"})),
}


FILES = re.compile(r"\.(srt|vtt|xml)(\.gz|\.xz)?$", re.IGNORECASE)
"""File names of subtitles."""


def read_subtitles(path: Path, encoding: str | None = None) -> Dialogue:
    """Returns the dialogue of a subtitle file; `encoding` as in `longspan_documents.text.reading.read`; XML declares
    its own.

    Raises:
        InputError: it cannot be read, or contains no subtitle.
    """
    try:
        data = read_bytes(path, LONGEST)
    except UNREADABLE as error:
        raise unreadable(path, error) from None
    is_xml = re.search(r"\.xml\b", path.name, re.IGNORECASE)
    cues = by_time(_opus(data, path)) if is_xml else cues_in(decode(data, str(path), encoding))
    turns = tuple(turn for cue in cues for turn in _spoken_in(cue) if turn.is_spoken)
    if not turns:
        raise InputError(f"{path} holds no subtitles; give a file of SubRip, WebVTT or OPUS XML, named by its kind")
    return Dialogue(id=path.name.split(".")[0], turns=turns)


def _opus(data: bytes, path: Path) -> Iterator[Cue]:
    """Yields the cues of an OPUS file; a sentence without a time begins at the last time before it."""
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # the last two: for the declared encoding
        raise InputError(f"{path} is not XML ({last_line(error)}); get the file again") from None
    now = 0.0
    for sentence in root.iter("s"):
        first: float | None = None
        words: list[str] = [sentence.text or ""]
        for part in sentence:
            if part.tag == "time":
                moment = moment_of(part.get("value", ""))
                now = now if moment is None else moment
                first = now if first is None else first
            words += ["".join(part.itertext()), part.tail or ""]
        yield now if first is None else first, now, without_spaced_marks(" ".join(words))


def _spoken_in(cue: Cue) -> Iterator[Turn]:
    """Yields the turns of a cue, with the speaker from a voice tag or a colon."""
    start, end, text = cue
    for voice, words in parts_of(text):
        (turn,) = turns_of_lines([words]) or [Turn("", "")]
        yield Turn(voice or turn.speaker, turn.text, seconds=(start, max(start, end)))
