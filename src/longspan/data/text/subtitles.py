"""Subtitles: SubRip (.srt) and WebVTT (.vtt), as cues and as the text that is said.

Cues are sorted by when they begin, so that overlapping and disordered times do no harm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

SUFFIXES = (".srt", ".vtt")

Cue = tuple[float, float, str]
"""From when to when a text is shown, in seconds."""

_CLOCK = r"(?:(\d+):)?(\d{1,2}):(\d{1,2})[.,](\d{1,3})"
_TIMES = re.compile(rf"^\s*{_CLOCK}\s*-+>\s*{_CLOCK}")
_TIME = re.compile(rf"^\s*{_CLOCK}")
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]+)>")
_MARKUP = re.compile(r"</?[a-zA-Z][^>]*>|\{\\[^}]*\}")
_NEXT = re.compile(r"\n(?=\s*[-–—]\s*\S)")


def transcript_of(text: str) -> str | None:
    """What is said in the subtitles, a line for each who speaks in a cue, "Name: words" where a voice tag names them;
    `None` where there are no cues."""
    cues = by_time(cues_of(text.splitlines()))
    said = (part for _, _, shown in cues for part in parts_of(shown))
    lines = (f"{voice}: {words}" if voice else words for voice, words in said if words)
    return "\n".join(lines) if cues else None


def cues_of(lines: Sequence[str]) -> Iterator[Cue]:
    """The cues of SubRip and WebVTT: a line of times, and text up to a blank line."""
    times: tuple[float, float] | None = None
    text: list[str] = []
    for line in [*lines, ""]:
        match = _TIMES.match(line)
        if (match or not line.strip()) and times is not None:
            yield *times, "\n".join(text)
            times, text = None, []
        if match:
            clock = match.groups()
            times, text = (_seconds(*clock[:4]), _seconds(*clock[4:])), []
        elif times is not None:
            text.append(line)


def by_time(cues: Iterable[Cue]) -> list[Cue]:
    """The cues sorted by when they begin; those that begin together keep their order."""
    return sorted(cues, key=lambda cue: cue[0])


def parts_of(text: str) -> Iterator[tuple[str | None, str]]:
    """A cue may hold what two people say, each behind a dash: whom a voice tag names, and the words without markup."""
    for part in _NEXT.split(text):
        voice = _VOICE.search(part)
        yield voice[1] if voice else None, " ".join(_MARKUP.sub("", _VOICE.sub("", part)).split())


def moment_of(clock: str) -> float | None:
    """The seconds of a time such as 00:01:02,500; None where it is none."""
    match = _TIME.match(clock)
    return _seconds(*match.groups()) if match else None


def _seconds(hours: str | None, minutes: str, seconds: str, fraction: str) -> float:
    return 3600 * int(hours or 0) + 60 * int(minutes) + int(seconds) + int(fraction) / 10 ** len(fraction)
