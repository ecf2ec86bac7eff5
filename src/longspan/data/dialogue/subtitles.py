"""Subtitles as dialogues: SubRip (.srt), WebVTT (.vtt), and the XML files of OPUS OpenSubtitles.

A film of OPUS is one file, `<document id="…"><s id="1"><time id="T1S" value="00:00:01,000"/>…</s>…</document>`, whose
sentences hold text, or a `<w>` for each word. Subtitles name nobody but in WebVTT's voice tags, or as "NAME: text".
What is shown is `longspan.data.text.subtitles`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from longspan.data.dialogue.plain import turns_of_lines
from longspan.data.dialogue.records import without_spaced_marks
from longspan.data.dialogue.turns import Dialogue, Turn
from longspan.data.jsonl import LONGEST, UNREADABLE, read_bytes, unreadable
from longspan.data.text.documents import decode
from longspan.data.text.subtitles import Cue, by_time, cues_of, moment_of, parts_of
from longspan.errors import InputError, last_line

FILES = re.compile(r"\.(srt|vtt|xml)(\.gz|\.xz)?$", re.IGNORECASE)
"""Names of files of subtitles."""


def read_subtitles(path: Path, encoding: str | None = None) -> Dialogue:
    """The dialogue of a file of subtitles; the encoding as in `longspan.data.text.reading.read`, XML says its own.

    Raises:
        InputError: it cannot be read, or there is no subtitle in it.
    """
    try:
        data = read_bytes(path, LONGEST)
    except UNREADABLE as error:
        raise unreadable(path, error) from None
    is_xml = re.search(r"\.xml\b", path.name, re.IGNORECASE)
    cues = by_time(_opus(data, path) if is_xml else cues_of(decode(data, str(path), encoding).splitlines()))
    turns = tuple(turn for cue in cues for turn in _turns(cue) if turn.is_spoken)
    if not turns:
        raise InputError(f"{path} holds no subtitles; give a file of SubRip, WebVTT or OPUS XML, named by its kind")
    return Dialogue(id=path.name.split(".")[0], turns=turns)


def _opus(data: bytes, path: Path) -> Iterator[Cue]:
    """A sentence without a time begins where the last one that is named lies."""
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # the last two: of the encoding that it declares
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


def _turns(cue: Cue) -> Iterator[Turn]:
    """A voice tag or a colon tells who it is."""
    start, end, text = cue
    for voice, words in parts_of(text):
        (turn,) = turns_of_lines([words]) or [Turn("", "")]
        yield Turn(voice or turn.speaker, turn.text, seconds=(start, max(start, end)))
