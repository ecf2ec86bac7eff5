"""The expected kind of answer to a question (person, time, number, place), and whether a text contains one. For
English, by form.

Names and numbers of a question must agree with its answer: for a question about 1817, a sentence on 1801 is wrong.
"""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal["who", "when", "number", "where"]

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
)
_YEAR = r"\b(?:1\d{3}|20\d{2})s?\b"
_NAME = r"(?<![.!?:]\s)(?<!^)(?<!\n)\b[A-Z][a-z]+(?:-[A-Z]?[a-z]+)?\b|\b[A-Z]{2,}\b"
_HOLDS: dict[Kind, re.Pattern[str]] = {
    "number": re.compile(rf"\d|(?i:{_words(_NUMBER_WORDS, ends='s?')})"),
    "when": re.compile(rf"{_YEAR}|{_words(_MONTHS)}|{_words(_DAYS, ends='s?')}|\d:\d\d|(?i:{_words(_TIMES)})"),
    "where": re.compile(rf"(?i:\b(?:in|at|near|from|to|on|under|behind|between|inside)\b) (?:the )?(?:{_NAME}|[a-z]+)"),
    "who": re.compile(rf"{_NAME}|(?i:{_words(_ROLES, ends='s?')})"),
}
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
    return min(found)[1] if found else None


def holds_kind(kind: Kind | None, text: str) -> bool:
    """Whether a text contains an answer of this kind; always True if the kind is unknown."""
    return kind is None or bool(_HOLDS[kind].search(text))


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
