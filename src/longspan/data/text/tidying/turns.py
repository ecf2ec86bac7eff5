"""Turns of speakers: `Name: words` at the beginning of lines, in documents that are dialogues."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from longspan.data.text.blocks import Block

SHARE = 0.4
"""Least share of a dialogue's lines that belong to turns."""
_TURN = re.compile(r"^[^\S\n]*(?P<name>[^\W\d_][^:\n]{0,48}?)[^\S\n]*:[^\S\n]+(?=\S)", re.MULTILINE)


def with_turns(blocks: Sequence[Block]) -> list[Block]:
    """The turns of a dialogue as blocks of their own, the speaker's name taken out of the words."""
    counts = Counter(found["name"] for block in blocks for found in _TURN.finditer(block.text))
    speakers = {name for name, count in counts.items() if count > 1}
    lines = sum(block.text.count("\n") + 1 for block in blocks)
    if len(speakers) < 2 or sum(counts[name] for name in speakers) < max(4, SHARE * lines):
        return list(blocks)
    return [piece for block in blocks for piece in _turns(block)]


def _turns(block: Block) -> Iterator[Block]:
    if block.kind != "paragraph":
        yield block
        return
    found = list(_TURN.finditer(block.text))
    starts = [one.start() for one in found]
    if not found or starts[0] > 0:
        yield Block(kind="paragraph", body=block.body.part(0, starts[0] if found else len(block.text)))
    for one, end in zip(found, [*starts[1:], len(block.text)], strict=False):
        yield Block(kind="turn", body=block.body.part(one.end(), end), speaker=one["name"])
