"""Subtitles as documents: what is said, by the time at which it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.data.text.plain_text import moment_of, transcript_of
from longspan.data.text.reading import read
from longspan.errors import InputError

VTT = """WEBVTT

NOTE made by hand

2
00:00:20.000 --> 00:00:40.000 align:start
<v Ann Lee>It is <b>late</b>,
I know.

1
00:07.500 --> 00:00:41.000
- Who is there?
- Nobody.
"""


def test_what_is_said_is_read(tmp_path: Path) -> None:
    file = tmp_path / "film.vtt"
    file.write_bytes(VTT.replace("\n", "\r\n").encode())
    assert read(file).text == "- Who is there?\n- Nobody.\nAnn Lee: It is late, I know."
    assert "-->" in read(file, raw=True).text
    assert transcript_of("No times here.") is None
    (tmp_path / "words.srt").write_text("No times here.", encoding="utf-8")
    assert read(tmp_path / "words.srt").text == "No times here."
    (tmp_path / "none.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\n\n", encoding="utf-8")
    with pytest.raises(InputError, match="holds no text"):
        read(tmp_path / "none.srt")


def test_moments() -> None:
    assert [moment_of(clock) for clock in ("01:00:02,500", "1:02.25", "soon")] == [3602.5, 62.25, None]
