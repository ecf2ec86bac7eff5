"""The expected kind of answer to a question (person, time, number, place, reason, way, definition), and whether a text
contains one. For English, by form.

Names and numbers of a question must agree with its answer: for a question about 1817, a sentence on 1801 is wrong.
"""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal["who", "when", "number", "where", "why", "how", "what"]

EXPLAINED: frozenset[Kind] = frozenset(["why", "how", "what"])
"""Kinds whose answer adds something to the words of the question: a reason, a way, a definition."""

_NUMBER_WORDS = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion dozen"
    " twice half once"
)
_MONTHS = "January February March April May June July August September October November December"
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
_TIMES = "yesterday today tomorrow tonight morning evening afternoon midnight noon century spring summer autumn winter"
_ROLES = "he she director president minister professor doctor author king queen captain chairman company committee team"


def _words(text: str, *, ends: str = "") -> str:
    return rf"\b(?:{'|'.join(text.split())}){ends}\b"


_ASKS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "number",
        re.compile(
            r"\bhow (?:many|much|long|old|far|often|tall|large|big|high|deep|fast|heavy|wide)\b|"
            r"\bwhat (?:is the )?(?:number|percentage|percent|share|price|cost|amount|size|length|age|rate)\b",
            re.IGNORECASE,
        ),
    ),
    ("when", re.compile(r"\b(?:when|what (?:year|date|day|time|month|century)|since when|by when)\b", re.IGNORECASE)),
    ("where", re.compile(r"\b(?:where|wherein|(?:what|which) (?:country|city|town|place|state|location))\b", re.I)),
    ("who", re.compile(r"\b(?:who|whom|whose|(?:what|which) (?:person|people|man|woman|author|company))\b", re.I)),
    (
        "why",
        re.compile(r"\b(?:why|(?:for )?what reasons?|(?:for )?what purpose|what (?:caused?|causes)|how come)\b", re.I),
    ),
    ("how", re.compile(r"\b(?:how|in (?:what|which) way|by (?:what|which) means)\b", re.I)),
    (
        "what",
        re.compile(
            r"\bwhat (?:is|are|was|were) (?!there\b)|\bwhat (?:do|does|did)\b.{1,100}?\b(?:means?|stand for)\b|"
            r"\bdefin(?:e|ition)\b|\bmeant by\b|\bmeaning of\b",
            re.IGNORECASE,
        ),
    ),
)
_YEAR = r"\b(?:1\d{3}|20\d{2})s?\b"
_NAME = r"(?<![.!?:]\s)(?<!^)(?<!\n)\b[A-Z][a-z]+(?:-[A-Z]?[a-z]+)?\b|\b[A-Z]{2,}\b"
_HOLDS: dict[Kind, re.Pattern[str]] = {
    "number": re.compile(rf"\d|(?i:{_words(_NUMBER_WORDS, ends='s?')})"),
    "when": re.compile(rf"{_YEAR}|{_words(_MONTHS)}|{_words(_DAYS, ends='s?')}|\d:\d\d|(?i:{_words(_TIMES)})"),
    "where": re.compile(rf"(?i:\b(?:in|at|near|from|to|on|under|behind|between|inside)\b) (?:the )?(?:{_NAME}|[a-z]+)"),
    "who": re.compile(rf"{_NAME}|(?i:{_words(_ROLES, ends='s?')})"),
    "why": re.compile(
        r"\b(?:because|since(?! (?:\w+ )?\d)|so (?:that|as)|due to|in order (?:to|that)|thanks to|owing to|therefore|"
        r"thereby|thus|as a (?:result|consequence)|(?:is|was) why|reasons?|given (?:that|the)|based on|on account of|"
        r"lest|le(?:ad|ads|d) to|to (?:avoid|prevent|protect|ensure|keep|make|maintain|help|save|allow|reduce)|"
        r"(?:designed|needed|meant|intended) (?:to|for)|caus(?:e[sd]?|ing)|(?:result(?:s|ed)?|stems?) (?:in|from)|"
        r"(?:^|this |which |that )(?:prevents|allows|enables|ensures|helps|makes|means))\b|"
        r"[,;:] (?:as|for|so|to) |^to ",
        re.IGNORECASE,
    ),
    "how": re.compile(
        r"\b(?:by (?:\w+ly )?\w+ing|using|through|via|with the help of|by means of|in order to|first|then|next|"
        r"finally|steps?|stages?|procedure|method|as follows)\b",
        re.IGNORECASE,
    ),
    "what": re.compile(
        r"\b(?:is|are|was|were) (?:an?|the|any|all|defined|known|called|meant|designed)\b|"
        r"\b(?:means?|meant|mean that|refers? to|denotes?|stands? for|consists? of|called|termed|known as|defined|"
        r"that is|i\.e\.)",
        re.IGNORECASE,
    ),
}
_QUESTION_END = re.compile(r"[?？][\"”’')]*(?: [\w, ]{1,40}[.!]?)?$")
_REFERRING = re.compile(
    r"\W*(?:this|that|these|those|it|they|because|therefore|thus|hence|so|otherwise|as such|then)\b", re.IGNORECASE
)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_CAPITAL = re.compile(r"\b[A-Z][\w-]*[A-Za-z0-9]\b")
_ASKING = re.compile(
    r"(?i:who|whom|whose|when|where|which|what|why|how|is|are|was|were|do|does|did|can|could|has|have|had|in|on|at|by|"
    r"the|a|an|to|for|from|of|with|according|summarize|describe|name|list|i|please|will|would|should)\Z"
)


def kind_of(question: str) -> Kind | None:
    """Returns the expected kind of answer; None if the form does not determine it. The first matching word decides."""
    found: list[tuple[int, Kind]] = [
        (match.start(), kind) for kind, pattern in _ASKS if (match := pattern.search(question))
    ]
    return min(found, key=lambda place_and_kind: place_and_kind[0])[1] if found else None


def holds_kind(kind: Kind | None, text: str) -> bool:
    """Whether a text contains an answer of this kind; always True if the kind is unknown."""
    return kind is None or bool(_HOLDS[kind].search(text))


def is_question(text: str) -> bool:
    """Whether a sentence ends as a question, also before a speech tag (`"Why?" asked Ann.`)."""
    return bool(_QUESTION_END.search(text.rstrip()))


def refers_back(text: str) -> bool:
    """Whether a sentence begins with a word that refers to the previous sentence ("This …", "Therefore …")."""
    return bool(_REFERRING.match(text))


def names_of(question: str) -> frozenset[str]:
    """Returns the numbers of a question, and its capitalised words except the first, in lower case."""
    names = {match.rstrip(".,") for match in _NUMBER.findall(question)}
    return frozenset(
        names | {word.lower() for word in _CAPITAL.findall(question) if not _ASKING.match(word) and len(word) > 1}
    )


def share_of_names(names: frozenset[str], text: str) -> float:
    """Returns the share of a question's names and numbers that occur in a text as whole words; 1 if it has none."""
    if not names:
        return 1.0
    lower = text.lower()
    return sum(bool(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", lower)) for name in names) / len(names)
