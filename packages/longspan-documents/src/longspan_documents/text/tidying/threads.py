"""Mail threads in a text: the author of each mail, by its header fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from longspan_documents.text.blocks import Block
from longspan_documents.text.letters import FROM, HEAD, is_quoted, says_whose, sender_of, signed
from longspan_documents.text.tidying.structure import with_items

_SENDER = re.compile(rf"^[*>]*(?:{FROM})\s?:\**[ \t]*([^\n]+)", re.MULTILINE)


def with_letters(blocks: Sequence[Block]) -> list[Block]:
    """Marks header fields as boilerplate; with several mails, makes paragraphs turns of their senders."""
    heads = {index: sender for index, block in enumerate(blocks) if (sender := _sender_above(block)) is not None}
    if len(heads) < 2 and not (heads and min(heads) < 2):
        return _without_quotations(blocks)
    result: list[Block] = []
    letter: list[Block] = []
    sender: str | None = None
    for index, block in enumerate(blocks):
        if index not in heads:
            letter.append(replace(block, kind="note") if block.kind == "paragraph" and is_quoted(block.text) else block)
            continue
        result += _letter(letter, sender)
        head = HEAD.match(block.text)
        assert head is not None
        result.append(replace(block, kind="boilerplate", level=0, body=block.body.part(0, head.end())))
        rest = block.body.part(head.end(), len(block.text))
        letter = [replace(block, body=rest)] if rest.text.strip() else []
        sender = heads[index] if len(heads) > 1 else None
    return [*result, *_letter(letter, sender)]


def _without_quotations(blocks: Sequence[Block]) -> list[Block]:
    """Marks quotations as notes in a text that is a single answer, if a line introduces them."""
    if not any(block.kind == "paragraph" and says_whose(block.text) for block in blocks):
        return list(blocks)
    quoted = [block.kind == "paragraph" and is_quoted(block.text) for block in blocks]
    if not any(block.text.lstrip().startswith(">") for block, one in zip(blocks, quoted, strict=True) if one):
        return list(blocks)
    return [replace(block, kind="note") if one else block for block, one in zip(blocks, quoted, strict=True)]


def _letter(blocks: Sequence[Block], sender: str | None) -> list[Block]:
    return signed(with_items(blocks), sender) if sender else list(blocks)


def _sender_above(block: Block) -> str | None:
    """Returns the sender of the mail below a block of fields; None for any other block."""
    head = HEAD.match(block.text) if block.kind == "paragraph" else None
    named = _SENDER.search(head[0]) if head else None
    if named is None:
        return None
    return (sender_of(named[1].strip(" *")) or "").strip("*") or None
