"""Steps that classify what surrounds and interrupts the text of a document.

Around it are additions of libraries, publishers and sites: Project Gutenberg's frames, licences, banners. Within it are
code, tables, captions, references and tables of contents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from longspan.data.text.sentences import WRAPPED_LINE
from longspan_documents.text.blocks import Block
from longspan_documents.text.plain_text import ENDED, STATEMENT

HEAD, TAIL = 0.3, 0.6
"""A frame's header ends in this first part of a document's characters, its footer begins after that part."""
MENTIONS = 5
"""Number of times that a long footer names its library."""
LONGEST = 1_500
"""Maximum characters of a block that is entirely boilerplate."""
NOTE = 200
"""Maximum characters of a part of a transcriber's note."""
OUTER = 0.15
"""First and last part of a document's blocks that may contain banners."""

_LIBRARY = re.compile(r"gutenberg", re.IGNORECASE)
_BEGINS = re.compile(r"\W*start of (?:the|this) project gutenberg", re.IGNORECASE)
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
_COOKIES = re.compile(r"\bcookies?\b", re.IGNORECASE)
_CONSENT = re.compile(
    r"\b(?:accept|consent|we use|we and our|this (?:web ?)?site uses|uses cookies|by continuing"
    r"|privacy policy|opt[- ]out|preferences|reject all|manage)\b",
    re.IGNORECASE,
)


def without_gutenberg_frame(blocks: Sequence[Block]) -> list[Block]:
    """Marks Project Gutenberg's additions above and below a book as boilerplate, in the book's language, in old and new
    forms."""
    total = sum(len(block.text) for block in blocks)
    if not any(_LIBRARY.search(block.text) for block in blocks):
        return list(blocks)
    first, last, done = 0, len(blocks), 0
    begun = False  # by an explicit line
    for index, block in enumerate(blocks):
        named = bool(_LIBRARY.search(block.text))
        if named and _BEGINS.match(block.text):
            first, begun = index + 1, True
        elif begun and named and _STARS.search(block.text) and _END.match(block.text.strip()):
            last = index
            break
        elif named and not begun and done < HEAD * total and (_STARS.search(block.text) or index < 2 or first == index):
            first = index + 1
        elif named and done > TAIL * total and _is_foot(blocks, index):
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
    """Marks notes of transcribers above and below a book, on who typed it and its first printing, as boilerplate."""
    result = _outer(blocks, lambda text: len(text) < LONGEST and bool(_CREDITS.match(text) and _ONLINE.search(text)))
    unclosed = False  # a bracketed note that was split into several blocks
    for index, block in enumerate(result):
        if unclosed and "]" not in block.text and len(block.text) < NOTE:
            result[index] = replace(block, kind="boilerplate", level=0)
        else:
            note = block.kind == "boilerplate" and block.text.lstrip().startswith("[")
            unclosed = note and "]" not in block.text
    return result


def without_banners(blocks: Sequence[Block]) -> list[Block]:
    """Marks cookie notices at the beginning and the end of a page as boilerplate."""
    return _outer(
        blocks,
        lambda text: len(text) < LONGEST // 2 and bool(_COOKIES.search(text)) and len(_CONSENT.findall(text)) > 0,
    )


def _outer(blocks: Sequence[Block], is_one: Callable[[str], bool]) -> list[Block]:
    """Marks blocks at the beginning and the end for which `is_one` is True as boilerplate."""
    reach = max(12, int(OUTER * len(blocks)))
    outer = [*range(min(reach, len(blocks))), *range(max(len(blocks) - reach, 0), len(blocks))]
    result = list(blocks)
    for index in outer:
        if blocks[index].kind in {"paragraph", "item", "turn", "heading"} and is_one(blocks[index].text):
            result[index] = replace(blocks[index], kind="boilerplate", level=0)
    if all(block.kind == "boilerplate" for block in result):
        return list(blocks)
    return result


_CAPTION = re.compile(
    r"\s*[\[(*_]{0,3}(?:(?:(?:supplementary|appendix|extended data)\s+)?(?:figure|fig\.?|table|tab\.|scheme|plate"
    r"|listing|chart|algorithm|abbildung|abb\.|tabelle|tableau|figura|tabla|illustration)\s*[A-Z]?\d{1,3}(?:[.-]\d{1,3})*[a-z]?"
    r"(?:\s*[.:|–—]|\s*$|\s+[-–—|]\s)|illustration\s*[:\]])",
    re.IGNORECASE,
)
LONGEST_LINE = 10_000
"""Maximum characters of a line checked for code; the check takes time quadratic in its length."""
_CODE_LINE = re.compile(
    r"\s*(?:[\]})]+[;,]?\s*$|.*(?:[=<>]|\w\().*;\s*$|.*\{\s*$|#\s?include\b.*"
    r"|(?:from\s+[\w.]+\s+)?import\s+[\w., *]+$"
    r"|(?:raise|assert)\s\w+|(?:>>>|\.\.\.|\$|%|#!|//|/\*|\*/|--)\s?\S.*|(?:sudo|pip3?|git|cd|curl|apt(?:-get)?|npm|docker|python3?)"
    r"\s+\S+.*|[\w.,\[\]\"']+(?:\s[\w.\[\]]+)?\s*(?:[-+*/|&:]?=|=>|:=)\s*\S.*[^.]$|</?\w[^>]*>.*|[\w.]+\([^)]*\)[;:]?\s*$"
    r"|return\b.*[^.]$"
    r"|\.\.(?:\s+(?:_\S.*:(?:\s|$)|\|[^|]+\|\s+\w+::|[\w-]+::|[\w-]+$)|$)|:[\w-]+:\s+\S+\s*$"
    r"|:(?:target|alt|width|height|align|scale|class|name|caption|maxdepth):(?:\s.*)?$"
    r"|(?:\|[^|\n]+\|\s*)+$|\[!\[.*\]\(\S+\)(?:\s*\[?!\[.*\]\(\S+\))*\s*$|\[[^\]]+\]:\s+\S+\s*$)"
)
_COMMENT = re.compile(r"(?:^\s*|\s{2})#.*$")
_BADGE = re.compile(r"\[?!\[[^\[\]\n]*\]\([^()\s]*\)(?:\]\([^()\s]*\))?")
_FENCE = re.compile(r"\s{0,3}(?:```|~~~(?!~{3}))")
_GAP = re.compile(r"(?<=\S)(?:[ ]{3,}|[ ]*\t[ ]*)(?=\S)")
_REFERENCES = re.compile(
    r"(?:[\dIVX.]{0,5}\s*)?(?:references?(?: and notes| cited)?|bibliography|works cited|literature cited|literature"
    r"|cited literature|literatur(?:verzeichnis)?|bibliographie|bibliograf[íi]a|bibliografia|références|referencias"
    r"|quellen|citations|further reading|список литературы|参考文献)[:.]?",
    re.IGNORECASE,
)
_ENTRY = re.compile(
    r"\A\s*[\[(]?\d{1,3}[\]).]\s|\b(?:19|20)\d\d[a-z]?\b|https?:|\bdoi\b|\bpp?\.\s?\d|\bet al\b|\bvol\.|\bISBN\b|arxiv",
    re.I,
)
LONG = 300
"""In characters; a longer line is classified otherwise."""
ENTRY = 600
"""In characters; a longer block is not an entry of a reference list."""


def with_code(blocks: Sequence[Block]) -> list[Block]:
    """Marks paragraphs of code: those in fences, and those in which most lines look like it."""
    result: list[Block] = []
    fenced = False
    for block in blocks:
        fences = sum(bool(_FENCE.match(line)) for line in block.text.split("\n"))
        is_one = fenced or fences or (block.kind == "paragraph" and _is_code(block.text))
        result.append(replace(block, kind="code", level=0) if is_one else block)
        fenced ^= fences % 2 == 1
    return list(blocks) if fenced else result


def _is_code(text: str) -> bool:
    lines = text.split("\n")
    likely = 0
    opened: int | None = None  # the indentation of the statement whose body follows
    for line in lines:
        margin = len(line) - len(line.lstrip())
        if opened is not None and margin <= opened:
            opened = None
        statement = bool(STATEMENT.match(line))
        badges = "![" in line and 3 * len(_BADGE.sub("", line)) < len(line)
        known = opened is not None or statement or (len(line) <= LONGEST_LINE and bool(_CODE_LINE.match(line)))
        if badges or (known and len(line) < LONG and not _is_prose(_COMMENT.sub("", line))):
            likely += 1
            if opened is None and statement:
                opened = margin
    return 3 * likely >= 2 * len(lines) or not _is_readable(text)


def _is_prose(line: str) -> bool:
    """Whether a line is mostly words."""
    words = line.split()
    return len(words) > 5 and 5 * sum(word.strip(",.;:()\"'“”’!?-").isalpha() for word in words) >= 3 * len(words)


def _is_readable(text: str) -> bool:
    """Whether a long block has spaces and letters like writing; some scripts have no spaces."""
    sample = text[:2_000]
    marks = re.sub(r"[\s_.-]+", "", sample)
    return len(text) < WRAPPED_LINE or (
        3 * sum(map(str.isalpha, marks)) > len(marks) and not re.fullmatch(r"[!-~]{160,}", sample)
    )


def with_tables(blocks: Sequence[Block]) -> list[Block]:
    """Marks paragraphs of rows with cells between bars, or separated by tabs or wide gaps, as tables."""
    return [
        replace(block, kind="table") if block.kind == "paragraph" and _is_table(block.text) else block
        for block in blocks
    ]


def _is_table(text: str) -> bool:
    lines = text.split("\n")
    bars = sum(line.count("|") > 1 or line.lstrip().startswith(("+--", "+==", "|")) for line in lines)
    if bars > 1 and 3 * bars >= 2 * len(lines):
        return True
    gaps = [len(_GAP.findall(line)) for line in lines]
    wide = sum(count > 1 for count in gaps)
    ended = sum(bool(ENDED.search(line)) for line in lines)
    return len(lines) > 2 and 10 * wide >= 7 * len(lines) and 3 * ended < len(lines)


def with_captions(blocks: Sequence[Block]) -> list[Block]:
    """Marks paragraphs and headings such as "Figure 3: …", "Table 2. …", "[Illustration: …]" as captions."""
    return [
        replace(block, kind="caption", level=0)
        if block.kind in {"paragraph", "heading"} and _CAPTION.match(block.text)
        else block
        for block in blocks
    ]


def with_references(blocks: Sequence[Block]) -> list[Block]:
    """Marks the entries below a heading such as "References", up to the next heading of its level."""
    result = list(blocks)
    level = 0
    for index, block in enumerate(blocks):
        if block.kind == "heading":
            named = _REFERENCES.fullmatch(block.text.strip(" *_#"))
            if named:
                level = max(block.level, 1)
                continue
            if level and not _is_entry(block.text):
                level = 0
        if level and block.kind not in {"boilerplate", "code"} and _is_entry(block.text):
            result[index] = replace(block, kind="references", level=0)
    for index in range(1, len(result) - 1):  # a short block between two entries is one too
        before, block, after = result[index - 1 : index + 2]
        if (
            before.kind == after.kind == "references"
            and block.kind in {"paragraph", "item"}
            and len(block.text) < ENTRY
        ):
            result[index] = replace(block, kind="references", level=0)
    return result


def _is_entry(text: str) -> bool:
    """Whether a block has typical parts of references: a number, a year, pages, an address."""
    return bool(_ENTRY.search(text)) and len(text) < ENTRY * max(1, text.count("\n"))
