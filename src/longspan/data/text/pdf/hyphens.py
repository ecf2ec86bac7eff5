"""Words that the end of a line breaks: whether their hyphen goes or stays.

The rest of the document decides where it can. A hyphen stays where the hyphenated form occurs elsewhere and the joined
one does not. Where neither occurs, habits decide: "-based" and "self-" keep it, two words of the document that are no
halves of a common closed compound ("there|fore", "net|work") keep it, everything else is joined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HYPHENS = frozenset("-\u2010\u00ad")

_WORD = re.compile(r"[^\W_]+(?:[-\u2010][^\W_]+)*")
_HEAD = re.compile(r"(?:^|[^\W_][-\u2010]|[^\w])([^\W\d_]+)[-\u2010\u00ad]$")
_TAIL = re.compile(r"[^\W_]+(?:[-\u2010][^\W_]+)*")
_KEPT_TAILS = re.compile(
    r"(?:independent|dependent|based|like|free|specific|related|aware|oriented|driven|invariant|agnostic|only|wide|scale"
    r"|level|term|time|known|defined|shaped|sized|dimensional|trained|supervised|sensitive|friendly|rich|poor|first|art|party|orientation|separated)"
)
_KEPT_HEADS = frozenset(["self", "well", "non", "cross", "quasi", "pseudo", "semi", "half", "all", "ill", "ex", "vice"])
_OPEN_HEADS = frozenset(["two", "one", "six", "ten", "low", "big", "old", "new", "end", "top", "raw"])
_CLOSED_HEADS = re.compile(
    r"some|any|every|no|t?here|where|how|wh(?:at|en|o|ich)|with|under|over|out|up|down|in|on|through|to|for|fore|back|may"
    r"|can|al|be|per|pro|com|con|form|inter|trans|su[bp]|super|counter|after|before|[md]is|note|book|hand"
)
_CLOSED_TAILS = re.compile(
    r"(?:work|base|ware|line|shop|light|ground|word|man|men|ship|hood|ful|fully|side|wise|wards?|ever|fore|self|selves|point"
    r"|able|less|most|age|stand|standing|stood|taken?|come|view|book|house|day|room|land|mark|board|load|set|field|down|off"
    r"|put|flow|map|one|body|thing|where|what|how|times|ness|ment|form|formed|forms|tion|ally|over|look|write|writing"
    r"|play|back|keeper|holder|stone|fall|rise|break|out|through|port|ports|pose|posed|act|action|ring|ling|ties)s?"
)


def words_of(lines: Iterable[str]) -> set[str]:
    """The words of lines in small letters, with and without hyphens, less both parts of those that line ends break."""
    known: set[str] = set()
    broken = False
    for line in lines:
        words = _WORD.findall(line.casefold())
        known.update(words[broken : len(words) - (line[-1:] in HYPHENS)])
        broken = line[-1:] in HYPHENS
    return known


def joined(line: str, following: str, known: set[str]) -> tuple[str, str] | None:
    """The two lines with a broken word whole at the end of the first; None where no word is broken."""
    broken = _HEAD.search(line)
    tail = _TAIL.match(following)
    if broken is None or tail is None:
        return None
    place = following.find(" ")
    rest = following if place < 0 else following[:place]
    compound = broken.start(1) > 0 and line[broken.start(1) - 1] in HYPHENS
    kept = line[-1] != "\u00ad" and _stays(broken[1], tail[0], known, compound)
    return line[:-1] + ("-" if kept else "") + rest, "" if place < 0 else following[place + 1 :]


def _stays(head: str, tail: str, known: set[str], compound: bool) -> bool:
    """Whether the hyphen between two parts of a word belongs to it; `compound` where another one stands before them."""
    together = f"{head}{tail}".casefold() in known
    if together or not tail[0].islower():
        return not together
    if compound or f"{head}-{tail}".casefold() in known:
        return True
    head, (tail, *more) = head.casefold(), tail.casefold().split("-")
    if _KEPT_TAILS.fullmatch(tail) and (head in known or len(head) > 4):
        return True
    if more and tail in {"to", "of", "and", "in", "the", "or", "by", "on", "for"}:
        return True
    if head in _KEPT_HEADS:
        return tail in known
    both = head in known and tail in known and len(tail) > 3
    return both and (len(head) > 3 or head in _OPEN_HEADS) and not _closes(head, tail)


def _closes(head: str, tail: str) -> bool:
    """Whether two words make a common compound without hyphen: "therefore", "network"."""
    return bool(_CLOSED_HEADS.fullmatch(head) or _CLOSED_TAILS.fullmatch(tail))
