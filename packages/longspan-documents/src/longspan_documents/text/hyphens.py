"""Words broken at line ends, and whether their hyphens belong to them.

If possible, the document itself decides: by the form that occurs elsewhere, joined or with the hyphen. Otherwise a
joined word that is common in English is joined. If neither is known, heuristics decide: two words that are common by
themselves keep the hyphen ("cost-effective", "long-term"), unless they are halves of a closed compound or one is a mere
suffix ("there|fore", "over|grown", "interconnect|ed"); so do "self-", "non-" and "-based". Everything else is joined;
in other languages than English, all words that do not occur with a hyphen.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from longspan_documents.text.frequencies import common_words

HYPHENS = frozenset("-\u2010\u00ad")

ENGLISH, FEW = 0.02, 60
"""Minimum share of "the", "of" and "and" in an English text; with fewer words than the second number, a text counts as
English."""

_HYPHENED = re.compile(r"[^\W_]+(?:[-\u2010][^\W_]+)*")
_HEAD = re.compile(r"(?:^|[^\W_][-\u2010]|[^\w])([^\W\d_]+)[-\u2010\u00ad]$")
_NUMBER = re.compile(r"(?:^|[^\w.,])[\w.,]*\d[^\W_]*[-\u2010]$")
_ADDRESS = re.compile(r"(?:\w://|\bwww\.)\S*$")
_DOUBLED = re.compile(r"[b-df-hj-np-tv-z](?:ed|ing|ings|er|ers|able|y)")
_TAIL = re.compile(r"[^\W_]+(?:[-\u2010][^\W_]+)*")
_SUSPENDED_TEXT = """
and or to nor but und oder bis et ou y o e och eller og en of sowie versus vs through rather as i ja tai
"""
_SUSPENDED = frozenset(_SUSPENDED_TEXT.split())
"""Words after a suspended hyphen: "two- and three-dimensional"."""
_KEPT_TAILS = re.compile(
    r"(?:independent|dependent|based|like|free|specific|related|aware|oriented|driven|invariant|agnostic|only|wide|scale"
    r"|level|term|time|known|defined|shaped|sized|dimensional|trained|supervised|sensitive|friendly|rich|poor|first|art"
    r"|party|orientation|separated)"
)
_KEPT_HEADS_TEXT = """
self well non cross quasi pseudo semi half all ill ex vice co pre post anti multi mid neo pro per
"""
_KEPT_HEADS = frozenset(_KEPT_HEADS_TEXT.split())
_OPEN_HEADS_TEXT = """
two one six ten low big old new end top raw far bio gas oil air sea ice war tax job law
"""
_OPEN_HEADS = frozenset(_OPEN_HEADS_TEXT.split())
_CLOSED_HEADS = re.compile(
    r"some|any|every|no|t?here|where|how|wh(?:at|en|o|ich)|with|under|over|out|up|down|in|on|through|to|for|fore|back|may"
    r"|can|al|be|com|con|form|inter|trans|su[bp]|super|counter|after|before|[md]is|note|book|hand|un|re|de|en|micro"
    r"|macro|hyper|hypo|ultra|infra|intra|electro|photo|thermo|hydro|mono|poly|para|meta|tele|auto|eco|geo|uni|tri|bi"
)
_CLOSED_TAILS = re.compile(
    r"(?:work|base|ware|line|shop|light|ground|word|man|men|ship|hood|ful|fully|side|wise|wards?|ever|fore|self|selves"
    r"|point|able|less|most|age|stand|standing|stood|taken?|come|view|book|house|day|room|land|mark|board|load|set|field"
    r"|down|off|put|flow|map|one|body|thing|where|what|how|times|ness|ment|form|formed|forms|tion|ally|over|look|write"
    r"|writing|play|back|keeper|holder|stone|fall|rise|break|out|through|port|ports|pose|posed|act|action|ring|ling|ties"
    r"|ed|er|ers|est|ing|ings|ly|al|sion|ible|ous|ive|ity|ism|ist|ic|ics|ical|ary|ory|ant|ent|ance|ence|ure|ize|ise|ized"
    r"|ising|izing|ating|ation|ated|ates|ate|cal|cally|ment|ments|ity|eral|tic|tics|tional|logical|graphic|metric|genic"
    r"|ants|ents|ents|ors?|ias?|ine|ines|ide|ides|ites?|man|mans|son|sons|ton|berg|burg|ville|ford)s?"
)


@dataclass(frozen=True, slots=True)
class Words:
    """The lower-case words of a document, with and without hyphens, and their counts.

    Attributes:
        counts: excluding both parts of words broken at line ends.
        english: whether the document is in English, or too short to tell.
    """

    counts: Counter[str]
    english: bool

    def knows(self, word: str) -> bool:
        """Whether a lower-case word occurs in the document or, in English, is common."""
        return word in self.counts or self.is_common(word)

    def is_common(self, word: str) -> bool:
        """Whether a lower-case word, or its singular, is common in the document's language."""
        if not self.english:
            return False
        common = common_words()
        return word in common or (word[-1:] == "s" and word[:-1] in common)


def words_of(lines: Iterable[str]) -> Words:
    """Counts the words of consecutive lines."""
    counts = Counter[str]()
    broken = False
    for line in lines:
        words = _HYPHENED.findall(line.casefold())
        ends = line[-1:] in HYPHENS
        counts.update(words[broken : len(words) - ends])
        broken = ends
    total = counts.total()
    return Words(counts, total < FEW or counts["the"] + counts["of"] + counts["and"] > ENGLISH * total)


def joined(line: str, following: str, words: Words) -> tuple[str, str] | None:
    """Returns the two lines with a broken word joined at the end of the first; None if no word is broken."""
    tail = _TAIL.match(following)
    if tail is None:
        return None
    place = following.find(" ")
    rest = following if place < 0 else following[:place]
    after = "" if place < 0 else following[place + 1 :]
    if _NUMBER.search(line) or _ADDRESS.search(line):  # "pages 12-15"
        return line + rest, after
    broken = _HEAD.search(line)
    if broken is None or (tail[0] in _SUSPENDED and not words.knows(f"{broken[1]}{tail[0]}".casefold())):
        return None
    compound = broken.start(1) > 0 and line[broken.start(1) - 1] in HYPHENS
    stays = line[-1] != "\u00ad" and _stays(broken[1], tail[0], words, compound)
    return line[:-1] + ("-" if stays else "") + rest, after


def _stays(first: str, second: str, words: Words, compound: bool) -> bool:
    """Whether the hyphen between two parts of a word belongs to it; `compound` if another one precedes them."""
    head, (tail, *more) = first.casefold(), second.casefold().split("-")
    whole, hyphened = f"{head}{second.casefold()}", f"{head}-{second.casefold()}"
    if compound and words.knows(head) and words.knows(tail) and len(head) < 5:  # "day-to-day", not "day-today"
        return True
    if words.counts[whole] or words.counts[hyphened]:
        return words.counts[hyphened] > words.counts[whole]
    capitals = first.isupper() and second.isupper() and len(first) > 1
    if not second[0].islower() and not (capitals and words.knows(whole)):
        return True
    if len(first) == 1 or (first.isupper() and not capitals):  # no word is broken after a single letter or an acronym
        return True
    if words.is_common(f"{head}{tail}"):
        return False
    if compound:
        return words.knows(head) or not words.knows(f"{head}{tail}")
    if more and tail in {"to", "of", "and", "in", "the", "or", "by", "on", "for", "a"}:
        return True
    return words.english and _is_compound(head, tail, words)


def _is_compound(head: str, tail: str, words: Words) -> bool:
    """Whether two parts of an unknown English word keep their hyphen."""
    if _KEPT_TAILS.fullmatch(tail) and (words.knows(head) or len(head) > 4):
        return True
    if head in _KEPT_HEADS:
        return words.knows(tail) and len(tail) > 2
    if not (words.knows(head) and words.knows(tail)) or len(tail) < 3:
        return False
    if head[-1] == tail[0] and _DOUBLED.fullmatch(tail):
        return False
    closed = _CLOSED_HEADS.fullmatch(head) or _CLOSED_TAILS.fullmatch(tail)  # "therefore", "network"
    return (len(head) > 3 or head in _OPEN_HEADS) and not closed
