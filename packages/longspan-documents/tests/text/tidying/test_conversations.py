"""Conversations as programs write them: who said it is known, dates and times are no words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longspan_documents.text.reading import document_of, read, sentences_of
from longspan_documents.text.tidying.conversations import FORMS, form_of

TWO = [("Ada Example", "Good."), ("Bo Sample", "Yes.")]
"""What two people say in most of the samples."""


def said(text: str) -> list[tuple[str | None, str]]:
    return [(one.speaker, one.text) for one in sentences_of(document_of(text), "en")]


SAMPLES = {
    "WhatsApp, Android": "03/05/2021, 10:0{} - Ada Example: Good.\n03/05/2021, 10:0{} - Bo Sample: Yes.\n",
    "WhatsApp, Android, 12 hours": "5/3/21, 10:0{}\u202fAM - Ada Example: Good.\n5/3/21, 1:0{} PM - Bo Sample: Yes.\n",
    "WhatsApp, German": "03.05.21, 10:0{} - Ada Example: Good.\n03.05.21, 10:0{} - Bo Sample: Yes.\n",
    "WhatsApp, iOS": "[03/05/21, 10:0{}:12] Ada Example: Good.\n\u200e[03/05/21, 10:0{}:12] Bo Sample: Yes.\n",
    "WhatsApp, iOS, 12 hours": "[5/3/21, 10:0{}:12 AM] Ada Example: Good.\n[5/3/21, 1:0{}:12 PM] Bo Sample: Yes.\n",
    "WhatsApp, older": "03.05.21 10:0{}:12: Ada Example: Good.\n03.05.21 10:0{}:12: Bo Sample: Yes.\n",
    "WhatsApp, ISO dates": "2021-05-03, 10:0{} - Ada Example: Good.\n2021-05-03, 10:0{} - Bo Sample: Yes.\n",
    "Zoom, transcript": "[Ada Example] 10:0{}:05\nGood.\n\n[Bo Sample] 10:0{}:05\nYes.\n\n",
    "Zoom, chat": "10:0{}:05 From Ada Example to Everyone:\n\tGood.\n10:0{}:05 From Bo Sample to Ada(DM):\n\tYes.\n",
    "Zoom, older chat": "10:0{}:05\t From Ada Example : Good.\n10:0{}:05\t From Bo Sample : Yes.\n",
    "Teams": "Ada Example   0:0{}\nGood.\nBo Sample   0:0{}\nYes.\n",
    "Teams, older": "0:0:0{}.0 --> 0:0:3.450\nAda Example\nGood.\n\n0:0:3.45{} --> 0:0:5.0\nBo Sample\nYes.\n\n",
    "Teams, chat": "[03/05/2021 10:0{}] Ada Example\nGood.\n[03/05/2021 10:0{}] Bo Sample\nYes.\n",
    "Slack": "Ada Example  [10:0{} AM]\nGood.\nBo Sample  [10:0{} AM]\nYes.\n",
    "Slack, names alone": "Ada Example\n  10:0{} AM\nGood.\nBo Sample\n  10:0{} AM\nYes.\n",
    "Discord": "Ada Example — 03/05/2021 10:0{} AM\nGood.\nBo Sample — Today at 10:0{} AM\nYes.\n",
    "DiscordChatExporter": "[03-May-21 10:0{} AM] Ada Example#1234\nGood.\n\n[03-May-21 10:0{} AM] Bo Sample\nYes.\n\n",
    "Telegram": "Ada Example, [03.05.21 10:0{}]\nGood.\n\nBo Sample, [03.05.21 10:0{}]\nYes.\n\n",
    "pyannote": "[00:0{}.000 --> 00:09.000] [Ada Example] Good.\n[00:0{}.000 --> 00:09.000] [Bo Sample] Yes.\n",
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_turns_have_their_speakers_and_no_times(sample: str) -> None:
    text = "".join(sample.format(number, number + 1) for number in range(0, 6, 2))
    assert said(text) == TWO * 3


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.program)
def test_every_example_is_of_its_form(form: object) -> None:
    found = form_of("\n".join([form.example] * 3))  # type: ignore[attr-defined]
    assert found is form


def test_labels_of_whisperx() -> None:
    text = "[SPEAKER_00]: Good.\n[SPEAKER_01]: Yes.\n[SPEAKER_00]: Why?\n"
    assert said(text) == [("SPEAKER_00", "Good."), ("SPEAKER_01", "Yes."), ("SPEAKER_00", "Why?")]


def test_times_of_whisper_are_no_words() -> None:
    text = "".join(f"[00:0{n}.000 --> 00:0{n + 1}.000]  It is sentence {n}.\n" for n in range(5))
    assert said(text) == [(None, f"It is sentence {n}.") for n in range(5)]


def test_a_deposition() -> None:
    text = (
        "1  BY MR. HOLM:\n2  Q.   Did you open the gate?\n3  A.   I did, at noon, as\n4  I do on every day.\n"
        "5  Q.   Who saw it?\n6  A.   Nobody.\n7  MS. LIND: Objection.\n8  Q.   Nobody at all?\n9  A.   Nobody.\n"
    )
    found = said(text)
    assert {speaker for speaker, _ in found} == {"Q", "A", "MS. LIND"}
    assert found[0] == ("Q", "Did you open the gate?")
    assert ("MS. LIND", "Objection.") in found


def test_people_who_speak_once_and_what_they_do_in_irc() -> None:
    text = (
        "10:00 -!- dora [~d@example.org] has joined #weir\n10:00 <ada> The gate is open.\n10:01 <@bo> Who opened it?\n"
        "10:02 <ada> I did.\n10:03 * carl waves to all.\n10:04 <dora> Close it at night, please.\n10:05 <ada> I will.\n"
    )
    assert said(text) == [
        ("ada", "The gate is open."),
        ("bo", "Who opened it?"),
        ("ada", "I did."),
        ("carl", "waves to all."),
        ("dora", "Close it at night, please."),
        ("ada", "I will."),
    ]


def test_tabs_of_weechat_make_no_log() -> None:
    text = "".join(f"2021-05-03 10:0{n}:05\t{who}\tIt is open.\n" for n, who in enumerate(["ada", "bo", "ada", "bo"]))
    assert said(text + "2021-05-03 10:05:05\t-->\tdora joined\n") == [
        (who, "It is open.") for who in ("ada", "bo", "ada", "bo")
    ]


def test_messages_of_many_lines_and_notices() -> None:
    start = "03/05/2021, 10:0"
    text = (
        f"{start}0 - Messages and calls are end-to-end encrypted.\n{start}1 - Ada Example: Bring this:\n\n"
        "- a lamp\n- oil\n"
        f"{start}2 - Bo Sample: <Media omitted>\n{start}3 - Bo Sample: I will. <This message was edited>\n"
        f"{start}4 - Carl joined using this group's invite link\n{start}5 - Ada Example: Thank you.\n"
    )
    assert said(text) == [
        ("Ada Example", "Bring this:"),
        ("Ada Example", "- a lamp"),
        ("Ada Example", "- oil"),
        ("Bo Sample", "I will."),
        ("Ada Example", "Thank you."),
    ]


def test_times_between_the_messages_of_one_person() -> None:
    text = "Ada Example  [10:00 AM]\nGood.\n10:01 AM\nMore.\nBo Sample  [10:05 AM]\nYes.\n"
    text += "Ada Example  [10:06 AM]\nFine.\n"
    assert said(text) == [
        ("Ada Example", "Good."),
        ("Ada Example", "More."),
        ("Bo Sample", "Yes."),
        ("Ada Example", "Fine."),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "The weir was built in 1910.\nIt was mended in 1950.\nNobody knows who paid.\n" * 3,
        "* one item of a list\n* another item of it\n* and the last one\n",
        "Gate song 3:45\nMill song 4:10\nRiver song 2:59\nStone song 5:01\n",
        "A. The first choice\nB. The second choice\nC. The third choice\nA. Again the first\n",
        "2021-05-03 10:00:05 INFO gate opened\n2021-05-03 10:01:05 INFO gate closed\n2021-05-03 10:02:05 INFO done\n",
        "10:00 Opening\n10:30 The keeper speaks\n11:00 Coffee\n11:30 The mayor speaks\n",
    ],
)
def test_other_texts_are_of_no_form(text: str) -> None:
    assert form_of(text) is None


EXPORTS = {
    "Telegram": {
        "name": "Weir",
        "messages": [
            {"type": "service", "actor": "Ada", "action": "create_group", "text": ""},
            {"type": "message", "from": "Ada Example", "text": "Good."},
            {"type": "message", "from": "Bo Sample", "text": ["Y", {"type": "bold", "text": "es"}, "."]},
        ],
    },
    "Discord": {
        "guild": {"name": "Weir"},
        "messages": [
            {"author": {"name": "ada", "nickname": "Ada Example"}, "content": "Good."},
            {"author": {"name": "Bo Sample", "nickname": None}, "content": "Yes."},
        ],
    },
    "Slack": [
        {"type": "message", "subtype": "channel_join", "user": "U1", "text": "<@U1> has joined the channel"},
        {"type": "message", "user": "U1", "text": "Good.", "user_profile": {"real_name": "Ada Example"}},
        {"type": "message", "user": "U2", "text": "Yes.", "user_profile": {"real_name": "Bo Sample"}},
    ],
    "Signal": [{"sender": "Ada Example", "body": "Good."}, {"sender": "Bo Sample", "body": "Yes."}],
    "WhisperX": {
        "segments": [
            {"start": 0.0, "end": 1.0, "text": " Good.", "speaker": "Ada Example"},
            {"start": 1.0, "end": 2.0, "text": " Yes.", "speaker": "Bo Sample"},
        ]
    },
}


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)
def test_exports_in_json(export: object, tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    path.write_text(json.dumps(export, indent=1), encoding="utf-8")
    assert [(one.speaker, one.text) for one in sentences_of(read(path))] == TWO
    assert read(path, raw=True).text == path.read_text(encoding="utf-8")
