"""Run-in heads: bold words at the beginning of a paragraph that are its heading, "**Inducement** As a material …".

Readers store in `Block.label` the words set apart by style; here it is decided whether they are a heading, or
emphasised words of the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from longspan.data.text.sentences import count_words
from longspan_documents.text.blocks import Block
from longspan_documents.text.plain_text import ENDED

LONGEST, MOST_WORDS = 100, 12
"""Maximum characters and words of a run-in head."""
ALONE, RUN_IN = 4, 6
"""Levels of headings that are bold paragraphs, and of run-in heads."""

_MARK = re.compile(r"\s*[.:;：。—–?!]+\s*$")
_MARK_BEHIND = re.compile(r"[^\S\n]*(?:[.:：。]|[—–](?=\s|\w)|\s[-—–]\s)[^\S\n]*")
_ASIDE = re.compile(r"\s*\([^()\n]{1,100}\)\s*[.:]\s*|\s*\[[^\][\n]{1,100}\]\s*[.:]?\s*")
"""Text that a style leaves out of a head: "**Definition 3** (Foo). Let …"."""
_SHORT_FORM = re.compile(
    r"(?:[^\W\d_]{1,4}\.)+|(?:\w+ )?(?:Inc|Corp|Ltd|Co|Prof|Capt|Sgt|Rev|Gen|Hon|vs|etc|approx|Abb|Fig|Tab|Nr|No)\."
)
_WORD = re.compile(r"[^\W\d_]+(?:[’'][^\W\d_]+)?")
_UNSPACED = re.compile("[\u2e80-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af]")
_STARTING = """
a about above after all also although among an and another any are as at because before below both but by can do
does during each either every few first finally following for from given had has have he her here his how however i
if in instead is it its let many may more most much my no none not now of on once one only or other our over people
please prior several she should since so some such than that the their them then there therefore these they this
those three through thus to two under unless until upon use using we were what when where whenever whether which
while who will with within without you your
aber alle allen als alternativ am an auch auf aus bei beide beim bevor da dabei dadurch damit danach daher dann
darüber das dass dem den der des dies diese dieser dieses die durch ein eine einem einen einer es falls für gegen
hier ich ihr im in ist jede jeder jedes kein keine man mit nach nachdem nicht nur ob obwohl ohne sein seit sie sind
so sobald um und unser unter vom von vor wann was weil wenn wer wie wir wird während wo zu zum zur zwei
après au aucun aucune aux avant avec ce ces cet cette chaque comme dans de depuis des deux dès donc du elle elles en
entre est et eux il ils je la le les leur leurs lors lorsque mais malgré ne nos notre nous on ou où par pendant
plusieurs plus pour puis quand que qui sa sans selon ses si son sous sur tous tout toute toutes un une vos votre
vous l’ d’ c’ qu’
al algunos antes cada como con cuando cuyo del desde después donde dos durante el ella ellos en entre era es esta
estas este estos hay la las lo los más muchos nadie ningún no nosotros nuestra nuestro o para pero por porque puede
que se según ser si sin sobre su sus también tan todos todas tras un una unas unos y ya ao aos após as até com da
das dos e em foram isso mas mais na nas não nem no nos nossa nosso os ou pela pelo quando são seu sua também tem uma
umas ai alla alle alcuni anche che chi ci come con dal dalla dei del della delle di dopo dove due durante essi fra
gli ha hanno i il in le lo loro ma nel nella nelle noi nostra nostro ogni per perché più poiché prima quando quanto
questa queste questi questo se secondo senza si sono sotto su sul sulla tra tutti una uno
aan als bij dat de deze dit door een elk en er geen het hij hoe iedere ik in is kan maar meer men met na naar niet
nog of om onder ons onze op over sinds te tijdens toen tot tussen uit van vanaf veel volgens voor waar waarom
wanneer wat we wie wij worden ze zij zonder zoals av att både de den det detta deras där efter eller en ett från för
genom han har hon hur här i inte jag kan man med men mellan många när och om på samt som till under utan vad var vi
vid är alle at blev disse efter ej et fra hun hvis hvor ikke mellem nogle når
aby ale by być co czy dla do gdy i ich jak jako jest jeśli każdy która które który lub ma między można na nad nie o
od oraz po pod podczas przed przez przy się są tak ten ta te to tym w wszystkie wszyscy z za ze že který jeho je
jsou když mezi po podle pro při tento
а без более бы был была были было в вам вас во все всего вы где да для до его ее её если есть за и из или им их к
как каждый когда которые который мы на над не нет но о об он она они от перед по под после при с со так также такой
только то у чтобы эта эти это этот
"""
_STARTERS = frozenset(_STARTING.split())
"""Words that begin sentences, and are not the second word of a name: English, German, French, Spanish with Portuguese
and Italian, Dutch and the Scandinavian languages, Polish with Czech, Russian with Ukrainian."""


def with_labels(blocks: Sequence[Block]) -> list[Block]:
    """Makes run-in heads and short bold paragraphs headings; emphasised words stay in their sentences."""
    return [part for index, block in enumerate(blocks) for part in _parts(block, index + 1 < len(blocks))]


def _parts(block: Block, is_followed: bool) -> Iterator[Block]:
    label = block.label.strip() if block.kind in {"paragraph", "item"} else ""
    text = block.text
    start = len(text) - len(text.lstrip())
    if not label or not text.startswith(label, start) or not _WORD.search(label):
        yield block
        return
    end = start + len(label)
    if len(label) > LONGEST or count_words(label) > MOST_WORDS:
        yield block
    elif not text[end:].strip():
        stands = block.kind == "paragraph" and is_followed and not ENDED.search(label.rstrip(":："))
        yield replace(block, kind="heading", level=ALONE, label="") if stands else block
    elif (place := _begin_of_text(label, text, end, block.kind == "item")) is not None:
        yield replace(block, kind="heading", level=RUN_IN, body=block.body.part(start, place[0]), label="")
        yield replace(block, body=block.body.part(place[1], len(text)), label="")
    else:
        yield block


def _begin_of_text(label: str, text: str, end: int, is_item: bool) -> tuple[int, int] | None:
    """Returns the end of the head in `text[:end]`, without its mark, and the beginning of the text after it; None for
    emphasis."""
    ended = _MARK.search(label)
    stop = end - len(ended[0]) if ended else end
    if aside := _ASIDE.match(text, end):
        stop, behind = end + len(aside[0].rstrip().rstrip(".:")), aside.end()
        marked = True
    else:
        mark = None if ended else _MARK_BEHIND.match(text, end)
        behind = mark.end() if mark else end
        marked = bool(ended or mark)
    behind += len(text[behind:]) - len(text[behind:].lstrip())
    first = text[behind : behind + 1]
    if not first or first.islower() or (_SHORT_FORM.fullmatch(label) and not aside):
        return None
    if "\n" in text[end:behind]:
        return stop, behind
    if marked:
        # An item "Speed: it is slow" is kept as it is, and so is a mark inside a number or a name.
        spaced = text[behind - 1 : behind].isspace() or text[behind - 1 : behind] in "—–：。" or _UNSPACED.match(first)
        return None if is_item or not spaced else (stop, behind)
    if not text[end : end + 1].isspace():
        return None
    word = _WORD.match(text, behind)
    words = _WORD.findall(label)
    stressed = words[-1].islower() and words[-1] in _STARTERS
    if _UNSPACED.match(first):
        return stop, behind
    if word is None or stressed or not (label[:1].isupper() or label[:1].isdigit()):
        return None
    begins = (
        word[0].casefold() in _STARTERS or f"{word[0].casefold().replace(chr(39), '’').partition('’')[0]}’" in _STARTERS
    )
    return (stop, behind) if begins and first.isupper() else None
