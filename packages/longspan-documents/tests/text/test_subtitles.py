"""Subtitles as documents: what is said, by the time at which it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.errors import InputError
from longspan_documents.text.captions import cues_in, lines_of, moment_of
from longspan_documents.text.reading import read, sentences_of

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
    assert cues_in("No times here.") == []
    (tmp_path / "words.srt").write_text("No times here.", encoding="utf-8")
    assert read(tmp_path / "words.srt").text == "No times here."
    (tmp_path / "none.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\n\n", encoding="utf-8")
    with pytest.raises(InputError, match="holds no text"):
        read(tmp_path / "none.srt")


def test_moments() -> None:
    assert [moment_of(clock) for clock in ("01:00:02,500", "1:02.25", "soon")] == [3602.5, 62.25, None]


ROLLING = """WEBVTT
Kind: captions

00:00:00.000 --> 00:00:02.000 align:start
{}
did<00:00:00.100><c> you</c> read the

00:00:02.000 --> 00:00:02.010 align:start
did you read the
{}

00:00:02.010 --> 00:00:04.010 align:start
did you read the
gauge<00:00:02.110><c> of</c> the &amp; mill

00:00:04.010 --> 00:00:04.020
gauge of the &amp; mill
{}

00:00:04.020 --> 00:00:06.000
gauge of the &amp; mill
this morning
""".replace("{}", " ")


def test_captions_that_roll_are_read_once() -> None:
    assert lines_of(cues_in(ROLLING)) == ["did you read the", "gauge of the & mill", "this morning"]


def test_what_is_said_twice_is_read_twice() -> None:
    said = "".join(f"00:00:0{n}.000 --> 00:00:0{n}.900\n{words}\n\n" for n, words in enumerate(["No!", "No!", "Why?"]))
    assert lines_of(cues_in(said)) == ["No!", "No!", "Why?"]


def test_captions_of_two_rows_that_roll() -> None:
    """As broadcasts write them in SubRip: each cue shows the row before."""
    rows = ["one", "two", "three", "four", "five"]
    cues = [f"{n}\n00:00:0{n},000 --> 00:00:0{n + 1},000\n{rows[n - 1]}\n{rows[n]}\n" for n in range(1, 5)]
    assert lines_of(cues_in("\n".join(cues))) == ["one two", "three", "four", "five"]


def test_speech_without_punctuation_is_cut_where_cues_end(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(120)]
    cues = [(start, " ".join(words[start : start + 6])) for start in range(0, 120, 6)]
    text = "".join(f"00:{n // 6:02}:00.000 --> 00:{n // 6:02}:59.000\n{said}\n\n" for n, said in cues)
    (tmp_path / "talk.vtt").write_text(f"WEBVTT\n\n{text}", encoding="utf-8")
    sentences = [one.text for one in sentences_of(read(tmp_path / "talk.vtt"))]
    assert sentences == [" ".join(words[start : start + 12]) for start in range(0, 120, 12)]


def test_a_number_behind_a_line_of_spaces_is_no_speech() -> None:
    text = "1\n00:00:01,000 --> 00:00:02,000\nYes.\n \n2\n00:00:03,000 --> 00:00:04,000\n{\\an8}<i>No.</i>\n"
    assert lines_of(cues_in(text)) == ["Yes.", "No."]


def test_subtitles_are_known_by_their_contents(tmp_path: Path) -> None:
    (tmp_path / "film").write_text(VTT, encoding="utf-8")
    assert "-->" not in read(tmp_path / "film").text
