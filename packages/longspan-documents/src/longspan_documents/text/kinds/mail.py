"""E-mail: single messages (.eml, RFC 5322) and mailboxes (.mbox), which are read as streams."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from email import message_from_bytes
from email.errors import HeaderParseError, MessageError
from email.header import decode_header, make_header
from email.message import Message
from typing import BinaryIO

from longspan.characters import mend
from longspan.errors import InputError
from longspan_documents.text.blocks import Block, Document, Traced, document_from_pieces
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind
from longspan_documents.text.letters import blocks_of_letter, blocks_of_letter_page, sender_of

LARGEST = 1 << 26
"""Maximum bytes of one message, including attachments, and characters read from a mailbox."""
MOST_BOUNDARIES = 20_000
"""Maximum boundary lines of a message; each part is an object, and more are an attack."""
MOST_PARTS, DEEPEST = 1_000, 20
MOST_MESSAGES = 200_000
LONGEST_FIELD = 2_000

_HEAD = re.compile(r"(?:[A-Za-z][\w-]{0,60}:[^\n]*\n(?:[ \t][^\n]*\n)*){2,}")
_POSTED = re.compile(
    r"^(?:MIME-Version|Message-ID|Received|Return-Path|Delivered-To|DKIM-Signature|Content-Transfer-Encoding):",
    re.I | re.M,
)
_BOX = re.compile(r"From \S[^\n]{0,200}\d\d:\d\d[^\n]{0,60}\d{4}[^\n]{0,20}\n(?:[A-Za-z][\w-]{0,60}:|>From )")
_PIECE = re.compile(r"<(/?)(style|script)\b[^<>]*>|<[^<>]*>|[^<]+", re.IGNORECASE)
_FIELDS = ("From", "To", "Cc", "Date")


def _is_message(source: Source) -> bool:
    head = _HEAD.match(source.beginning)
    return head is not None and bool(_POSTED.search(head[0])) and bool(re.search(r"^From:", head[0], re.I | re.M))


def _read_message(source: Source) -> Document:
    written = _Written(source.name)
    written.add(source.data)
    return written.document()


def _read_box(source: Source) -> Document:
    written = _Written(source.name)
    with source.opened() as file:
        for number, data in enumerate(messages_in(file, source.name), 1):
            if number > MOST_MESSAGES:
                raise written.too_large(f"more than {MOST_MESSAGES:,} messages")
            written.add(data)
    return written.document()


def messages_in(file: BinaryIO, name: str = "the box") -> Iterator[bytes]:
    """Yields the messages of a mailbox; each begins with a line "From …" at the start or after a blank line.

    Raises:
        InputError: one is longer than `LARGEST`.
    """
    lines: list[bytes] = []
    size, blank = 0, True
    while line := file.readline(LARGEST + 1):
        if blank and line.startswith(b"From "):
            if lines:
                yield b"".join(lines)
            lines, size = [], 0
        else:
            size += len(line)
            if size > LARGEST:
                raise InputError(f"{name} holds a message of more than {LARGEST >> 20} MiB; take it out, or cut it")
            lines.append(line[1:] if re.match(rb">+From ", line) else line)
        blank = not line.strip()
    if lines:
        yield b"".join(lines)


class _Written:
    """The document made of consecutive messages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pieces: list[tuple[str, list[Block]]] = []
        self.length = self.parts = 0

    def document(self) -> Document:
        """Returns the document; its title is the first subject."""
        return document_from_pieces(self.pieces, self.name)

    def too_large(self, what: str) -> InputError:
        """Returns the error for malicious content, or for more than can be read at once."""
        return InputError(f"{self.name} holds {what}, too much for one document; save the mails that matter")

    def add(self, data: bytes) -> None:
        """Adds a message; raises `InputError` if it is malicious."""
        if len(data) > LARGEST:
            raise self.too_large(f"a message of more than {LARGEST >> 20} MiB")
        if data.count(b"\n--") > MOST_BOUNDARIES or data.lower().count(b"boundary") > MOST_PARTS:
            raise self.too_large(f"a message of more than {MOST_PARTS:,} parts")
        try:
            self._message(message_from_bytes(data), 0)
        except (RecursionError, MessageError, LookupError, ValueError, AttributeError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.name} is damaged ({type(error).__name__}); save the mail again") from None

    def _message(self, message: Message, depth: int) -> None:
        """Adds its subject, its fields, its body, the names of attachments, and attached messages."""
        self.parts = 0
        sender = sender_of(_field(message, "From"))
        if subject := _field(message, "Subject"):
            self._put([Block(kind="heading", body=Traced.whole(subject), level=1)], subject)
        fields = "\n".join(f"{name}: {value}" for name in _FIELDS if (value := _field(message, name)))
        if fields:
            self._put([Block(kind="boilerplate", body=Traced.whole(fields))], fields)
        bodies, attached, inner = self._sorted(message)
        for text, is_page in bodies:
            if is_page:
                text, blocks = blocks_of_letter_page(text, sender)
            else:
                blocks = blocks_of_letter(text, sender)
            self._put(blocks, text)
        if attached:
            names = f"Attached: {', '.join(attached)}"
            self._put([Block(kind="note", body=Traced.whole(names))], names)
        for one in inner if depth < DEEPEST else ():
            self._message(one, depth + 1)

    def _put(self, blocks: list[Block], text: str) -> None:
        self.pieces.append((text, blocks))
        self.length += len(text)
        if self.length > LARGEST:
            raise self.too_large(f"more than {LARGEST >> 20} million characters")

    def _sorted(self, message: Message) -> tuple[list[tuple[str, bool]], list[str], list[Message]]:
        """Returns the texts of the body, each with whether it is a page; the names of attachments; attached messages.

        Of alternative forms, the plain text is used unless it lacks half of the words.
        """
        self.parts += 1
        if self.parts > MOST_PARTS:
            raise self.too_large(f"a message of more than {MOST_PARTS:,} parts")
        kind, payload = message.get_content_type(), message.get_payload()
        name = _plain(message.get_filename())
        if kind == "message/rfc822" and isinstance(payload, list):
            return [], [], [one for one in payload if isinstance(one, Message)]
        if isinstance(payload, list):
            sorted_parts = [self._sorted(one) for one in payload if isinstance(one, Message)]
            bodies = [body for part in sorted_parts for body in part[0]]
            if kind == "multipart/alternative":
                bodies = _best(bodies)
            attached = [leaf for part in sorted_parts for leaf in part[1]]
            return bodies, attached, [leaf for part in sorted_parts for leaf in part[2]]
        if name or message.get_content_disposition() == "attachment":
            inline = kind.startswith("image/") and message.get("Content-ID")
            return [], ([] if inline else [name or f"a part of type {kind}"]), []
        if kind in {"text/plain", "text/html"}:
            text = _text(message)
            return ([(text, kind == "text/html")] if text.strip() else []), [], []
        return [], [], []


def _best(bodies: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    plain, pages = [body for body in bodies if not body[1]], [body for body in bodies if body[1]]
    words = sum(len(text.split()) for text, _ in plain)
    shown = sum(_words_shown(text) for text, _ in pages)
    return plain if plain and 2 * words >= shown else pages or plain


def _words_shown(page: str) -> int:
    """Counts the words of a page outside of tags, styles and scripts, in one pass."""
    words, inside = 0, None
    for match in _PIECE.finditer(page):
        name = (match[2] or "").lower()
        if inside is not None:
            inside = None if match[1] and name == inside else inside
        elif name:
            inside = None if match[1] else name
        elif not match[0].startswith("<"):
            words += len(match[0].split())
    return words


def _text(part: Message) -> str:
    """Returns the characters of a part, in its own encoding; invalid bytes are replaced."""
    data = part.get_payload(decode=True)
    if not isinstance(data, bytes):
        return ""
    charset = part.get_content_charset() or "utf-8"
    try:
        text = data.decode(charset, "replace")
    except (LookupError, ValueError):
        text = data.decode("utf-8", "replace")
    return mend(text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", ""))[0]


def _field(message: Message, name: str) -> str:
    return _plain(message.get(name))


def _plain(value: object) -> str:
    """Returns a header field, decoded (RFC 2047), on one line."""
    text = str(value or "")[:LONGEST_FIELD]
    with suppress(HeaderParseError, LookupError, ValueError):
        text = str(make_header(decode_header(text)))
    return " ".join(mend(text)[0].replace("\0", "").split())


_PARTS = (
    "The subject is the heading, each paragraph a turn of its sender. The plain form is read, or the page where "
    "that holds more. Quotations and signatures are notes; attachments are named, messages that are attached are read."
)

MAIL = FileKind(
    name="mail",
    title="an e-mail",
    endings=(".eml",),
    signature=_is_message,
    read=_read_message,
    parts=(
        "The subject is the heading, each paragraph a turn of its sender. The plain text part is read, or the "
        "HTML part if it contains more. Quotations and signatures are notes; attachments are named, attached "
        "messages are read."
    ),
    left_out="other header fields, contents of attachments; summaries omit quotations",
    library="the standard library; lxml for pages",
)

MAILBOX = FileKind(
    name="mailbox",
    title="a box of e-mails",
    endings=(".mbox", ".mbx"),
    signature=lambda source: bool(_BOX.match(source.beginning)),
    read=_read_box,
    parts="Messages in order, each like `.eml`, streamed, so that attachments of any size are possible.",
    left_out="as for `.eml`; at most 64 MiB of text and 200,000 messages",
)
