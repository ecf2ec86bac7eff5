"""The title of a document, from its first blocks, excluding section names, chapter numbers and page headers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from longspan.data.text.sentences import count_words
from longspan_documents.text.blocks import Block
from longspan_documents.text.plain_text import CHAPTER, ENDED, SECTIONS

WITHIN = 12
"""Number of blocks at the beginning, without boilerplate, searched for the title."""
FRAME = 20
"""Number of blocks at the beginning searched for a title in a library's frame or the header of a manual page."""
LONGEST = 200
"""Maximum characters of a title, and of a paragraph above an abstract that is one."""
PROSE = 120
"""Minimum characters of a paragraph that ends as a sentence, with which the text has begun."""

MANUAL_NAMES = re.compile(
    r"\W*(?:name|nom|bezeichnung|nombre|nome|naam|namn|navn|nazwa|název|meno|nume|nimi|név|ad|isim|ime|имя"
    r"|название|назва|ім[’']я|име"
    r"|όνομα|名前|名称|名稱|名字|이름|tên|اسم|שם)\W*",
    re.IGNORECASE,
)
"""The first section of a manual page, in the languages of translations."""
_PAGE = re.compile(r"\s*([\w.:+-]{1,40}\([0-9]\w{0,4}\))(?!\S)")
_COMMAND = re.compile(r"\s*([\w./:+@-]{1,40})(?:,\s+[\w./:+@-]{1,40})*\s+(?:-{1,3}|[\u2010-\u2014])\s")
_SECTION = re.compile(
    r"zusammenfassung|kurzfassung|einleitung|einführung|inhalt(?:sverzeichnis)?|literatur(?:verzeichnis)?"
    r"|vorwort|danksagung|anhang"
    r"|résumé|sommaire|bibliographie|références|remerciements|avant-propos|annexes?|préface|table des matières"
    r"|resumen|introducción|índice|referencias|bibliografía|prólogo|agradecimientos|anexos?|sumário|resumo"
    r"|introdução|referências"
    r"|agradecimentos|prefácio|riassunto|sommario|introduzione|indice|bibliografia|riferimenti|prefazione"
    r"|ringraziamenti"
    r"|samenvatting|inleiding|inhoud(?:sopgave)?|literatuur|voorwoord|dankwoord|sammanfattning|inledning"
    r"|innehåll(?:sförteckning)?"
    r"|referenser|förord|streszczenie|wstęp|wprowadzenie|spis treści|bibliografia|аннотация|введение|оглавление"
    r"|содержание|предисловие"
    r"|список литературы|реферат|要旨|概要|抄録|はじめに|目次|参考文献|まえがき|序文|序|謝辞|摘要|引言|目录"
    r"|目錄|前言|致谢|参考文献|参考资料|초록|서론|목차"
    r"|key ?words?|index terms|schlüsselwörter|mots[- ]clés|palabras clave|synopsis|description"
    r"|executive summary|legal notices?"
    r"|copyright(?: notice)?|licen[cs]e|trademarks?|notices?|status of this memo|notes?|comments?|navigation"
    r"|menu|search|home|index|page"
    r"|untitled(?: document)?|no title|document\d*|dokument\d*|microsoft word.*|new page|introduction"
    r"|table of contents|abbreviations"
    r"|acknowledge?ments?|dedication|preamble|begin|start|list of (?:figures|tables)|about the authors?"
    r"|article info|graphical abstract"
    r"|(?:original |research |review |full[- ]length |short )?(?:article|paper|communication|report|letter)s?"
    r"|open access|editorial|preprint"
    r"|draft|confidential|contents lists available.*|available online.*|r e s e a r c h.*|a r t i c l e.*"
    r"|a b s t r a c t",
    re.IGNORECASE,
)
"""Names of sections instead of documents."""
_CHAPTER_NUMBER = re.compile(
    r"(?:chapter|kapitel|chapitre|cap[íi]tulo|capitolo|hoofdstuk|rozdział|глава|part|teil|partie|parte|deel|del"
    r"|часть|book|buch|livre|libro"
    r"|livro|volume|act|akt|acte|scene|section|abschnitt|appendix|anhang|annexe|luku|kapitola|fejezet|capitol"
    r"|bölüm)[\s.]*"
    r"(?:the\s)?(?:\d{1,3}|[ivxlc]{1,8}|[a-z]|one|two|three|four|five|six|seven|eight|nine|ten|first|second"
    r"|third|last|premier|première"
    r"|primero?|prima|erste[rs]?|первая)[.:]?|(?:erstes|zweites|drittes|första|andra) (?:kapitel|buch|kapitlet)"
    r"|第\s*[\d一二三四五六七八九十百０-９]+\s*[章節节部回卷編编話话]"
    r"|[ivxlc]{1,8}[.:]?|\d{1,3}[.:]?",
    re.IGNORECASE,
)
_EASTERN = re.compile(r"第\s*[\d一二三四五六七八九十百０-９]+\s*[章回卷編编]")
_HEAD_OF_PAGE = re.compile(
    r"(?:arxiv:|\W*(?:https?:|www\.|doi:?\s*10\.|issn\b|isbn\b)).*|.*\b(?:vol(?:ume)?|no|nr|issue|iss|bd|band|jg"
    r"|jahrgang|tome|t|núm|núm|num|pp?|"
    r"год|том|вып)\b\.?\s*[\divxlc]+\b.*\b(?:19|20)\d\d\b|.*\b(?:19|20)\d\d\b.*\b(?:vol(?:ume)?|no|nr|issue"
    r"|pp)\b\.?\s*\d"
    r"|.*第\s*\d+\s*[巻卷期号號].*|(?:in )?proceedings of\b.*|journal of [^:]*\b(?:\d|xxx).*|(?:published"
    r"|accepted|received|submitted|to appear|under review)\b.*"
    r"|(?:page|seite|página|pagina|p\.)\s*\d+.*|(?:version|edition|release|revision|auflage|ausgabe|édition"
    r"|edición|versión|stand)\b[\W\d]*[\d.]+\W*(?:\(.*\))?"
    r"|(?:\w+ )?(?:edition|ausgabe|auflage|édition)\W*|copyright\b.*|©.*|\(c\) .*|downloaded from.*"
    r"|provided by.*|(?:by|von|par|por|di|da|door|av|af)\s.{1,60}"
    r"|(?:network working group|internet[- ]draft|internet engineering task force|request for comments)\b.*"
    r"|\W*\d{1,2}[\s./-]+\w+[\s./-]+\d{2,4}\W*|\W*\w+ (?:\d{1,2}, )?(?:19|20)\d\d\W*|\W*(?:19"
    r"|20)\d\d(?:-\d\d){0,2}\W*|\W*[\d\s./:-]+\W*",
    re.IGNORECASE,
)
_ENTRY = re.compile(
    r"\s*\[\d{1,3}\]\s|(?=.*\b(?:19|20)\d\d\b).*(?:\bet al\b|\bpp?\.\s?\d|\bvol\.|\bdoi\b|, eds?\b|\bin: )"
    r"|[^\d]{3,80}[,.] ?\(?(?:19|20)\d\d[a-z]?\)?\. .*",
    re.IGNORECASE,
)
_FRAMED = re.compile(r"(?:^|\n)\s*Title:\s*(?P<title>[^\n]+(?:\n[ \t]{3,}[^\n]+)*)")
_GUTENBERG = re.compile(
    r"\W*(?:the )?project gutenberg(?:['’]s)?(?:™|-tm)?(?: e-?(?:book|text)s?)?(?: of"
    r"|,)? (?P<title>[^\n*]+?)(?:, by [^\n]*)?\W*$",
    re.I,
)
_CLUES = re.compile(r"\s+[|–—•·:»-]{1,2}\s+")


def title_of(blocks: Sequence[Block]) -> str | None:
    """Returns the title at the beginning of a document; None if there is none.

    It is the title in the frame of Project Gutenberg or the header of a manual page; otherwise the first possible
    heading before the text has begun; otherwise the only first-level heading near the beginning.
    """
    if framed := _in_frame(blocks[:FRAME]):
        return framed
    content = [block for block in blocks if block.kind != "boilerplate"]
    chapters = sum(block.kind == "heading" and _is_chapter(block.text) for block in content)
    passed = False
    for index, block in enumerate(content[:WITHIN]):
        text = block.text.strip()
        if block.kind == "heading" and MANUAL_NAMES.fullmatch(text):
            return _of_manual(blocks, content[index + 1 : index + 2])
        if block.kind == "heading":
            if _is_chapter(text) and chapters > 1:
                return None
            if could_be_title(text):
                return text
            if SECTIONS.fullmatch(text.strip(" .:")) or _SECTION.fullmatch(text.strip(" .:#*")):
                break
        elif block.kind in {"paragraph", "table", "code"}:
            if len(text) > PROSE and ENDED.search(text):
                break
            opens = passed or any(one.abstract or _is_abstract(one) for one in content[index + 1 : index + WITHIN])
            line = block.kind == "paragraph" and len(text) <= LONGEST and count_words(text) > 2
            if opens and line and not ENDED.search(text) and text[:1].isupper() and could_be_title(text):
                return text
        passed = passed or bool(_HEAD_OF_PAGE.fullmatch(text) or _HEAD_OF_PAGE.match(text.split("\n")[0]))
    top = [block.text for block in content[:WITHIN] if block.kind == "heading" and block.level == 1]
    several = sum(block.kind == "heading" and block.level == 1 for block in content) > 1
    return top[0] if len(top) == 1 and not several and could_be_title(top[0]) else None


def could_be_title(text: str) -> bool:
    """Whether a line can be a title, instead of a section name, chapter number, page header or source."""
    line = " ".join(text.split()).strip(" *_#=")
    bare = line.strip(" .:;-–—")
    if not bare or len(bare) > LONGEST or not re.search(r"[^\W\d_]", bare):
        return False
    if (
        SECTIONS.fullmatch(bare)
        or _SECTION.fullmatch(bare)
        or MANUAL_NAMES.fullmatch(bare)
        or _CHAPTER_NUMBER.fullmatch(bare)
    ):
        return False
    numbered = re.match(r"(?:\d{1,2}(?:\.\d{1,2})*|[IVX]{1,5}|[A-Z])[.)]?\s+(?=\S)", bare)
    if numbered and (SECTIONS.fullmatch(bare[numbered.end() :]) or _SECTION.fullmatch(bare[numbered.end() :])):
        return False
    return not (_HEAD_OF_PAGE.fullmatch(line) or _HEAD_OF_PAGE.fullmatch(bare) or _ENTRY.match(line))


def title_of_page(title: str) -> str | None:
    """Returns the title of a web page without the name of its site; None if nothing is left."""
    words = " ".join(title.split())
    for part in (_CLUES.split(words)[0], words):
        if could_be_title(part):
            return part
    return None


def _is_chapter(text: str) -> bool:
    text = text.strip()
    return bool(_CHAPTER_NUMBER.fullmatch(text.strip(" .:")) or CHAPTER.fullmatch(text) or _EASTERN.match(text))


def _is_abstract(block: Block) -> bool:
    return block.kind == "heading" and block.text.strip(" .:").casefold() == "abstract"


def _in_frame(blocks: Sequence[Block]) -> str | None:
    """Returns the title in Project Gutenberg's header."""
    if not any("gutenberg" in block.text.lower() for block in blocks if block.kind == "boilerplate"):
        return None
    for pattern in (_FRAMED.search, _GUTENBERG.match):
        for block in blocks:
            match = pattern(block.text) if block.kind == "boilerplate" else None
            if match and could_be_title(match["title"]):
                return " ".join(match["title"].split())
    return None


def _of_manual(blocks: Sequence[Block], named: Sequence[Block]) -> str | None:
    """Returns the subject of a manual page, "ls(1)" in its header, or "ls" under NAME."""
    for block in blocks[:FRAME]:
        match = _PAGE.match(block.text.lstrip("| "))
        if match and block.kind in {"boilerplate", "table", "paragraph", "heading"}:
            return match[1].lower() if match[1].isupper() or match[1].split("(")[0].isupper() else match[1]
    match = _COMMAND.match(named[0].text) if named else None
    return match[1] if match else None
