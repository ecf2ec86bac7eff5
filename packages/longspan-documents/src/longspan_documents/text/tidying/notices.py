"""Steps that classify notices about a document's rights: licences, copyright, trademarks, editions, imprints.

Such a notice is detected by its words, in a dozen languages; by its heading, such as "Legal Notice"; and by its
position, before the text begins or after its end. A document that is itself a licence, a contract or about one is read
as any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from longspan_documents.text.blocks import SPOKEN, Block
from longspan_documents.text.plain_text import ENDED
from longspan_documents.text.tidying.contents import CONTENTS

LONGEST = 4_000
"""In characters; a longer block is not entirely a notice."""
MANY = 8
"""Maximum notices within a text; a document with more is about licences."""
OUTER, OUTERMOST = 0.15, 12
"""First and last part of a document's characters, and minimum number of blocks, in which notices are expected."""
SHORT, NEAR = 200, 160
"""Maximum characters of a block that one phrase makes a notice; length of the part of a longer one in which a phrase
begins."""
DENSE, FEWEST = 0.045, 3
"""Minimum share, and number, of legal words in a block that continues a notice."""
LEGAL = 0.4
"""Minimum share of dense blocks in a section or a document about rights."""
LEFT = 0.2
"""Relative to the length of the notices; a document without headings of which less is left is a licence."""
HEADING = 100
"""Maximum characters of a heading."""

_ROOTS = (
    "licen", "lizenz", "лиценз", "copyright", "©", "(c)", "(c )", "droits", "rights", "rechte", "derechos",
    "diritti", "direitos", "prawa", "rättigheter", "ensamrätt", "права", "trademark", "warenzeichen", "marken",
    "marques", "marcas", "marchi", "handelsmerk", "varumärk", "znaki", "товарн", "warrant", "permission", "as is",
    "as-is", "reproduc", "reproduz", "reproduk", "vervielfält", "verveelvoudigd", "public domain", "isbn",
    "catalog", "liab", "haftung", "technical inaccuracies", "patent", "creative commons", "cc-by", "cc by", "cc0",
    "restricted", "redistribut", "forward", "confidential", "gewähr", "著作権", "版权", "版權", "权利", "權利",
    "转载", "轉載", "転載", "複製", "複写", "商标", "商標", "许可", "許可", "許諾", "ライセンス", "保証", "翻印",
    "urheber", "author's rights", "reference format", "expression error", "confidentiality", "internet society",
    "internet-draft",
)  # fmt: skip
"""Substrings of notices, lower-case: the patterns below are tried only on blocks with one of them."""

_PHRASE = re.compile(
    r"all rights (?:are )?reserved|spdx-license-identifier|licen[cs]ed (?:\w+ ){0,4}under (?:the|a|an|cc)\b"
    r"|permission is (?:hereby )?(?:granted|given)|permission (?:\w+ ){1,3}copy, (?:distribute|modify)"
    r"|provided (?:\w+ ){0,4}[\"“'‘`]{0,2}as[- ]is\b|[\"“]as[- ]is[\"”]|without (?:any )?warrant(?:y|ies)"
    r"|warrant(?:y|ies) of (?:any kind|merchantability)|disclaims? (?:all|any) (?:\w+ ){0,3}(?:warrant|liab)"
    r"|creative commons (?=[^.\n]{0,60}(?:licen|attribution|public domain|zero|\bcc\b))|\bcc[- ]by\b|\bcc0\b"
    r"|(?:placed|is|are) in the public domain|dual[- ]license"
    r"|open[- ]access article|redistribution and use in source|copyright and related rights"
    r"|(?:©|\(c\)|copyright) ?(?:\(c\) ?|© ?)?(?:by )?(?:the )?(?:(?-i:[^\W\d_a-z])[\w.,&’'-]*,? ){0,6}(?:19|20)\d\d"
    r"|(?:terms|conditions) of the [^.\n]{0,80}licen[cs]e|(?:distributed|released|available"
    r"|published) under (?:\w+ ){0,3}"
    r"[^.\n]{0,40}(?:licen[cs]e|gfdl|gpl\b)|the licen[cs]e (?:is included|can be found|at https?:)"
    r"|(?:a )?copy of (?:the|this) (?:licen[cs]e|gfdl|gpl)|subject to the (?:\w+ )?rights, licenses"
    r"|no part of this (?:\w+ ){0,3}may be (?:reproduced|copied|used)|(?:reproduced|transmitted|copied) in any form"
    r"|without (?:the )?(?:prior |express )?(?:written )?(?:prior )?(?:permission|consent) (?:of"
    r"|from) the (?:publisher|author"
    r"|copyright|owner)|(?:registered )?(?:trade|service)[- ]?marks? (?:\w+ ){0,3}(?:of|or)\b|claimed as trademarks"
    r"|(?:trademarks|names|brands|marks) (?:\w+ ){0,4}(?:property|respective) (?:\w+ ){0,4}(?:owners|holders"
    r"|companies)"
    r"|liable (?:for|to) (?:any|you)|liability (?:for|is|or)\b[^.\n]{0,60}damages|as the licensor"
    r"|(?:us|u\.s\.) government (?:users )?restricted rights|does not (?:grant|give) (?:you )?any licen[cs]e"
    r"|(?:may have|covered by|one or more) (?:\w+ )?patents|technical inaccuracies or typographical"
    r"|takes no position regarding the validity"
    r"|alle rechte (?:vorbehalten|reserviert)|urheberrechtlich geschützt|(?:nachdruck"
    r"|vervielfältigung)\w*[^.\n]{0,80}"
    r"(?:genehmigung|verboten|untersagt|zustimmung|gestattet)|lizenz(?:iert)? [^.\n]{0,60}(?:creative|gnu|gpl|cc)"
    r"|(?:eingetragene|geschützte) (?:waren|marken)\w*|(?:marken|warenzeichen) (?:\w+ ){0,3}(?:der|inhaber"
    r"|eigentümer)"
    r"|ohne (?:jede |jegliche )?gewähr(?:leistung)?\b|haftung (?:für|wird|ist)[^.\n]{0,80}(?:ausgeschlossen"
    r"|übernommen)"
    r"|(?:bedingungen|bestimmungen) der [^.\n]{0,60}lizenz"
    r"|tous droits (?:de \w+ )?(?:\w+ )?réservés|toute reproduction[^.\n]{0,120}(?:interdite|autorisation"
    r"|contrefaçon)"
    r"|(?:termes|conditions) de la licence|marques? (?:déposées?|commerciales?|de commerce)"
    r"|droits? d[’']auteur[^.\n]{0,40}(?:19|20)\d\d"
    r"|todos los derechos reservados|(?:queda|está) (?:rigurosamente )?prohibida[^.\n]{0,80}reproducción"
    r"|(?:permiso|permite) (?:para )?(?:copiar|la reproducción)|(?:términos|condiciones) de la [^.\n]{0,60}licencia"
    r"|marcas? (?:comercial(?:es)? )?registradas?|tutti i diritti (?:sono )?riservati|marchi? (?:\w+ )?registrat[io]"
    r"|(?:termini|condizioni) della [^.\n]{0,60}licenza|(?:vietata|riproduzione)[^.\n]{0,60}(?:riproduzione"
    r"|vietata|autorizzazione)"
    r"|todos os direitos (?:\w+ )?reservados|(?:termos|condições) da [^.\n]{0,60}licença|(?:proibida"
    r"|reprodução)[^.\n]{0,80}"
    r"(?:reprodução|proibida|autorização)|alle rechten voorbehouden|mag worden verveelvoudigd"
    r"|voorwaarden van de [^.\n]{0,60}licentie"
    r"|geregistreerde? (?:handels)?merk|(?:alla|samtliga) rättigheter (?:förbehåll|reserver)\w*|med ensamrätt"
    r"|registrerade? varumärk|enligt [^.\n]{0,60}licens|wszelkie prawa (?:zastrzeżone|autorskie)"
    r"|(?:zarejestrowany\w* )?"
    r"znak\w* (?:towarow|handlow)\w+|na (?:warunkach|licencji) |все права (?:защищены|сохранены)|товарн\w+ знак\w*"
    r"|(?:на )?условиях (?:\w+ )?лицензии|никакая часть|(?:無断|許可なく|許諾なく)[^。\n]{0,30}(?:複製|転載"
    r"|複写|転用)"
    r"|(?:複製|転載|複写)[^。\n]{0,30}(?:禁|許諾|許可)|登録商標|商標です|著作権(?:は|者|法|表示)"
    r"|ライセンスの(?:下|もと|条件)"
    r"|版[权權]所有|保留(?:所有|一切|部分)?(?:权利|權利)|未[经經][^。\n]{0,30}(?:许可|許可|授权|授權|同意)"
    r"|不得(?:以任何|转载|轉載|复制|複製|翻印)"
    r"|注册商标|註冊商標|许可[证協协]|許可證",
    re.IGNORECASE,
)
_FORMAL = re.compile(
    r"\W*(?:acm reference format|permission to make digital or hard cop|publication rights licensed|copyright held by"
    r"|permission (?:is hereby|to use, copy)|redistribution and use in source|expression error: )"
    r"|(?=[^\n]{0,400}\btrademarks?\b)[^\n]{0,400}\b(?:registered trademarks?|trademarks? (?:\w+ ){0,2}of)\b"
    r"[^\n]{0,200}$"
    r"|\W*(?:this|the following) [^\n]{0,200}contains? [^\n]{0,40}forward[- ]looking statements",
    re.IGNORECASE,
)
"""Beginnings of formal notices: permissions, the reference format of a publisher, trademarks, safe harbour."""
_COPYRIGHT = re.compile(
    r"\W*(?:copyright\b|©|\(c\)\s)[^\n]*\b(?:1[5-9]|20)\d\d\b[^\n]*|[^\n]{0,80}all rights reserved\W*"
    r"|\W*isbn\b[^\n]*\d[^\n]*"
    r"|library of congress\b[^\n]*|\W*(?:first|second|third|\w+th|\d+(?:st|nd|rd|th)) (?:edition"
    r"|printing)\b[^\n]{0,40}"
    r"|\W*edition notice\W*|\d+\. (?:auflage|ausgabe)\b[^\n]{0,40}",
    re.IGNORECASE,
)
"""Lines that are notices although they look like headings."""
_IMPRINT = re.compile(
    r"\W*(?:(?:first )?published (?:by|in|at|\d)|first (?:published|edition|printed)|reprinted"
    r"|this edition (?:applies|first"
    r"|published|is)|a catalogue record|library of congress|british library|isbn\b|issn\b|typeset (?:in|by)"
    r"|(?:typeset, )?"
    r"printed (?:and|in|by|on)|this (?:book|publication|edition) is sold subject"
    r"|before using this (?:information|product)"
    r"|cover (?:design|image|photo)|doi:|erschienen (?:im|bei)|gedruckt (?:in|auf)|druck(?: und bindung)?:"
    r"|dépôt légal"
    r"|imprimé (?:en|par)|achevé d[’']imprimer|impreso en|depósito legal|stampato in|impresso (?:em|no)"
    r"|gedrukt (?:in|door)"
    r"|distributed by (?:\w+ ){1,6}(?:online|texts|books)|this (?:e-?)?(?:text|book|ebook) (?:is (?:based on"
    r"|for the use of|made"
    r" available|distributed)|was (?:scanned|digiti[sz]ed|typed|prepared))"
    r"|(?:this is the )?end of (?:this|the) [^\n]{0,80}(?:e-?text|e-?book|edition)"
    r"|(?:発行|印刷|製本|編集|発行所|発行者)[::\s]|(?:出版|印刷|发行|發行)(?:社|者|单位)?[::\s]|(?:初版"
    r"|第\d+版)(?:発行|第|\s|$)"
    r"|you may (?:use|copy|redistribute) (?:it|this))",
    re.IGNORECASE,
)
"""Beginnings of additions by publishers and libraries before and after a text."""
_NAMED = (
    r"(?:full |important )?(?:legal|copyright|edition|trademark|licen[cs]e|proprietary|rights)(?:[- ](?:and"
    r"|&)[- ]\w+)? "
    r"(?:notices?|statements?|information|notes?|disclaimers?|acknowledge?ments?|remarks|page|terms)(?: and \w+)?"
    r"|status of this (?:memo|document)|intellectual property(?: rights)?(?: statement| notice)?"
    r"|disclaimers?(?: of \w+)?|trademarks?"
    r"|(?:about )?copyrights?|licen[cs](?:e|es|ing)(?: information)?|notices?|legal|rights (?:and permissions"
    r"|reserved)"
    r"|(?:rechtliche|lizenz|urheberrechts|marken)-?\s?(?:hinweise?|vermerk)|rechtliches|impressum|urheberrecht"
    r"|lizenz|copyright-?vermerk"
    r"|mentions légales|avis (?:juridique|de copyright|légal)|licence|droits d[’']auteur|aviso (?:legal|de copyright)"
    r"|derechos de autor|licencia|note legali|avviso legale|licenza|avisos? lega(?:l|is)|direitos autorais|licença"
    r"|juridische (?:kennisgeving|informatie)|licentie|nota prawna|prawa autorskie|licencja"
    r"|juridisk information|licens"
    r"|правовая информация|авторские права|лицензия|著作権(?:表示|について)?|ライセンス(?:について)?"
    r"|商標(?:について)?|免責事項"
    r"|版权(?:声明|信息|页)?|版權(?:聲明|頁)?|许可(?:证|协议)?|法律声明|声明"
)
_NUMBER = (
    r"(?:(?:appendix|annex|chapter|anhang|annexe|apéndice|appendice|付録|附录)\s+)?"
    r"(?:[\dIVXA-Z]{1,4}(?:\.\d+)*[.:]?\s+)?"
)
_HEADED = re.compile(rf"{_NUMBER}(?:{_NAMED})\W*", re.IGNORECASE)
_MEMO = re.compile(r"\W*(?:status of this (?:memo|document)|legal notices?|copyright notices?)\W*", re.IGNORECASE)
"""Headings of sections with nothing but notices."""
_LICENCE = re.compile(
    rf"{_NUMBER}(?:the |start: full )?(?:gnu (?:\w+ )?(?:free documentation|(?:lesser |affero "
    rf"|library )?general public)"
    r"|creative commons|(?:full )?apache|mozilla public|eclipse public|open publication|artistic|mit"
    r"|(?:\d-clause |modified )?bsd"
    r"|academic free|boost software|sil open font|python software foundation|zlib|project gutenberg(?:™|-tm)?"
    r"|full project gutenberg\S*|full)\b"
    r"[^\n]{0,60}\blicen[cs]e\b[^\n]{0,40}|(?:[\dA-Z]\.\s)?(?:gfdl|gpl|lgpl|agpl)(?: \S+)?\W*",
    re.IGNORECASE,
)
"""The heading of a licence that is printed in full."""
_ABOUT = re.compile(
    r"licen[cs]|lizenz|copyright|copyleft|trademark|patent|intellectual property|disclaimer|terms (?:of|and|&)"
    r"|conditions (?:of|for)|privacy|nutzungsbedingungen|geschäftsbedingungen|datenschutz|urheberrecht"
    r"|conditions générales"
    r"|propriété intellectuelle|propiedad intelectual|términos|termini|termos|warunki|villkor|voorwaarden"
    r"|условия|лицензи"
    r"|авторск|ライセンス|著作権|規約|许可|版权|条款|協議|协议|knowledge commons|open source|public domain"
    r"|warranty|gewährleistung",
    re.IGNORECASE,
)
"""Words in the title of a document about rights."""
_CONTRACT = re.compile(
    r"\b(?:agreement|contract|lease|covenant|deed|undertaking|terms (?:of|and) \w+|eula|vertrag|vereinbarung"
    r"|contrat|accord"
    r"|contrato|acuerdo|contratto|accordo|acordo|overeenkomst|avtal|umowa)\b|vertrag\b|vereinbarung\b|договор"
    r"|соглашение|契約|合同|协议",
    re.IGNORECASE,
)
_PARTIES = re.compile(
    r"\b(?:part(?:y|ies)|whereas|hereinafter|hereto|herein|hereby|shall|witnesseth|vertragspartei\w*|auftragnehmer\w*"
    r"|auftraggeber\w*|(?:ver)?mieter\w*|parties|prestataire|partes|parti|partijen|parterna|strony|стороны"
    r"|сторон)\b|甲|乙|双方",
    re.IGNORECASE,
)
_LAW = re.compile(
    r"\b(?:licen[cs]\w+|copyright\w*|copyleft|trademarks?|warrant\w+|liab\w+|redistribut\w+|reproduc\w+"
    r"|permi(?:t|ssion)\w*"
    r"|damages|proprietary|reserved|infring\w+|disclaim\w+|invariant|notices?|distribut(?:e|ed|ing|ion)"
    r"|modif(?:y|ied|ication)\w*"
    r"|cop(?:y|ies|ying)|verbatim|recipients?|patents?|grants?|granted|rights?|hereunder|hereby|thereof|herein"
    r"|applicable|jurisdiction"
    r"|terms|conditions|merchantab\w+|tort|negligence|contributors?|holders?|subject to|publisher|covered"
    r"|conspicuous\w*"
    r"|cover texts?|transparent|title page|document|endors\w+|derived|covenants?|sublicens\w+|derivative|gnu"
    r"|gfdl|gpl|\w*lizenz\w*|haftung\w*"
    r"|urheber\w*|rechte|gewähr\w*|derechos|droits|diritti|direitos)\b|著作|権|許諾|ライセンス|複製|版权|许可",
    re.IGNORECASE,
)
"""Legal words, which are frequent in notices."""
_WORD = re.compile(r"\w+")


def without_notices(blocks: Sequence[Block]) -> list[Block]:
    """Marks notices of rights as boilerplate, unless the document is about them or nothing else would be left."""
    if _is_about_rights(blocks):
        return list(blocks)
    sure = [_is_notice(block) for block in blocks]
    sections = list(_sections(blocks, sure))
    headed = {index for section in sections for index in section}
    first, last = _edges(blocks)
    among = [index for index, is_one in enumerate(sure) if is_one and index not in headed and first < index < last]
    if len(among) > MANY:
        sure = [is_one and index not in among for index, is_one in enumerate(sure)]
    for index, block in enumerate(blocks):
        outside = not first < index < last
        if (
            outside
            and block.kind in {*SPOKEN, "heading"}
            and _IMPRINT.match(block.text)
            and len(block.text) < 2 * SHORT
        ):
            sure[index] = True
    found = {*headed, *(index for index, is_one in enumerate(sure) if is_one)}
    found |= set(_between(blocks, found, first, last))
    result = [
        replace(block, kind="boilerplate", level=0) if index in found and block.kind != "boilerplate" else block
        for index, block in enumerate(blocks)
    ]
    if any(block.kind == "heading" for block in result):
        # The first page of a manual, with its table of contents, may be left out as a whole.
        opens = any(block.kind == "boilerplate" and CONTENTS.fullmatch(block.text.strip()) for block in blocks)
        return result if opens or any(block.kind in SPOKEN for block in result) else list(blocks)
    prose = sum(len(block.text) for block in result if block.kind in SPOKEN and not _is_dense(block.text))
    return result if prose > LEFT * sum(len(blocks[index].text) for index in found) else list(blocks)


def _is_about_rights(blocks: Sequence[Block]) -> bool:
    """Whether a document is a licence, a contract, or about rights, by its title and its words."""
    content = [block for block in blocks if block.kind != "boilerplate"]
    titles = [
        block.text for block in content[:3] if len(block.text) <= HEADING and not _COPYRIGHT.fullmatch(block.text)
    ]
    title = " ".join(titles[:1] if content and content[0].kind == "heading" else titles)
    spoken = [block for block in content if block.kind in SPOKEN]
    if _CONTRACT.search(title):
        parties = sum(len(_PARTIES.findall(block.text)) for block in spoken[:100])
        return parties >= max(2, min(len(spoken), 100) / 4)
    if not _ABOUT.search(title):
        return False
    total = sum(len(block.text) for block in spoken)
    return sum(len(block.text) for block in spoken if _is_dense(block.text)) >= LEGAL * total


def _is_notice(block: Block) -> bool:
    """Whether a block as a whole is a notice, not only a sentence of it."""
    text = block.text
    if block.kind == "heading":
        return len(text) <= HEADING and bool(_COPYRIGHT.fullmatch(text))
    if block.kind not in {"paragraph", "item"} or len(text) >= LONGEST:
        return False
    small = text.lower()
    if not any(root in small for root in _ROOTS):
        return False
    if _FORMAL.match(text) or (_COPYRIGHT.fullmatch(text) and len(text) < SHORT):
        return True
    starts = [match.start() for match in _PHRASE.finditer(text)]
    if not starts:
        return False
    near = starts[0] < (80 if len(text) > 2 * SHORT else NEAR)
    return (
        len(text) < SHORT
        or (near and len(text) < SHORT + SHORT * len(starts))
        or len(starts) > 2
        or (near and text.isupper())
    )


def _is_dense(text: str) -> bool:
    """Whether a block is full of legal words."""
    words = len(_WORD.findall(text))
    found = len(_LAW.findall(text))
    return found >= min(FEWEST, max(words // 8, 1)) and found >= DENSE * words


def _sections(blocks: Sequence[Block], sure: Sequence[bool]) -> Iterator[range]:
    """Yields the sections below headings such as "Legal Notice", and licences printed in full with all their
    sections."""
    index = 0
    while index < len(blocks):
        block = blocks[index]
        is_heading = block.kind == "heading" or (block.kind == "paragraph" and not ENDED.search(block.text))
        title = block.text.strip() if is_heading and len(block.text) <= HEADING else ""
        licence = bool(title and _LICENCE.fullmatch(title))
        if not licence and not (title and block.kind == "heading" and _HEADED.fullmatch(title)):
            index += 1
            continue
        end = _end_of_section(blocks, index + 1)
        short = licence and sum(len(blocks[place].text) for place in range(index + 1, end)) < SHORT  # its version
        if not short and not _MEMO.fullmatch(title) and not _is_legal(blocks, range(index + 1, end), sure):
            index += 1
            continue
        while licence and end < len(blocks):
            further = _end_of_section(blocks, end + 1)
            inside = range(end + 1, further)
            if not _is_legal(blocks, inside, sure) and not (not len(inside) and _is_part(blocks[end].text)):
                break
            end = further
        yield range(index, end)
        index = end


def _end_of_section(blocks: Sequence[Block], start: int) -> int:
    return next((place for place in range(start, len(blocks)) if blocks[place].kind == "heading"), len(blocks))


def _is_part(heading: str) -> bool:
    """Whether a heading without text below it belongs to a licence: "TERMS AND CONDITIONS"."""
    return bool(_ABOUT.search(heading) or _LAW.search(heading))


def _is_legal(blocks: Sequence[Block], places: range, sure: Sequence[bool]) -> bool:
    """Whether a large part of some blocks is legal text."""
    content = [place for place in places if blocks[place].kind != "boilerplate"]
    total = sum(len(blocks[place].text) for place in content)
    legal = sum(len(blocks[place].text) for place in content if sure[place] or _is_dense(blocks[place].text))
    return legal >= LEGAL * total and total > 0


def _edges(blocks: Sequence[Block]) -> tuple[int, int]:
    """Returns the last block of the beginning of a document and the first of its end, by index."""
    total = sum(len(block.text) for block in blocks)
    done = 0
    first, last = -1, len(blocks)
    for index, block in enumerate(blocks):
        if index < OUTERMOST or done < OUTER * total:
            first = index
        done += len(block.text)
        if last == len(blocks) and (done > (1 - OUTER) * total or index >= len(blocks) - OUTERMOST):
            last = index
    return first, last


def _between(blocks: Sequence[Block], found: set[int], first: int, last: int) -> Iterator[int]:
    """Yields blocks that continue a neighbouring notice, at the beginning and the end of a document."""
    known = set(found)
    for index in [*range(len(blocks)), *reversed(range(len(blocks)))]:
        block = blocks[index]
        if index in known or first < index < last or block.kind not in {"paragraph", "item"}:
            continue
        if (index - 1 in known or index + 1 in known) and _is_dense(block.text):
            known.add(index)
            yield index
