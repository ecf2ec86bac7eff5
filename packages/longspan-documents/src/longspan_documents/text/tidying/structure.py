"""Steps that classify the lines of a text: items, paragraphs, headings, the document's own abstract.

Marks of items are removed, wrapped paragraphs joined into one line; headings of plain text are detected by form and
position, and repeated ones left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from longspan.characters import invisible
from longspan.data.text.sentences import count_words
from longspan_documents.text.blocks import SPOKEN, Block, Edit, Traced, on_one_line
from longspan_documents.text.hyphens import HYPHENS, Words, joined, words_of
from longspan_documents.text.plain_text import (
    ATX,
    BULLET,
    CHAPTER,
    ENDED,
    NUMBER,
    TITLE,
    WIKI,
    is_rule,
    is_shouted,
    is_title,
)

_PARAGRAPH_NUMBER = re.compile(r"\s*(?:\[\d{4}\]|¶\s*\d{0,3}|§\s*\d{0,3}\s)\s+")
_WORD = re.compile(r"\w")


def with_items(blocks: Sequence[Block]) -> list[Block]:
    """Makes paragraphs that begin with a list mark items, without the mark."""
    result: list[Block] = []
    for block in blocks:
        match = (BULLET.match(block.text) or NUMBER.match(block.text)) if block.kind == "paragraph" else None
        if match and match.end() < len(block.text):
            indent = len(block.text) - len(block.text.lstrip())
            body = block.body.part(match.end(), len(block.text))
            block = replace(block, kind="item", body=body, level=1 + indent // 2)
        result.append(block)
    return result


def without_invisible_characters(blocks: Sequence[Block]) -> list[Block]:
    """Removes soft hyphens and zero-width characters."""
    return [
        replace(block, body=block.body.edited((start, end, "") for start, end in places))
        if (places := invisible(block.text))
        else block
        for block in blocks
    ]


def without_paragraph_numbers(blocks: Sequence[Block]) -> list[Block]:
    """Removes "[0012]", with which patents begin a paragraph."""
    return [
        replace(block, body=block.body.part(match.end(), len(block.text)))
        if block.kind == "paragraph" and (match := _PARAGRAPH_NUMBER.match(block.text))
        else block
        for block in blocks
    ]


def without_rules(blocks: Sequence[Block]) -> list[Block]:
    """Marks lines without letters and digits, such as rules of dashes and stars, as boilerplate."""
    return [block if _WORD.search(block.text) else replace(block, kind="boilerplate", level=0) for block in blocks]


_HYPHENATED = re.compile(r"[-\u2010](?<=[^\W_].)[^\S\n]*\n[^\S\n]*(?=[^\W_])")
_ROLE = re.compile(r"`(?P<words>[^`<>\n]+(?:\n[^`<>\n]+)?)\s<[^`<>]+>`__?|(?<!`)`(?P<named>[^`<>]{1,60})`__?(?!\w)")


def with_joined_lines(blocks: Sequence[Block]) -> list[Block]:
    """Joins the lines of paragraphs, items, turns, headings, captions and references, with single spaces; joins words
    broken at line ends, and keeps the words of reStructuredText links."""
    whole = {*SPOKEN, "heading", "caption", "references"}
    broken = any(block.kind in whole and _HYPHENATED.search(block.text) for block in blocks)
    words = words_of(line.strip() for block in blocks for line in block.text.split("\n")) if broken else None
    return [
        replace(block, body=on_one_line(_unmarked(block.body, words))) if block.kind in whole else block
        for block in blocks
    ]


def _unmarked(body: Traced, words: Words | None) -> Traced:
    edits = list(_mended(body.text, words)) if words is not None else []
    for match in _ROLE.finditer(body.text) if "`_" in body.text else ():
        start, end = match.span(match.lastgroup or 0)
        edits += [(match.start(), start, ""), (end, match.end(), "")]
    return body.edited(sorted(edits)) if edits else body


def _mended(text: str, words: Words) -> Iterator[Edit]:
    """Yields edits that join words broken at line ends."""
    for end in _HYPHENATED.finditer(text):
        hyphen = end.start()
        line = text[text.rfind("\n", 0, hyphen) + 1 : hyphen + 1]
        mended = joined(line, text[end.end() :].split("\n", 1)[0], words)
        if mended is not None:
            stays = mended[0][len(line) - 1] in HYPHENS
            yield hyphen + stays, end.end(), ""


_MANUAL = re.compile(r"\s*(?P<page>[\w.:+-]{1,40}\([0-9]\w{0,4}\))\s.*(?P=page)\s*|.{0,60}\s{3,}.*\([0-9]\w{0,4}\)\s*")
_USAGE = re.compile(r"\W*(?:synopsis|usage)\W*", re.IGNORECASE)
_ABOUT = re.compile(r"\W*(?:synopsis|description)\W*", re.IGNORECASE)
_NAME = re.compile(r"\W*name\W*", re.IGNORECASE)
_NAMING = re.compile(r"\s*[\w./:+@()\[\]-]+(?:,\s+[\w./:+@()\[\]-]+)*\s+(?:-{1,3}|[\u2010-\u2014])\s+\w")


def with_usage(blocks: Sequence[Block]) -> list[Block]:
    """For manual pages: marks the top and bottom line as boilerplate and the synopsis as code, and makes the
    description, "ls - list directory contents" under NAME, a sentence with a full stop."""
    result: list[Block] = []
    manual = any(block.kind == "heading" and _ABOUT.fullmatch(block.text) for block in blocks)
    heading = ""
    for index, block in enumerate(blocks):
        outer = index < 2 or index > len(blocks) - 3
        ended = ENDED.search(block.text.rstrip().rstrip("]."))
        if block.kind == "heading":
            heading = block.text
        if outer and block.kind in {"paragraph", "heading", "table"} and _MANUAL.fullmatch(block.text):
            result.append(replace(block, kind="boilerplate", level=0))
        elif _USAGE.fullmatch(heading) and block.kind in {"paragraph", "item"} and not ended:
            said = count_words(block.text) > 6 and block.text.rstrip().endswith(".") and "[" not in block.text
            result.append(block if said else replace(block, kind="code", level=0))
        elif manual and _NAME.fullmatch(heading) and block.kind in {"paragraph", "code"} and _NAMING.match(block.text):
            result.append(replace(block, kind="paragraph", body=_with_full_stop(block.body)))
        else:
            result.append(block)
    return result


def _with_full_stop(body: Traced) -> Traced:
    end = len(body.text.rstrip())
    return body if ENDED.search(body.text[:end]) else body.edited([(end, len(body.text), ".")])


ALONE = 70
"""In characters; a longer line that merely stands alone is not a heading."""

RUN = 4
"""More consecutive lines that stand alone are a list or verses."""
PROSE = 60
"""Minimum characters of a line that is likely prose."""

_ENUMERATED = re.compile(
    r"(?P<number>\d{1,2}(?:\.\d{1,2}){0,4})(?P<dot>\.?)[^\S\n]+(?P<words>\S[^\n]*)"
    r"|(?P<roman>[IVX]{1,5}|[A-Z])\.[^\S\n]+(?P<roman_words>\S[^\n]*)"
)
_UNDERLINE = re.compile(
    r"(?P<words>[^\n]*\S[^\n]*)\n[^\S\n]*(?P<mark>[=\-~^\"*+#])(?:(?P=mark){2,}|(?P=mark)(?<=\n==|\n--))[^\S\n]*$"
)
_ASKING = re.compile(r"[A-Z]\w+(?: \w+)?: [^\n]*\?")
_NUMERAL = re.compile(r"(?:[IVXLC]{1,7}|\d{1,3})\.?")
_LETTERS = re.compile(r"[^\W\d_]{2}|[^\W\d_][.\d]|[^\x00-\x7f]")
_QUOTED = re.compile(r"[\"“”«»„]|^[-–—*•‘']")
_UNTITLED = re.compile(
    r"(?:This|These|Those|We|It|There|I|You|He|She|They)\b(?! *$)|[^\n]*\b(?:of|the|a|an|and|or|to|for|with|by|is|are)$"
    r"|[a-z\d(\[<{|/$>]|[^\n]*/[^\n]*/|[^\n]* --\w|[^\w]*$"
    r"|.*(?:https?:|www\.|@|\{|\}|=|\||\t|[^\S\n]{3})|.*[a-z]\d{2,}|.*\d{4,}$"
)


def with_headings(blocks: Sequence[Block]) -> list[Block]:
    """Makes short lines headings that are marked, numbered, in capitals, named like chapters, or stand alone."""
    neighbours = zip([None, *blocks], blocks, [*blocks[1:], None], strict=False)
    by_form = [_by_form(before, block, after) for before, block, after in neighbours]
    return _standing_alone(by_form)


def without_repeated_headings(blocks: Sequence[Block]) -> list[Block]:
    """Leaves out headings that repeat the previous one."""
    result: list[Block] = []
    last = ""
    for block in blocks:
        words = " ".join(block.text.casefold().split())
        again = block.kind == "heading" and words == last and words
        result.append(replace(block, kind="boilerplate") if again else block)
        if block.kind != "boilerplate":
            last = words if block.kind == "heading" else ""
    return result


def _heading(body: Traced, start: int, end: int, level: int) -> Block:
    return Block(kind="heading", body=body.part(start, end), level=min(level, 6))


def _by_form(before: Block | None, block: Block, after: Block | None) -> Block:
    if block.kind != "paragraph" or len(block.text) > 2 * TITLE + 40:
        return block
    text = block.text.rstrip()
    if (match := ATX.match(text) or WIKI.match(text)) and match.end() == len(text):
        return _heading(block.body, *match.span("words"), len(match["marks"].replace(" ", "")))
    if (match := _UNDERLINE.fullmatch(text)) and len(match["words"].strip()) <= TITLE and _has_words(match["words"]):
        start, end = match.span("words")
        return _heading(block.body, start, end, 1 if match["mark"] in "=*#" else 2)
    line = text.strip()
    if "\n" in line or len(line) > TITLE or not line:
        return block
    if not _has_words(line):
        return block
    level = _enumerated(line, before, after)
    if level is None and (is_title(text) or CHAPTER.match(line) or _is_shouted_title(line)):
        level = 1
    return block if level is None else _heading(block.body, 0, len(text), level)


def _has_words(line: str) -> bool:
    """Whether a line consists of letters and digits, instead of character graphics."""
    marks = [one for one in line if not one.isspace()]
    drawn = sum(not mark.isalnum() and mark not in ".,:;-–—'’\"“”()&?!" for mark in marks)
    return 3 * drawn < len(marks) and (bool(_LETTERS.search(line)) or bool(_NUMERAL.fullmatch(line.strip())))


def _is_shouted_title(line: str) -> bool:
    return is_shouted(line) and not _QUOTED.search(line) and line[-1] not in ",;!?" and "..." not in line


def _enumerated(line: str, before: Block | None, after: Block | None) -> int | None:
    """Returns the level of a numbered title, None for a list item."""
    match = _ENUMERATED.fullmatch(line)
    if not match:
        return None
    words = match["words"] or match["roman_words"]
    ended = ENDED.search(words) and not (is_shouted(words) and words[-1] in ".:")
    if ended or not (words[0].isupper() or words[0].isdigit()) or count_words(words) > 14 or words[-1] == ",":
        return None
    if match["roman"] and not is_shouted(words) and len(words) > 60:
        return None
    depth = match["number"].count(".") if match["number"] else 0
    if after is None or any(_is_alike(other, match, depth) for other in (before, after) if other):
        return None  # one of a list
    return 1 + depth


def _is_alike(other: Block, match: re.Match[str], depth: int) -> bool:
    """Whether a block next to a numbered line is numbered in the same way, and as short."""
    line = other.text.strip().split("\n")[0]
    one = _ENUMERATED.match(line)
    if not one or len(line) > TITLE or bool(one["number"]) != bool(match["number"]):
        return False
    return (one["number"] or "").count(".") == depth


def _standing_alone(blocks: list[Block]) -> list[Block]:
    """Makes rare short lines before prose headings if they are not sentences and prose ends its sentences."""
    long = [block.text.rstrip() for block in blocks if block.kind == "paragraph" and len(block.text) > PROSE]
    long = [text for text in long if not BULLET.match(text) and not NUMBER.match(text)]
    if 2 * sum(bool(ENDED.search(text)) for text in long) < len(long) or len(long) < 3:
        return blocks
    result = list(blocks)
    run: list[int] = []
    first = next((index for index, block in enumerate(blocks) if block.kind != "boilerplate"), 0)
    if blocks[first].kind == "paragraph" and _could_stand(blocks[first].text):
        result[first] = replace(blocks[first], kind="heading", level=1)
    for index, block in enumerate(blocks):
        if block.kind == "paragraph" and _could_stand(block.text):
            run.append(index)
            continue
        if block.kind == "paragraph" and _is_prose(block.text) and len(run) <= RUN:
            for place in run:
                result[place] = replace(blocks[place], kind="heading", level=2)
        run = []
    return result


def _is_prose(text: str) -> bool:
    """Whether a paragraph may follow a heading: prose or a list."""
    return len(text) > PROSE or bool(ENDED.search(text.rstrip()) or BULLET.match(text) or NUMBER.match(text))


def _could_stand(text: str) -> bool:
    line = text.strip()
    if "\n" in line or len(line) > ALONE or is_rule(line):
        return False
    if _NUMERAL.fullmatch(line):
        return True
    if (
        (ENDED.search(line) and not _ASKING.fullmatch(line))
        or line.endswith((",", "-", "—"))
        or _QUOTED.search(line)
        or NUMBER.match(line)
    ):
        return False
    return not _UNTITLED.match(line) and count_words(line) <= 12 and _has_words(line)


EARLY, SOON = 0.2, 0.05
"""Part of a document's characters in which its abstract begins; part of its paragraphs before a "Summary"."""
LONGEST = 6_000
"""In characters; a longer section is not an abstract."""
FEWEST = 60
PART = 1_500
"""In characters; a longer section is not part of a structured abstract."""

_NUMBER = r"(?:[\dIVXA-C]{1,4}\.?\s+)?"
_NAMES = (
    r"abstract|(?:executive|simple|plain[- ]language|lay|management|author|technical|general|structured)\s+summary"
    r"|tl;?\s?dr|zusammenfassung|kurzfassung|résumé|resumen|resumo|riassunto"
    r"|аннотация|摘要|要旨|abstrakt|sammanfattning|samenvatting"
)
_HEADING = re.compile(rf"{_NUMBER}(?:{_NAMES})\W*", re.IGNORECASE)
_SUMMARY = re.compile(rf"{_NUMBER}summary(?: of (?:findings|the report))?\W*", re.IGNORECASE)
_INLINE = re.compile(
    rf"\s*[*_]{{0,3}}(?:{_NAMES}|ABSTRACT|SUMMARY)[*_]{{0,3}}\s*(?:[—–:]|-\s|\.\s)[*_\s]*(?=\S)", re.IGNORECASE
)
_FEATURED = re.compile(rf"{_NUMBER}(?:in brief|key points|highlights)\W*", re.IGNORECASE)
_LABELLED = re.compile(
    r"(?:background|objectives?|aims?|purpose|methods?|materials? and methods?|design|setting|results?|findings"
    r"|main results?|conclusions?|interpretation|discussion|significance|importance|introduction|context|funding"
    r"|trial registration)\W*",
    re.IGNORECASE,
)
_KEYWORDS = re.compile(
    r"\W*(?:key\s?-?words|index terms|schlüsselwörter|mots[- ]clés|palabras clave|abbreviations)\b", re.I
)


def with_abstract(blocks: Sequence[Block]) -> list[Block]:
    """Marks the blocks of the document's own abstract: the first section with such a name, near the beginning."""
    total = sum(len(block.text) for block in blocks if block.kind != "boilerplate")
    done = prose = 0
    for index, block in enumerate(blocks):
        if done > max(EARLY * total, 1_500):
            break
        if block.kind in SPOKEN and (match := _INLINE.match(block.text)) and _is_mostly_prose(blocks, [index]):
            inside = [index]
            named = match.end()
        else:
            name = block.text.strip(" *_") if block.kind == "heading" else ""
            # A mere "Summary" is an abstract only before the text has begun.
            early = prose <= max(SOON * total, 600) and _SUMMARY.fullmatch(name)
            named_so = _HEADING.fullmatch(name) or early or _FEATURED.fullmatch(name)
            inside, named = (_below(blocks, index) if named_so else []), 0
            if not _HEADING.fullmatch(name) and not _is_mostly_prose(blocks, inside):
                inside = []  # a list of features, a synopsis, the figures of a run
        length = sum(len(blocks[place].text) for place in inside)
        if inside and FEWEST <= length <= min(LONGEST, total / 2 if total > 2_000 else total):
            result = list(blocks)
            for place in inside:
                result[place] = replace(blocks[place], abstract=True)
            if named:  # the name is not part of the words
                body = blocks[index].body
                result[index] = replace(result[index], body=body.part(named, len(body.text)))
            return result
        done += len(block.text) if block.kind != "boilerplate" else 0
        prose += len(block.text) if block.kind == "paragraph" else 0
    return list(blocks)


def _is_mostly_prose(blocks: Sequence[Block], inside: Sequence[int]) -> bool:
    """Whether most of some blocks are sentences of prose."""
    prose = [
        place for place in inside if ENDED.search(blocks[place].text.rstrip()) and len(blocks[place].text) >= FEWEST
    ]
    return 2 * sum(len(blocks[place].text) for place in prose) > sum(len(blocks[place].text) for place in inside)


def _below(blocks: Sequence[Block], index: int) -> list[int]:
    """Returns the blocks of the section below a heading; "Methods" in a structured abstract does not end it."""
    inside: list[int] = []
    labels: set[str] = set()
    for place in range(index + 1, len(blocks)):
        block = blocks[place]
        if _KEYWORDS.match(block.text):
            break
        if block.kind == "heading":
            label = block.text.strip().casefold()
            part = bool(_LABELLED.fullmatch(label)) and label not in labels and (bool(labels) or not inside)
            if not part or _length_below(blocks, place) > PART:
                break
            labels.add(label)
        elif block.kind in SPOKEN:
            inside.append(place)
    return inside


def _length_below(blocks: Sequence[Block], index: int) -> int:
    """Returns the characters between a heading and the next one."""
    length = 0
    for block in blocks[index + 1 :]:
        if block.kind == "heading" or length > PART:
            break
        length += len(block.text)
    return length
