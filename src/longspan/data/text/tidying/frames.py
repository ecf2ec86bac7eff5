"""What a library, a publisher or a site has put around a document: Project Gutenberg's frames, licences, banners."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from longspan.data.text.blocks import Block

HEAD, TAIL = 0.3, 0.6
"""A frame's head ends in this first part of a document's characters, its foot begins after that part."""
MENTIONS = 5
"""How often a foot of some length names its library."""
MOST, MANY = 0.25, 8
"""Share of a document's characters, and blocks; a document with more of them in licences is about licences."""
LONGEST = 1_500
"""Characters of a block that is boilerplate as a whole."""
NOTE = 200
"""Characters of a part of a transcriber's note."""
OUTER = 0.15
"""First and last part of a document's blocks in which banners stand."""

_LIBRARY = re.compile(r"gutenberg", re.IGNORECASE)
_STARS = re.compile(r"\*\s?\*\s?\*|\*END\*|<<THIS ELECTRONIC")
_END = re.compile(
    r"\W*(?:this is the |here )?(?:end|ends|fin|fine|fim|ende|einde|slut|slutt|loppu|koniec|konec|vége|final|finis"
    r"|конец)\b[^\n]{0,80}gutenberg|[^\n]{0,60}gutenberg[^\n]{0,60}\b(?:loppu|slut|ende|ends)\b",
    re.IGNORECASE,
)
_CREDITS = re.compile(
    r"\W*(?:produced by|e-?text prepared by|e-?text produced|this e-?text was|transcribed from|prepared by|scanned by"
    r"|distributed proofread|credits:|\[?transcriber['’]s notes?\b|produit par|ce livre électronique|dieses e-?book)",
    re.IGNORECASE,
)
_ONLINE = re.compile(
    r"pgdp\.net|proofread|gutenberg|e-?text|transcriber['’]s note|archive\.org|copyright on this publication", re.I
)
_LICENCE = re.compile(
    r"all rights reserved|spdx-license-identifier|licensed under (?:the|a|cc)|permission is hereby granted"
    r"|(?:is|are) provided [\"“']?as[- ]is[\"”']?|without warrant(?:y|ies)|creative commons|\bcc[- ]by\b|\bcc0\b"
    r"|placed in the public domain|dual license|open[- ]access article|redistribution and use in source and binary"
    r"|copyright and related rights|(?:©|\(c\)|copyright) (?:\(c\) |© )?(?:by )?(?:the )?(?:19|20)\d\d",
    re.IGNORECASE,
)
_COOKIES = re.compile(r"\bcookies?\b", re.IGNORECASE)
_CONSENT = re.compile(
    r"\b(?:accept|consent|we use|we and our|this (?:web ?)?site uses|uses cookies|by continuing"
    r"|privacy policy|opt[- ]out|preferences|reject all|manage)\b",
    re.IGNORECASE,
)


def without_gutenberg_frame(blocks: Sequence[Block]) -> list[Block]:
    """What Project Gutenberg puts above and below a book, in the language of the book, in its old and new forms."""
    total = sum(len(block.text) for block in blocks)
    if not any(_LIBRARY.search(block.text) for block in blocks):
        return list(blocks)
    first, last, done = 0, len(blocks), 0
    for index, block in enumerate(blocks):
        named = bool(_LIBRARY.search(block.text))
        if named and done < HEAD * total and (_STARS.search(block.text) or index < 2 or first == index):
            first = index + 1
        if named and done > TAIL * total and _is_foot(blocks, index):
            last = index
            break
        done += len(block.text)
    first = first if first < last else 0
    return [
        replace(block, kind="boilerplate", level=0) if index < first or index >= last else block
        for index, block in enumerate(blocks)
    ]


def _is_foot(blocks: Sequence[Block], index: int) -> bool:
    text = blocks[index].text
    if _STARS.search(text) or _END.match(text.strip()):
        return True
    mentions = 0
    for block in blocks[index:]:
        mentions += len(_LIBRARY.findall(block.text))
    return mentions >= MENTIONS and len(text) < LONGEST


def without_credits(blocks: Sequence[Block]) -> list[Block]:
    """Who typed a book, and where it was printed first, as transcribers note above it and below it."""
    found = _outer(blocks, lambda text: len(text) < LONGEST and bool(_CREDITS.match(text) and _ONLINE.search(text)))
    unclosed = False  # a note in brackets that was cut into several blocks
    for index, block in enumerate(found):
        if unclosed and "]" not in block.text and len(block.text) < NOTE:
            found[index] = replace(block, kind="boilerplate", level=0)
        else:
            note = block.kind == "boilerplate" and block.text.lstrip().startswith("[")
            unclosed = note and "]" not in block.text
    return found


def without_licences(blocks: Sequence[Block]) -> list[Block]:
    """Copyright lines and licences, unless the document is about them."""
    total = sum(len(block.text) for block in blocks)
    found = [
        block.kind in {"paragraph", "item"} and len(block.text) < LONGEST and _is_licence(block.text)
        for block in blocks
    ]
    length = sum(len(block.text) for block, is_one in zip(blocks, found, strict=True) if is_one)
    if length > MOST * total or sum(found) > MANY:
        return list(blocks)
    return [
        replace(block, kind="boilerplate", level=0) if is_one else block
        for block, is_one in zip(blocks, found, strict=True)
    ]


def _is_licence(text: str) -> bool:
    """Whether a licence is what the block is about, not only a sentence of it."""
    found = [one.start() for one in _LICENCE.finditer(text)]
    return bool(found) and (len(text) < 200 or (found[0] < 80 and len(text) < 200 + 200 * len(found)) or len(found) > 2)


def without_banners(blocks: Sequence[Block]) -> list[Block]:
    """Notices that a page sets cookies, at its beginning and its end."""
    return _outer(
        blocks,
        lambda text: len(text) < LONGEST // 2 and bool(_COOKIES.search(text)) and len(_CONSENT.findall(text)) > 0,
    )


def _outer(blocks: Sequence[Block], is_one: Callable[[str], bool]) -> list[Block]:
    """The blocks, with those at the beginning and the end of which `is_one` is true as boilerplate."""
    reach = max(12, int(OUTER * len(blocks)))
    outer = [*range(min(reach, len(blocks))), *range(max(len(blocks) - reach, 0), len(blocks))]
    found = list(blocks)
    for index in outer:
        if blocks[index].kind in {"paragraph", "item", "turn", "heading"} and is_one(blocks[index].text):
            found[index] = replace(blocks[index], kind="boilerplate", level=0)
    if all(block.kind == "boilerplate" for block in found):
        return list(blocks)
    return found
