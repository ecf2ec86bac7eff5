"""Subtitles, SubRip (.srt) and WebVTT (.vtt): what is said."""

from __future__ import annotations

import re

from longspan.data.text.blocks import Document
from longspan.data.text.kinds.source import Source
from longspan.data.text.kinds.table import FileKind
from longspan.data.text.plain_text import transcript_of

_CLOCK = r"(?:\d{1,2}:)?\d\d:\d\d[.,]\d{3}"
_BEGINS = re.compile(rf"\s*(?:WEBVTT(?:[ \t][^\n]*)?\n|\d{{1,6}}[ \t]*\n{_CLOCK} --> {_CLOCK})")


def _read(source: Source) -> Document | str:
    said = transcript_of(source.text)
    return source.text if said is None else said


SUBTITLES = FileKind(
    name="subtitles",
    title="a file of subtitles",
    endings=(".srt", ".vtt"),
    signature=lambda source: bool(_BEGINS.match(source.beginning)),
    read=_read,
    is_text=True,
    parts="What is said, by the time at which it begins, a line for each who speaks; rolling captions once.",
    left_out="numbers, times, marks of style",
)
