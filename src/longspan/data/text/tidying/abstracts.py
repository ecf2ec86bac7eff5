"""The document's own abstract or executive summary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from longspan.data.text.blocks import SPOKEN, Block
from longspan.data.text.traced import Traced

EARLY = 0.2
"""Part of a document's characters in which its abstract begins."""
LONGEST = 6_000
"""Characters; a longer section is no abstract."""
FEWEST = 100

_NUMBER = r"(?:[\dIVXA-C]{1,4}\.?\s+)?"
_NAMES = (
    r"abstract|(?:executive|simple|plain[- ]language|lay|management|author|technical|general|structured)\s+summary"
    r"|tl;?\s?dr|in brief|key points|highlights|synopsis|zusammenfassung|kurzfassung|résumé|resumen|resumo|riassunto"
    r"|аннотация|摘要|要旨|abstrakt|sammanfattning|samenvatting"
)
_HEADING = re.compile(rf"{_NUMBER}(?:{_NAMES}|summary(?: of (?:findings|the report))?)\W*", re.IGNORECASE)
_INLINE = re.compile(
    rf"\s*[*_]{{0,3}}(?:{_NAMES}|ABSTRACT|SUMMARY)[*_]{{0,3}}\s*(?:[—–:]|-\s|\.\s)[*_\s]*(?=\S)", re.IGNORECASE
)
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
    """The blocks of the document's own abstract marked as such: the first section, early in it, that is named so."""
    total = sum(len(block.text) for block in blocks if block.kind != "boilerplate")
    done = 0
    for index, block in enumerate(blocks):
        if done > max(EARLY * total, 1_500):
            break
        if block.kind in SPOKEN and (found := _INLINE.match(block.text)) and len(block.text) >= FEWEST:
            inside = [index]
            named = found.end()
        elif block.kind == "heading" and _HEADING.fullmatch(block.text.strip(" *_")):
            inside, named = _below(blocks, index), 0
        else:
            inside, named = [], 0
        length = sum(len(blocks[place].text) for place in inside)
        if inside and FEWEST <= length <= min(LONGEST, total / 2 if total > 2_000 else total):
            return _marked(blocks, set(inside), named)
        done += len(block.text) if block.kind != "boilerplate" else 0
    return list(blocks)


def _below(blocks: Sequence[Block], index: int) -> list[int]:
    """The blocks of the section below a heading; "Methods" in a structured abstract does not end it."""
    inside: list[int] = []
    labelled = 0
    for place in range(index + 1, len(blocks)):
        block = blocks[place]
        if _KEYWORDS.match(block.text):
            break
        if block.kind == "heading":
            deeper = block.level > blocks[index].level
            if not deeper and not (_LABELLED.fullmatch(block.text.strip()) and (labelled or not inside)):
                break
            labelled += 1
            if not deeper and labelled > 1 and sum(len(blocks[at].text) for at in inside) > LONGEST // 2:
                return inside[:1]
        elif block.kind in SPOKEN:
            inside.append(place)
    return inside


def _marked(blocks: Sequence[Block], inside: set[int], named: int) -> list[Block]:
    found = [replace(block, abstract=True) if index in inside else block for index, block in enumerate(blocks)]
    if named:
        first = min(inside)
        found[first] = replace(found[first], body=_from(found[first].body, named))
    return found


def _from(body: Traced, start: int) -> Traced:
    return body.part(start, len(body.text))
