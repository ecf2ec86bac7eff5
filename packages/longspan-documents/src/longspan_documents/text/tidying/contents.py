"""Marks tables of contents: what follows a name such as "Inhaltsverzeichnis" or "目次", and lines that end in dots and
a page number.

A table ends where its own titles are repeated as headings, and at the first sentence of prose.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from longspan_documents.text.blocks import SPOKEN, Block
from longspan_documents.text.plain_text import ENDED, is_title

LONG, TITLE = 300, 120
"""Maximum characters of a line with dots; of a title in a table of contents."""
LARGEST = 20_000
"""In characters; a longer block is not a table of contents."""
FEWEST = 4
"""Minimum lines of a table of contents without a name, if half of their titles are repeated."""
SENTENCE = 8
"""Minimum words of a line that ends as a sentence and is not a title."""
OFTEN = 4
"""Maximum number of times that a title stands alone: in tables of contents and above its section."""

_PAGE = r"(?:\d{1,4}|[ivxlc]{1,7}|[０-９]{1,4})"
_LEADER = r"(?:[.．·•…‥・_]{4,}|(?:[.．·…‥・_][ \u3000]){3,}[.．·…‥・_]?|[…‥]{2,}|\s{3,}(?=\d))"
_DOTS = re.compile(rf"[^\n]*?{_LEADER}[^\S\n]*{_PAGE}[^\S\n|]*$", re.IGNORECASE)
_PAGE_AT_END = re.compile(rf"(?<![^\W_])(?<!\d[.,])(?P<page>{_PAGE})$", re.IGNORECASE)
_LEADERS = ("..", ". .", "…", "··", "· ·", "・・", "．．", "‥", "__", "_ _", "   ", "\t")
"""Of these, a line that `_DOTS` matches has one."""
_NUMBER = re.compile(
    r"\W*(?:(?:chapter|kapitel|chapitre|cap[íi]tulo|capitolo|hoofdstuk|rozdział|глава|part|teil|partie|parte"
    r"|deel|часть|section"
    r"|abschnitt|appendix|anhang)\s+)?(?:\d{1,3}(?:\.\d{1,3})*[.):]?|(?-i:[A-Z])(?:\.\d{1,3})*[.):]"
    r"|[IVXLC]{1,7}[.):]|(?-i:[IVX]{2,7}))\s+|\W*第\s*[\d一二三四五六七八九十０-９]+\s*[章節节部]\s*"
    r"|\W*[-*•·|]?\s*",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"(?:(?:chapter|kapitel|chapitre|cap[íi]tulo|capitolo|hoofdstuk|rozdział|глава|part|teil|partie|parte|deel"
    r"|часть)\s+)?"
    r"(?:\d{1,3}|[ivxlc]{1,7})|第\s*[\d一二三四五六七八九十]+\s*[章節节部]"
)
_RUN_TOGETHER = re.compile(r"[^\W\d][^\d]*?\s(\d{1,4})(?=\s|$)")
CONTENTS = re.compile(
    r"(?:table of )?contents|list of (?:figures|tables|illustrations|examples|procedures|equations)"
    r"|illustrations|(?:on|in) this page"
    r"|inhaltsverzeichnis|inhaltsübersicht|(?:abbildungs|tabellen)verzeichnis|auf dieser seite"
    r"|table des (?:mati[èe]res|figures|illustrations|tableaux|chapitres)|liste des (?:figures|tableaux)"
    r"|sur cette page"
    r"|[íi]ndice (?:general|geral|de (?:contenidos?|conteúdos?|materias|matérias|figuras|tablas|tabelas"
    r"|capítulos)|dei contenuti|generale)"
    r"|tab(?:la|ela) de (?:contenidos?|conteúdos?)|en esta página|in questa pagina|nesta página"
    r"|lista de (?:figuras|tablas|tabelas)"
    r"|inhoudsopgave|inhoudstafel|lijst van (?:figuren|tabellen)|оглавление|список (?:рисунков|таблиц|иллюстраций)"
    r"|[図表]?目次|もくじ|目[录錄]|图目录|表目录|목차|차례|spis (?:treści|rzeczy|rysunków|tabel|ilustracji)"
    r"|innehållsförteckning"
    r"|ind?holdsfortegnelse|innholdsfortegnelse|sisällys(?:luettelo)?|tartalom(?:jegyzék)?|cuprins|içindekiler"
    r"|(?:πίνακας )?περιεχ[οό]μ[εέ]ν(?:α|ων)|зм[іi]ст|съдържание|sadržaj|taula de continguts|mục lục|daftar isi"
    r"|(?:جدول )?المحتويات|الفهرس|תוכן ה?עניינים|विषय[- ]सूची",
    re.IGNORECASE,
)
_MAYBE_NAME = re.compile(
    r"inhalte?|sommaire|table|[íi]ndice|index|contenidos?|sumario|sumário|conteúdos?|sommario|inhoud|содержание"
    r"|内容|innehåll"
    r"|indhold|innhold|sisältö|obsah|índex|overview|übersicht|chapters|kapitel|chapitres|capítulos|capitoli"
    r"|hoofdstukken|rozdziały",
    re.IGNORECASE,
)
"""Names of tables of contents that other sections have too."""


def without_contents(blocks: Sequence[Block]) -> list[Block]:
    """Marks tables of contents, with their names, as boilerplate; repetitions of their titles become headings."""
    result = list(blocks)
    known = cache(partial(_last_places, tuple(blocks)))
    titles: set[str] = set()
    often = _said_often(blocks)
    index = looked_at = 0
    while index < len(blocks):
        end = _end_below_name(blocks, index, known)
        if end is None and index >= looked_at:
            looked_at, is_long = _run(blocks, index)
            end = looked_at if is_long and _comes_again(blocks, range(index, looked_at), known()) else None
        for place in range(index, end or index):
            titles |= {line.title for line in _lines(blocks[place]) if line.title} - often
            result[place] = replace(blocks[place], kind="boilerplate", level=0)
        if end is None and blocks[index].kind != "heading" and is_dotted(blocks[index].text.strip()):
            result[index] = replace(blocks[index], kind="boilerplate", level=0)
        elif end is None and titles and _is_title(blocks[index], titles):
            result[index] = replace(blocks[index], kind="heading", level=1 if is_title(blocks[index].text) else 2)
        index = max(end or 0, index + 1)
    return result


def _said_often(blocks: Sequence[Block]) -> set[str]:
    """Returns normalised lines that stand alone too often to be titles, such as page headers and footers."""
    lines = Counter(
        _line(block.text).title
        for block in blocks
        if block.kind == "paragraph" and len(block.text) <= TITLE and "\n" not in block.text.strip()
    )
    return {line for line, times in lines.items() if times > OFTEN}


def _is_title(block: Block, titles: set[str]) -> bool:
    """Whether a paragraph is a line of a table of contents."""
    if block.kind != "paragraph" or len(block.text) > TITLE or "\n" in block.text.strip():
        return False
    line = _line(block.text)
    return not line.sentence and (line.title in titles or " ".join(block.text.casefold().split()) in titles)


def is_dotted(text: str) -> bool:
    """Whether most lines of a text end in dots, or a wide gap, and a page number."""
    lines = [line for line in text.split("\n") if line.strip()] if len(text) < LARGEST else []
    return (
        bool(lines)
        and max(map(len, lines)) < LONG
        and 2 * sum(any(mark in line for mark in _LEADERS) and bool(_DOTS.match(line)) for line in lines) > len(lines)
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """A line that may be an entry: its words without number and page, the page, and whether it ends as a sentence."""

    title: str
    page: int | None
    numbered: bool
    sentence: bool


def _lines(block: Block) -> list[_Line]:
    return [_line(line) for line in block.text.split("\n") if line.strip(" |-\t")] if len(block.text) < LARGEST else []


def _line(line: str) -> _Line:
    line = line.strip()
    shown = line.rstrip(" |\t\u3000")
    match = _PAGE_AT_END.search(shown) if len(line) < LONG else None
    words = shown[: match.start()] if match else line
    if match and not any(map(str.isalpha, words)):
        match, words = None, line
    number = _NUMBER.match(words)
    title = words[number.end() :] if number and number.end() < len(words) else words
    page = match["page"] if match else ""
    sentence = bool(ENDED.search(line)) and (len(line.split()) > SENTENCE or line[-1:] in "。！？" or len(line) > TITLE)
    return _Line(
        " ".join(title.strip(" .·…‥・_|*#\t\u3000").casefold().split()),
        int(page) if page.isdecimal() else (0 if page else None),
        bool(number and number[0].strip(" -*•·|")),
        sentence or (len(line) > TITLE and not match),
    )


def _end_below_name(blocks: Sequence[Block], index: int, known: Callable[[], dict[str, int]]) -> int | None:
    """Returns the block after a table of contents named by a block; None if it does not name one."""
    block = blocks[index]
    if block.kind not in {"heading", "paragraph", "item", "boilerplate"} or len(block.text) > LARGEST:
        return None
    first, *rest = block.text.strip().split("\n")
    name = first.strip("*_:.#= \t\u3000[]")
    if len(name) > 60:
        return None
    named = bool(CONTENTS.fullmatch(name))
    if not named and not (_MAYBE_NAME.fullmatch(name) and block.kind != "item"):
        return None
    if block.kind == "boilerplate" and not rest:
        return None
    entries = [_line(line) for line in rest if line.strip()]
    if any(entry.sentence for entry in entries):
        return None
    titles = {entry.title for entry in entries if entry.title}
    end, repeated = index + 1, False
    while end < len(blocks):
        if (found := _entries(blocks, end, titles, known)) is None:
            repeated = any(line.title in titles for line in _lines(blocks[end])[:1])
            break
        entries += found
        titles |= {line.title for line in found if line.title}
        end += 1
    if not entries:
        return end if named and end > index + 1 else None
    paged = sum(line.page is not None for line in entries)
    linked = sum(blocks[place].kind == "boilerplate" for place in range(index + 1, end))
    sure = 2 * paged > len(entries) or 2 * linked >= end - index - 1 > 0 or (repeated and len(entries) > 1)
    return end if sure or (named and index < len(blocks) / 2) else None


def _entries(
    blocks: Sequence[Block], index: int, titles: set[str], known: Callable[[], dict[str, int]]
) -> list[_Line] | None:
    """Returns the entries in a block below the name; None if the table has ended."""
    block = blocks[index]
    if block.kind == "boilerplate":
        return []
    if block.kind not in {"item", "paragraph", "table", "heading", "code", "turn"}:
        return None
    if len(numbers := _RUN_TOGETHER.findall(block.text)) >= 3 and "\n" not in block.text and _is_rising(numbers):
        return None if ENDED.search(block.text.rstrip()) else [_line(block.text)]
    found = _lines(block)
    if not found or any(line.sentence for line in found):
        return None
    if all(line.title in titles and line.page is None for line in found):
        return None  # the first heading of the text
    following = blocks[index + 1] if index + 1 < len(blocks) else None
    if len(found) == 1 and _LABEL.fullmatch(" ".join(block.text.casefold().split()).strip(" .:")):
        after = _lines(following)[:1] if following is not None else []
        if any(line.title in titles and line.page is None for line in after):
            return None  # the number of the first chapter, above its title
    paged = any(line.page is not None for line in found)
    if following is None or paged or block.kind == "table":
        return found
    # A title directly above prose is its heading instead of the last entry, unless it is repeated.
    prose = following.kind in SPOKEN and any(line.sentence for line in _lines(following))
    prose = prose or following.kind in {"code", "table"} or (following.kind in SPOKEN and len(following.text) > LONG)
    if prose and len(found) == 1 and known().get(found[0].title, -1) <= index:
        return None
    return found


def _is_rising(numbers: Sequence[str]) -> bool:
    values = list(map(int, numbers))
    return values == sorted(values) and len(set(values)) > 2


def _run(blocks: Sequence[Block], index: int) -> tuple[int, bool]:
    """Returns the block after a run of lines with ascending page numbers, and whether it is long enough."""
    pages: list[int] = []
    end = index
    while end < len(blocks) and blocks[end].kind in {"paragraph", "item", "table", "boilerplate"}:
        block = blocks[end]
        if not block.text.rstrip(" |\t").endswith(tuple("0123456789０１２３４５６７８９")):
            break
        found = _lines(block)
        if not found or any(line.page is None or line.sentence for line in found):
            break
        further = [line.page or 0 for line in found]
        if further != sorted(further) or (pages and further[0] < pages[-1]):
            break
        pages += further
        end += 1
    return end, len(pages) >= FEWEST and len(set(pages)) > 2


def _last_places(blocks: Sequence[Block]) -> dict[str, int]:
    """Returns the last block of each title, among short blocks without a page number."""
    places: dict[str, int] = {}
    for index, block in enumerate(blocks):
        if block.kind in {"heading", "paragraph", "item"} and len(block.text) < LONG:
            for line in _lines(block)[:1]:
                places[line.title] = index
    return places


def _comes_again(blocks: Sequence[Block], places: range, known: dict[str, int]) -> bool:
    """Whether half of the titles in some blocks are repeated below them."""
    titles = [line.title for place in places for line in _lines(blocks[place])]
    return 2 * sum(known.get(title, -1) >= places.stop for title in titles) >= len(titles)
