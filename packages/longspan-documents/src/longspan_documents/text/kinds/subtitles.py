"""Subtitles, SubRip (.srt) and WebVTT (.vtt): the spoken text; see `longspan_documents.text.captions`."""

from __future__ import annotations

import re

from longspan_documents.text.blocks import Document, document_from_parts
from longspan_documents.text.captions import cues_in, lines_of, unmarked_paragraphs
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind

_CLOCK = r"(?:\d{1,2}:)?\d\d:\d\d[.,]\d{3}"
_BEGINS = re.compile(rf"\s*(?:WEBVTT(?:[ \t][^\n]*)?\n|\d{{1,6}}[ \t]*\n{_CLOCK} --> {_CLOCK})")


def _read(source: Source) -> Document | str:
    cues = cues_in(source.text)
    if (paragraphs := unmarked_paragraphs(cues)) is not None:
        return document_from_parts((("paragraph", text, 0) for text in paragraphs), source.name)
    return "\n".join(lines_of(cues)) if cues else source.text


SUBTITLES = FileKind(
    name="subtitles",
    title="a file of subtitles",
    endings=(".srt", ".vtt"),
    signature=lambda source: bool(_BEGINS.match(source.beginning)),
    read=_read,
    is_text=True,
    parts=(
        "Speech in order of its start time, one line per speaker; rolling captions are read once, and speech "
        "without punctuation is split where captions end."
    ),
    left_out="numbers, times, style tags",
)
