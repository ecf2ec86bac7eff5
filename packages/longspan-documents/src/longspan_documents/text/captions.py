"""Subtitles, SubRip (.srt) and WebVTT (.vtt), as cues and as spoken text.

Cues are sorted by start time, so overlapping and unordered times do no harm. Rolling captions, in which each cue
repeats the last lines of the previous one and adds one, are read once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import unescape
from itertools import pairwise

from longspan.data.text.sentences import count_words

Cue = tuple[float, float, str]
"""Start time, end time and text, in seconds."""

ROLLING = 0.3
"""Minimum share of cues that begin with the previous cue's text in rolling captions."""
APART = 1.0
"""Maximum seconds between two cues for repetition."""
MARKED = 40
"""Words per end mark; speech with more has no punctuation."""
PAUSE, ENOUGH = 2.0, 12
"""Without punctuation, a sentence ends with the cue before a pause of this many seconds, or at this many words."""

_CLOCK = r"(?:(\d+):)?(\d{1,2}):(\d{1,2})[.,](\d{1,3})"
_TIMES = re.compile(rf"^\s*{_CLOCK}\s*-+>\s*{_CLOCK}")
_TIME = re.compile(rf"^\s*{_CLOCK}")
_VOICE = re.compile(r"<v(?:\.[^\s<>]*)?\s+([^<>]+)>")
_MARKUP = re.compile(r"</?[a-zA-Z][^<>]*>|<(?:\d+:)?\d{1,2}:\d{2}\.\d{3}>|\{\\[^{}]*\}")
_NEXT = re.compile(r"\n(?=\s*[-–—]\s*\S)")
_END = re.compile(r"[.!?…。！？؟।]")


def cues_in(text: str) -> list[Cue]:
    """Returns the cues of SubRip and WebVTT by start time, each with the text it adds to the previous one."""
    return _once(by_time(_cues_of(text.splitlines())))


def lines_of(cues: Iterable[Cue]) -> list[str]:
    """Returns the spoken text, a line for each speaker of a cue, "Name: words" if a voice tag names the speaker."""
    parts = (part for _, _, shown in cues for part in parts_of(shown))
    return [f"{voice}: {words}" if voice else words for voice, words in parts if words]


def unmarked_paragraphs(cues: Sequence[Cue]) -> list[str] | None:
    """Returns speech without punctuation, split at the ends of cues; None if there is punctuation, or if cues name
    speakers."""
    lines = lines_of(cues)
    words = sum(map(count_words, lines))
    if words < 2 * MARKED or words < MARKED * sum(len(_END.findall(line)) for line in lines):
        return None
    if any(":" in line or line.startswith("-") for line in lines):
        return None
    paragraphs: list[str] = []
    now: list[str] = []
    for cue, following in zip(cues, [*cues[1:], None], strict=True):
        now += " ".join(lines_of([cue])).split()
        if now and (following is None or count_words(" ".join(now)) >= ENOUGH or following[0] - cue[1] >= PAUSE):
            paragraphs.append(" ".join(now))
            now = []
    return paragraphs


def _cues_of(lines: Sequence[str]) -> Iterator[Cue]:
    """Parses a line of times, and text up to a blank line; a line with only a space belongs to the text."""
    times: tuple[float, float] | None = None
    text: list[str] = []
    for line in [*lines, ""]:
        match = _TIMES.match(line)
        if (match or not line) and times is not None:
            if match and len(text) > 1 and text[-1].strip().isdigit() and not text[-2].strip():
                text.pop()  # the number of the next cue, if the line between them contains a space
            yield *times, "\n".join(text)
            times, text = None, []
        if match:
            clock = match.groups()
            times, text = (_seconds(*clock[:4]), _seconds(*clock[4:])), []
        elif times is not None:
            text.append(line)


def by_time(cues: Iterable[Cue]) -> list[Cue]:
    """Returns the cues sorted by start time, stably."""
    return sorted(cues, key=lambda cue: cue[0])


def _once(cues: list[Cue]) -> list[Cue]:
    """Returns the cues, with new lines only if captions roll."""
    shown = [[line for line in text.split("\n") if _plain(line)] for _, _, text in cues]
    plain = [[_plain(line) for line in lines] for lines in shown]
    repeated = [0] * len(cues)
    for index, (before, after) in enumerate(pairwise(plain)):
        if cues[index + 1][0] - cues[index][1] < APART:
            repeated[index + 1] = _overlap(before, after)
    if sum(map(bool, repeated)) < max(2, ROLLING * len(cues)):
        return cues
    return [(*cue[:2], "\n".join(lines[count:])) for cue, lines, count in zip(cues, shown, repeated, strict=True)]


def _overlap(before: list[str], after: list[str]) -> int:
    """Returns the number of lines at the beginning of a cue that end the previous cue."""
    return next((count for count in range(min(len(before), len(after)), 0, -1) if before[-count:] == after[:count]), 0)


def parts_of(text: str) -> Iterator[tuple[str | None, str]]:
    """Yields the parts of a cue, which may contain two speakers, each after a dash: the speaker of a voice tag, and the
    words without markup."""
    for part in _NEXT.split(text):
        voice = _VOICE.search(part)
        yield unescape(voice[1]) if voice else None, _plain(part)


def _plain(part: str) -> str:
    return " ".join(unescape(_MARKUP.sub("", _VOICE.sub("", part))).split())


def moment_of(clock: str) -> float | None:
    """Returns the seconds of a time such as 00:01:02,500; None if it is invalid."""
    match = _TIME.match(clock)
    return _seconds(*match.groups()) if match else None


def _seconds(hours: str | None, minutes: str, seconds: str, fraction: str) -> float:
    return 3600 * int(hours or 0) + 60 * int(minutes) + int(seconds) + int(fraction) / 10 ** len(fraction)
