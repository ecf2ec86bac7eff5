"""Threads of mails in a text: who wrote what, by the fields above each mail."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from longspan.data.text.blocks import Block
from longspan.data.text.letters import is_quoted, signed
from longspan.data.text.tidying.structure import with_items

FEWEST = 3
"""Fields above a mail, one of which says who wrote it."""

_FROM = "From|Von|De|Da|Van|Från|Fra"
_FIELD = (
    rf"(?:{_FROM}|To|Cc|Bcc|Date|Sent|Subject|Reply-To|An|Datum|Gesendet|Betreff|À|Envoyé|Objet|Para|Fecha|Enviado|Asunto"
    r"|Data|Inviato|Oggetto|Aan|Verzonden|Onderwerp|Till|Skickat|Ämne)"
)
_HEAD = re.compile(rf"\s*(?:[*>]*{_FIELD}\s?:[^\n]*(?:\n[ \t]+[^\n]*)*(?:\n|$)){{{FEWEST},12}}")
_SENDER = re.compile(rf"^[*>]*(?:{_FROM})\s?:\**[ \t]*([^\n]+)", re.MULTILINE)


def with_letters(blocks: Sequence[Block]) -> list[Block]:
    """The fields above mails as boilerplate; of several mails, the paragraphs as turns of their senders."""
    heads = {index: sender for index, block in enumerate(blocks) if (sender := _sender_above(block)) is not None}
    if len(heads) < 2 and not (heads and min(heads) < 2):
        return list(blocks)
    result: list[Block] = []
    letter: list[Block] = []
    sender: str | None = None
    for index, block in enumerate(blocks):
        if index not in heads:
            letter.append(replace(block, kind="note") if block.kind == "paragraph" and is_quoted(block.text) else block)
            continue
        result += _letter(letter, sender)
        head = _HEAD.match(block.text)
        assert head is not None
        result.append(replace(block, kind="boilerplate", level=0, body=block.body.part(0, head.end())))
        rest = block.body.part(head.end(), len(block.text))
        letter = [replace(block, body=rest)] if rest.text.strip() else []
        sender = heads[index] if len(heads) > 1 else None
    return [*result, *_letter(letter, sender)]


def _letter(blocks: Sequence[Block], sender: str | None) -> list[Block]:
    return signed(with_items(blocks), sender) if sender else list(blocks)


def _sender_above(block: Block) -> str | None:
    """Who wrote the mail below a block of fields; None for any other block."""
    head = _HEAD.match(block.text) if block.kind == "paragraph" else None
    named = _SENDER.search(head[0]) if head else None
    if named is None:
        return None
    from email.utils import parseaddr  # late: most documents are no mails, and it brings much along

    name, address = parseaddr(named[1].strip(" *"))
    return " ".join((name or address or named[1]).split()).strip("*") or None
