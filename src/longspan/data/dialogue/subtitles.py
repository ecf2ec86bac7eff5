"""Subtitles as dialogues: SubRip (.srt), WebVTT (.vtt), and the XML files of OPUS OpenSubtitles.

A film of OPUS is one file, `<document id="…"><s id="1"><time id="T1S" value="00:00:01,000"/>…</s>…</document>`, whose
sentences hold text, or a `<w>` for each word. Subtitles name nobody but in WebVTT's voice tags, or as "NAME: text".
Turns are sorted by when they begin, so that overlapping and disordered times do no harm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from longspan.data.dialogue.plain import turns_of_lines
from longspan.data.dialogue.records import without_spaced_marks
from longspan.data.dialogue.turns import Dialogue, Turn
from longspan.data.jsonl import UNREADABLE, open_bytes, unreadable
from longspan.data.text.documents import decode
from longspan.errors import InputError

FILES = re.compile(r"\.(srt|vtt|xml)(\.gz|\.xz)?$", re.IGNORECASE)
"""Names of files of subtitles."""

Cue = tuple[float, float, str]
"""From when to when a text is shown, in seconds."""

_CLOCK = r"(?:(\d+):)?(\d{1,2}):(\d{1,2})[.,](\d{1,3})"
_TIMES = re.compile(rf"^\s*{_CLOCK}\s*-+>\s*{_CLOCK}")
_TIME = re.compile(rf"^\s*{_CLOCK}")
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]+)>")
_MARKUP = re.compile(r"</?[a-zA-Z][^>]*>|\{\\[^}]*\}")
_NEXT = re.compile(r"\n(?=\s*[-–—]\s*\S)")


def read_subtitles(path: Path) -> Dialogue:
    """The dialogue of a file of subtitles.

    Raises:
        InputError: it cannot be read, or there is no subtitle in it.
    """
    try:
        with open_bytes(path) as file:
            data = file.read()
    except UNREADABLE as error:
        raise unreadable(path, error) from None
    is_xml = re.search(r"\.xml\b", path.name, re.IGNORECASE)
    cues = list(_opus(data, path) if is_xml else _cues(decode(data, str(path)).splitlines()))
    cues.sort(key=lambda cue: cue[0])
    turns = tuple(turn for cue in cues for turn in _turns(cue) if turn.is_spoken)
    if not turns:
        raise InputError(f"{path} holds no subtitles; give a file of SubRip, WebVTT or OPUS XML, named by its kind")
    return Dialogue(id=path.name.split(".")[0], turns=turns)


def _cues(lines: list[str]) -> Iterator[Cue]:
    """The cues of SubRip and WebVTT: a line of times, and text up to a blank line."""
    times: tuple[float, float] | None = None
    text: list[str] = []
    for line in [*lines, ""]:
        found = _TIMES.match(line)
        if (found or not line.strip()) and times is not None:
            yield *times, "\n".join(text)
            times, text = None, []
        if found:
            clock = found.groups()
            times, text = (_seconds(*clock[:4]), _seconds(*clock[4:])), []
        elif times is not None:
            text.append(line)


def _opus(data: bytes, path: Path) -> Iterator[Cue]:
    """A sentence without a time begins where the last one that is named lies."""
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise InputError(f"{path} is not XML ({error}); get the file again") from None
    now = 0.0
    for sentence in root.iter("s"):
        first: float | None = None
        words: list[str] = [sentence.text or ""]
        for part in sentence:
            if part.tag == "time":
                clock = _TIME.match(part.get("value", ""))
                now = _seconds(*clock.groups()) if clock else now
                first = now if first is None else first
            words += ["".join(part.itertext()), part.tail or ""]
        yield now if first is None else first, now, without_spaced_marks(" ".join(words))


def _turns(cue: Cue) -> Iterator[Turn]:
    """A cue may hold what two people say, each behind a dash; a voice tag or a colon tells who it is."""
    start, end, text = cue
    for part in _NEXT.split(text):
        voice = _VOICE.search(part)
        (turn,) = turns_of_lines([" ".join(_MARKUP.sub("", _VOICE.sub("", part)).split())]) or [Turn("", "")]
        yield Turn(voice[1] if voice else turn.speaker, turn.text, seconds=(start, max(start, end)))


def _seconds(hours: str | None, minutes: str, seconds: str, fraction: str) -> float:
    return 3600 * int(hours or 0) + 60 * int(minutes) + int(seconds) + int(fraction) / 10 ** len(fraction)
