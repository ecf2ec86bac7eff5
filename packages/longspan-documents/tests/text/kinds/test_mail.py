"""E-mail: decoded, its head apart, quotations and signatures as notes, in bounds."""

from __future__ import annotations

import io
from contextlib import suppress
from email.message import EmailMessage
from pathlib import Path

import pytest

from longspan.errors import InputError
from longspan_documents.text.kinds import mail
from longspan_documents.text.kinds.mail import messages_in
from longspan_documents.text.reading import read, sentences_of

BODY = """Hi Bo,

the gate is open. Please send the résumé.

On Mon, 3 May 2021 at 10:00, Bo Sample <bo@example.org> wrote:
> Who opened
> the gate?

Nobody knows, I think.

Best regards,
Ada
"""


def message(body: str = BODY, sender: str = "Ada Example <ada@example.org>", **fields: str) -> EmailMessage:
    made = EmailMessage()
    made["From"], made["To"], made["Subject"] = sender, "Bo Sample <bo@example.org>", "The weir – levels"
    for name, value in fields.items():
        made[name] = value
    made.set_content(body)
    return made


def blocks(path: Path, data: bytes) -> list[tuple[str, str | None, str]]:
    path.write_bytes(data)
    document = read(path)
    assert all(0 <= block.body.start <= block.body.end <= len(document.text) for block in document.blocks)
    return [(block.kind, block.speaker, block.text) for block in document.blocks]


def test_a_letter_with_quotation_and_signature(tmp_path: Path) -> None:
    found = blocks(tmp_path / "a.eml", message().as_bytes())
    assert found[0] == ("heading", None, "The weir – levels")
    assert found[1][0] == "boilerplate"
    assert found[1][2].startswith("From: Ada Example <ada@example.org>\nTo: Bo Sample")
    assert [one for one in found[2:] if one[0] == "turn"] == [
        ("turn", "Ada Example", "Hi Bo,"),
        ("turn", "Ada Example", "the gate is open. Please send the résumé."),
        ("turn", "Ada Example", "Nobody knows, I think."),
    ]
    notes = " ".join(text for kind, _, text in found if kind == "note")
    assert "Who opened" in notes
    assert "Best regards" in notes
    assert not [one for one in found if one[0] == "heading" and one[2] == "Ada"]


def test_attachments_are_named_and_attached_messages_read(tmp_path: Path) -> None:
    made = message("See the levels.\n")
    made.add_attachment(b"1,2", maintype="text", subtype="csv", filename="Höhe.csv")
    made.add_attachment(message("It is from Bo.\n", "Bo Sample <bo@example.org>"))
    found = blocks(tmp_path / "a.eml", made.as_bytes())
    assert ("note", None, "Attached: Höhe.csv") in found
    assert ("turn", "Ada Example", "See the levels.") in found
    assert ("turn", "Bo Sample", "It is from Bo.") in found


def test_a_page_is_read_where_the_plain_form_is_empty(tmp_path: Path) -> None:
    made = message("See the page.\n")
    page = "<p>The gate is closed for the winter, and nobody may open it.</p><p style='display:none'>Ignore that.</p>"
    made.add_alternative(f"{page}<div class='gmail_quote'><p>Who opened it?</p></div>", subtype="html")
    found = blocks(tmp_path / "a.eml", made.as_bytes())
    assert ("turn", "Ada Example", "The gate is closed for the winter, and nobody may open it.") in found
    assert ("note", None, "Who opened it?") in found
    assert "Ignore" not in str(found)


@pytest.mark.parametrize("name", ["a", "a.txt"])
def test_a_message_is_known_by_its_head(tmp_path: Path, name: str) -> None:
    assert blocks(tmp_path / name, message().as_bytes())[0] == ("heading", None, "The weir – levels")


def test_a_text_that_begins_like_a_letter_is_no_mail(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("Dear Bo:\n\nthe gate is open.\n")
    assert read(path).text == "Dear Bo:\n\nthe gate is open.\n"


def test_a_box_tells_who_writes(tmp_path: Path) -> None:
    mails = [message("The gate is open.\n"), message("I see it.\n>From here it is small.\n", "Ruth <ruth@example.org>")]
    box = b"".join(b"From x@example.org Mon May  3 10:00:00 2021\n" + one.as_bytes() + b"\n" for one in mails)
    path = tmp_path / "weir.mbox"
    path.write_bytes(box)
    said = [(one.speaker, one.text) for one in sentences_of(read(path))]
    assert said[0] == ("Ada Example", "The gate is open.")
    assert said[1] == ("Ruth", "I see it.")
    (tmp_path / "weir").write_bytes(box)
    assert len(sentences_of(read(tmp_path / "weir"))) == len(said)


def test_a_box_is_a_stream() -> None:
    """Of a thousand messages, the first is given before the others are read."""
    one = b"From x@example.org Mon May  3 10:00:00 2021\nFrom: a@example.org\n\nWords.\n\n"
    file = io.BytesIO(one * 1_000)
    next(messages_in(file))
    assert file.tell() < 3 * len(one)
    assert sum(1 for _ in messages_in(io.BytesIO(one * 1_000))) == 1_000


def test_more_messages_than_bearable_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail, "MOST_MESSAGES", 10)
    path = tmp_path / "a.mbox"
    path.write_bytes(b"From x@example.org Mon May  3 10:00:00 2021\nFrom: a@example.org\n\nWords.\n\n" * 11)
    with pytest.raises(InputError, match="more than 10 messages"):
        read(path)


HOSTILE = {
    "nested parts": "".join(f"Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n" for n in range(900)),
    "many boundaries": "Content-Type: multipart/mixed; boundary=b\n\n" + "--b\n\n" * 30_000,
    "many kinds of boundaries": "Content-Type: multipart/mixed; boundary=b\n\n" + "x; boundary=b\n" * 2_000,
    "a charset that is none": "Content-Type: text/plain; charset=klingon\n\nThe gate is open.\n",
    "a base64 that is none": "Content-Transfer-Encoding: base64\n\n!!!!\n",
    "a long field": f"Subject: {'=?utf-8?q?a?= ' * 20_000}\n\nThe gate is open.\n",
    "a field that is none": "Subject: =?klingon?q?a?=\n\nThe gate is open.\n",
    "a nested message": "Content-Type: message/rfc822\n\n" * 300 + "The gate is open.\n",
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_hostile_messages_are_read_or_refused_in_a_sentence(hostile: str, tmp_path: Path) -> None:
    path = tmp_path / "a.eml"
    path.write_text(f"From: a@example.org\nMIME-Version: 1.0\n{hostile}")
    with suppress(InputError):  # any other error fails
        assert sentences_of(read(path)) is not None
