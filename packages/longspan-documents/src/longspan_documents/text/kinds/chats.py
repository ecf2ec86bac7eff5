"""Conversations exported as JSON: Telegram, Discord, Slack, Signal, WhisperX."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longspan.characters import mend
from longspan_documents.text.blocks import Block, Document, Traced
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind

LARGEST = 1 << 26
"""Maximum bytes of an export; a larger one is refused, because JSON values take many times their size in memory."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The structure of an export: its messages, with their text and speaker.

    Attributes:
        messages: the key of the list of messages; None if the file is the list.
        speaker: keys of the speaker, best first; "a.b" is the key "b" below "a".
        words: the key of the text.
        skip: a key whose presence means that a record is not a message.
    """

    messages: str | None
    speaker: tuple[str, ...]
    words: str
    skip: str | None = None


LAYOUTS = {
    "Telegram": Layout(messages="messages", speaker=("from",), words="text", skip="actor"),
    "Discord": Layout(messages="messages", speaker=("author.nickname", "author.name"), words="content"),
    "Slack": Layout(
        messages=None,
        speaker=("user_profile.real_name", "user_profile.display_name", "username", "user"),
        words="text",
        skip="subtype",
    ),
    "Signal": Layout(messages=None, speaker=("sender", "author"), words="body"),
    "Signal, in an object": Layout(messages="messages", speaker=("sender", "author"), words="body"),
    "WhisperX": Layout(messages="segments", speaker=("speaker",), words="text"),
}
"""Program → structure; the first match is used."""

_HEAD = re.compile(r'\s*[\[{](?s:.*?)"(?:from|author|user|sender|speaker|messages|segments)"\s*:')
_LINK = re.compile(r"<(?:(?:https?|mailto):[^|<>]*|[@#!][^|<>]*)\|([^<>]*)>|<((?:https?|mailto):[^|<>]*|[@#!][^|<>]*)>")


def _messages(source: Source) -> list[tuple[str, str]] | None:
    """Returns speakers and texts; None if the file has no known structure."""
    if not _HEAD.match(source.beginning) or len(source.data) > LARGEST:
        return None
    try:
        content = json.loads(source.text)
    except (ValueError, RecursionError):
        return None
    for layout in LAYOUTS.values():
        records = content.get(layout.messages) if layout.messages and isinstance(content, Mapping) else content
        if not isinstance(records, list) or not all(isinstance(record, Mapping) for record in records):
            continue
        spoken = list(_spoken(records, layout))
        if spoken:
            return spoken
    return None


def _spoken(records: Sequence[Mapping[str, Any]], layout: Layout) -> Iterator[tuple[str, str]]:
    for record in records:
        speaker = next((name for key in layout.speaker if (name := _below(record, key))), None)
        words = " ".join(_text(record.get(layout.words)).split())
        if speaker and words and (layout.skip is None or layout.skip not in record):
            yield speaker, words


def _below(record: Mapping[str, Any], key: str) -> str | None:
    value: Any = record
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return " ".join(mend(value)[0].split()) or None if isinstance(value, str) else None


def _text(value: Any) -> str:
    """Returns a text, or the texts of Telegram's list of texts and objects."""
    if isinstance(value, list):
        pieces = [one.get("text") if isinstance(one, Mapping) else one for one in value]
        return mend("".join(piece for piece in pieces if isinstance(piece, str)))[0]
    return mend(_LINK.sub(lambda link: link[1] or link[2], value))[0] if isinstance(value, str) else ""


def _read(source: Source) -> Document:
    messages = _messages(source) or []
    blocks: list[Block] = []
    lines: list[str] = []
    place = 0
    for speaker, words in messages:
        body = Traced.whole(words, place + len(speaker) + 2)
        blocks.append(Block(kind="turn", body=body, speaker=speaker))
        lines.append(f"{speaker}: {words}")
        place += len(lines[-1]) + 1
    return Document(text="\n".join(lines), blocks=tuple(blocks), name=source.name)


CHATS = FileKind(
    name="chats",
    title="an exported conversation",
    endings=(),
    signature=lambda source: source.suffix in {"", ".json"} and _messages(source) is not None,
    read=_read,
    is_text=True,
    parts="Exports of Telegram, Discord, Slack, Signal and WhisperX: each message is a turn of its speaker.",
    left_out="times, reactions, joins and departures; other JSON is refused",
)
