"""Dialogues of every format: what its turns are, and what untidy files give."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from longspan.data.turns import Dialogue, Turn
from longspan.errors import InputError
from longspan_papers.dialogue.formats import dialogue_of, read_text
from longspan_papers.dialogue.reading import read_dialogues


def lines(dialogue: Dialogue) -> list[str]:
    return [turn.line for turn in dialogue.turns]


def one(path: Path, **options: Any) -> Dialogue:
    (dialogue,) = read_dialogues(path, **options)
    return dialogue


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_qmsum_and_crd3_records() -> None:
    said = ["OK , we 're on {disfmarker} .", " {gap} ", "", "Yes .", "New ."]
    record = {
        "meeting_id": "m",
        "meeting_transcripts": [{"speaker": "AB"[i % 2], "content": text} for i, text in enumerate(said)],
        "topic_list": [{"relevant_text_span": [["0", "1"]]}, {"relevant_text_span": [["2", "3"], ["4", "4"]]}],
    }
    dialogue = dialogue_of(record, "x")
    assert (dialogue.id, lines(dialogue)) == ("m", ["A: OK, we're on.", "B: Yes.", "A: New."])
    # A topic that begins in a turn without words begins with the next one that has some.
    assert dialogue.topics == (1, 2)
    assert dialogue.speakers == ("A", "B")
    episode = {"episode": "E1", "TURNS": [{"NAMES": ["SAM", "LIAM"], "UTTERANCES": ["Hello,", "you."]}]}
    assert lines(dialogue_of(episode, "x")) == ["SAM and LIAM: Hello, you."]


def test_mediasum_as_it_is_published(tmp_path: Path) -> None:
    talks = [
        {
            "id": f"NPR-{number}",
            "summary": "S.",
            "utt": ["Hi\r\n all.", "  ", f"Bye {number}."],
            "speaker": ["A, host", "B", "B"],
        }
        for number in range(3)
    ]
    (tmp_path / "news_dialogue.json").write_text(json.dumps(talks, indent=4), encoding="utf-8")
    splits = {"train": ["NPR-0", "NPR-2"], "val": ["NPR-1"], "test": []}
    (tmp_path / "train_val_test_split.json").write_text(json.dumps(splits), encoding="utf-8")
    assert [talk.id for talk in read_dialogues(tmp_path, "train")] == ["NPR-0", "NPR-2"]
    (found,) = read_dialogues(tmp_path, "validation")
    assert lines(found) == ["A, host: Hi all.", "B: Bye 1."]
    assert [talk.id for talk in read_dialogues(tmp_path / "news_dialogue.json", limit=2)] == ["NPR-0", "NPR-1"]
    with pytest.raises(InputError, match="split='other' is not in"):
        list(read_dialogues(tmp_path / "train_val_test_split.json", "other"))


def test_summscreen_and_our_own_records(tmp_path: Path) -> None:
    show = {"Transcript": ["[Scene One]", "Ann: Hi.", "Bob: Hello.", "(laughs)"], "Recap": ["They met."]}
    assert lines(dialogue_of(show, "x")) == ["[Scene One]", "Ann: Hi.", "Bob: Hello. (laughs)"]
    talk = {"turns": [{"speaker": "Dr: Smith:", "text": "Yes."}, {"speaker": None, "text": "Door shuts."}]}
    assert lines(dialogue_of(talk, "x")) == ["Dr: Smith:: Yes.", "Door shuts."]
    file = tmp_path / "talks.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps({"id": 7, "dialogue": "Ann: Hi.\r\nBob: Yes."}).encode()))
    assert (one(file).id, lines(one(file))) == ("7", ["Ann: Hi.", "Bob: Yes."])


def test_plain_transcripts(tmp_path: Path) -> None:
    text = (
        "Ann: Hello you all there.\r\n\r\nR2:D2: Beep beep to you too.\r\nAnn:\r\nR2:D2: Are you still there?\r\n" * 2
    )
    found = one(written(tmp_path / "talk.txt", text))
    assert found.speakers == ("Ann", "R2:D2")
    assert lines(found)[:2] == ["Ann: Hello you all there.", "R2:D2: Beep beep to you too."]
    assert all(turn.text for turn in found.turns)
    document = text.replace("\r\n", "\n")
    assert document[found.turns[1].start : found.turns[1].end] == "Beep beep to you too."


def test_one_speaker_and_none() -> None:
    alone = read_text("Ann: I begin.\nand go on.\nAnn: I begin again.", "talk")
    assert lines(alone) == ["Ann: I begin. and go on.", "Ann: I begin again."]
    nobody = read_text("Who is there?\n- Nobody.\n\n...\nReally now?", "talk")
    assert lines(nobody) == ["Who is there?", "Nobody.", "Really now?"]
    assert nobody.speakers == ()


SRT = "1\r\n00:00:05,000 --> 00:00:04,000\r\n- Who?\r\n- <i>Me.</i>\r\n\r\n2\r\n00:00:01,500 --> 00:00:09,000\r\n"
SRT += "ANN: It is\r\nlate.\r\n"
VTT = "WEBVTT\n\nNOTE x\n\n00:01.500 --> 00:02.000 align:start\n<v Ann Lee>Hi <b>you</b>.\n"
VTT += "00:01.000 --> 00:09.000\nFirst."
OPUS = (
    '<?xml version="1.0" encoding="utf-8"?><document id="1"><s id="1"><time id="T1S" value="00:00:05,000"/><w>-</w>'
    '<w>Late</w><w>,</w><w>is</w>it<w>?</w></s><s id="2">Same time.<time id="T1E" value="00:00:06,000"/></s>'
    '<s id="3"><time id="T2S" value="00:00:02,000"/>Earlier.</s></document>'
)


def test_subtitles_are_sorted_by_time(tmp_path: Path) -> None:
    srt = one(written(tmp_path / "film.srt", SRT))
    assert [(turn.line, turn.seconds) for turn in srt.turns] == [
        ("ANN: It is late.", (1.5, 9.0)),
        ("Who?", (5.0, 5.0)),
        ("Me.", (5.0, 5.0)),
    ]
    assert lines(one(written(tmp_path / "film.vtt", VTT))) == ["First.", "Ann Lee: Hi you."]
    opus = one(written(tmp_path / "film.xml", OPUS))
    assert lines(opus) == ["Earlier.", "Late, is it?", "Same time."]
    assert {dialogue.id for dialogue in read_dialogues(tmp_path)} == {"film"}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", '{"utt": ["a"], "speaker": []}', "have 1 and 0 entries"),
        ("a.jsonl", '{"turns": [{"speaker": "A"}]}', "a turn has no field 'text'"),
        ("a.jsonl", '{"turns": [["A", "b"]]}', "a turn is a list instead of an object"),
        ("a.jsonl", '{"speaker": "A", "text": "b"}', "a single turn; give a record for each dialogue"),
        ("a.csv", "speaker,text\nA,b\n", "a single turn; give a record for each dialogue"),
        ("a.jsonl", '{"turns": ["A: b"]}', "holds a list with a str in it instead of a list of objects"),
        ("a.jsonl", '{"turns": [{"speaker": "A", "text": 5}]}', "text of a turn is an int; give a text"),
        ("a.jsonl", '{"number": 3}', "no known layout of dialogues has the fields number"),
        ("a.json", '[{"dialogue": "A: b."}, 3]', "element 2: an int instead of a JSON object"),
        ("a.json", '[{"dialogue": "A: b."}, {"x', "element 2: not JSON, or cut off"),
        ("a.xml", "<s>", "is not XML"),
        ("a.srt", "no times", "holds no subtitles"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        list(read_dialogues(written(tmp_path / name, text)))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_corrupt_dialogues_can_be_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = written(tmp_path / "a.jsonl", '{"number": 3}\n{"dialogue": "A: b."}\n{"dialogue": "..."}')
    assert lines(one(file, on_error="skip")) == ["A: b."]
    assert "1 corrupt record was skipped" in caplog.text
    assert "1 dialogue without words is left out" in caplog.text


def test_a_long_array_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talks = [{"id": f"é{number}", "dialogue": f"A: {'b ' * number}c."} for number in range(40)]
    text = json.dumps(talks, indent=1, ensure_ascii=False)
    for piece in (1, 7, 64):
        monkeypatch.setattr("longspan.data.jsonl.PIECE", piece)
        assert [talk.id for talk in read_dialogues(written(tmp_path / "a.json", text))] == [
            talk["id"] for talk in talks
        ]


def test_topics_and_texts_are_checked() -> None:
    turns = (Turn("A", "b"), Turn("B", "c"))
    assert Dialogue(id="x", turns=turns, topics=(1, 1)).topics == (1,)
    with pytest.raises(InputError, match="topics of dialogue 'x' begin with turns 2 to 2"):
        Dialogue(id="x", turns=turns, topics=(2,))
    with pytest.raises(InputError, match="half a character"):
        Turn("A", "\ud83d")


@pytest.mark.skipif("not __import__('os').environ.get('LONGSPAN_DATA')")
def test_the_data_sets_here() -> None:
    meeting = next(read_dialogues("qmsum", "validation"))
    assert meeting.topics
    assert len(meeting.speakers) > 2
    assert not any("{" in turn.text for turn in meeting.turns)
    episode = next(read_dialogues("crd3", "validation"))
    assert len(episode.turns) > 1000
