"""Dialogues in plain documents: transcripts of "Speaker: text", interviews, chats, and texts that name nobody."""

from __future__ import annotations

import re
from collections.abc import Iterable

from longspan.data.dialogue.turns import Dialogue, Turn
from longspan.data.text.blocks import Document
from longspan.data.text.reading import document_of
from longspan.data.text.tidying.turns import beginnings

MARKED = 0.5
"""From this share of the lines on that begin with a name, those that do not go on with the turn before."""

_DASH = re.compile(r"^[-–—]+\s*(?=\S)")
"""What begins a turn of nobody in particular, in subtitles and novels."""


def read_text(text: str, name: str) -> Dialogue:
    """The dialogue of a transcript that is in memory."""
    return document_dialogue(document_of(text, name=name))


def document_dialogue(document: Document) -> Dialogue:
    """The dialogue of a document of any kind, as `longspan.data.text.reading.read` gives it.

    Where its turns were recognised, they are taken, and what stands between them is said by nobody. Else, as with one
    speaker or with none, every line is looked at by itself, see `turns_of_lines`.
    """
    blocks = [block for block in document.blocks if block.kind not in {"boilerplate", "references"}]
    if any(block.kind == "turn" for block in blocks):
        turns = [Turn(block.speaker or "", block.text, block.body.start, block.body.end) for block in blocks]
    else:
        turns = turns_of_lines(document.text.split("\n"), placed=True)
    return Dialogue(id=document.name, turns=tuple(turn for turn in turns if turn.is_spoken))


def turns_of_lines(lines: Iterable[str], *, placed: bool = False) -> list[Turn]:
    """Lines of a transcript as turns: those that begin with a name, and what follows them.

    Where most lines begin with a name, the others go on with the turn before them. Where few do, as in a transcript
    that names nobody, every line is a turn by itself. A dash before a turn is left out.

    Args:
        lines: without their line ends.
        placed: whether the turns are to know their places in the text of these lines.
    """
    found: list[Turn] = []
    named, place = 0, 0
    for line in lines:
        begin, place = place, place + len(line) + 1
        if not line.strip():
            continue
        mark = next((mark for mark in beginnings(line) if mark.start == 0), None)
        named += mark is not None
        words = line if mark is None else line[mark.words :]
        where = (begin, begin + len(line)) if placed else (None, None)
        found.append(Turn("" if mark is None else mark.name, _DASH.sub("", words.strip()), *where))
    return _joined(found) if named and named >= MARKED * len(found) else found


def _joined(turns: list[Turn]) -> list[Turn]:
    """A turn without a name goes on with the one before."""
    found: list[list[Turn]] = []
    for turn in turns:
        if found and not turn.speaker:
            found[-1].append(turn)
        else:
            found.append([turn])
    return [
        Turn(first.speaker, " ".join(turn.text for turn in (first, *more)), first.start, (more or [first])[-1].end)
        for first, *more in found
    ]
