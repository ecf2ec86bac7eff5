"""Abbreviations and other cases in which a full stop alone does not determine whether a sentence ends.

Each language has four kinds of abbreviations, which differ in what may follow them inside a sentence:

- `never`: never ends a sentence ("Fig.", "approx.", "Ms.", "vs.").
- `open`: may end a sentence ("Inc.", "p.m.", "etc."): it does before a word that begins sentences far more often than
  it is a name or a noun (`starters`: "He", "The", "However").
- `units`: continues before a small letter or a number ("5 oz. of oil"), and ends before a capital ("Add 5 ml. Stir.").
- `numbered`: abbreviates only before a number, a Roman numeral, a bracket or a single letter ("no. 5", "art. IX",
  "App. B"); elsewhere it is an ordinary word ("He said no.").

The words are in `abbreviations.toml`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from longspan.errors import InputError
from longspan.settings import check_several, show


@dataclass(frozen=True)
class Abbreviations:
    """The abbreviations of a language, by what may follow them, and words that begin sentences."""

    never: frozenset[str] = frozenset()
    open: frozenset[str] = frozenset()
    units: frozenset[str] = frozenset()
    numbered: frozenset[str] = frozenset()
    starters: frozenset[str] = frozenset()
    inner: frozenset[str] = frozenset()
    """Further words that begin no sentence in small letters."""
    lettered: frozenset[str] = frozenset()
    """Words before a single capital letter that is not an initial: "vitamin C."."""
    leading: frozenset[str] = frozenset()
    """Those of `never` that belong to the following word: titles, "vs.". If a table has any, the others end a sentence
    in small letters before a word that begins sentences: "the first two eqs. The third"."""
    words: frozenset[str] = frozenset()
    """Abbreviations that are ordinary words in small letters, and then end a sentence before a capital: "its mass."."""
    ordinals: bool = False
    """Whether a number with a full stop is an ordinal number, as in German."""

    @cached_property
    def known(self) -> frozenset[str]:
        return self.never | self.open | self.units | self.numbered


_SAME = {"nb": "no", "nn": "no"}
"""Languages that share the table of another."""
_AMBIGUOUS = frozenset(["st", "mt", "ft", "am", "ann", "int", "med", "sec", "com", "ed"])
"""English abbreviations that are words of other languages."""


@cache
def abbreviations_of(language: str) -> Abbreviations:
    """Returns the table of a language; if it has none, the English kind `never`."""
    tables, language = _tables(), _SAME.get(language, language)
    if language in tables:
        return tables[language]
    return Abbreviations(never=tables["en"].never - _AMBIGUOUS)


def has_table(language: str) -> bool:
    """Whether a language has a table of its own."""
    return _SAME.get(language, language) in _tables()


@cache
def _tables() -> dict[str, Abbreviations]:
    content: dict[str, dict[str, Any]] = tomllib.loads(
        (files("longspan.data.text") / "abbreviations.toml").read_text(encoding="utf-8")
    )
    return {
        language: Abbreviations(
            **{kind: frozenset(words.split()) for kind, words in kinds.items() if kind != "ordinals"},
            ordinals=bool(kinds.get("ordinals")),
        )
        for language, kinds in content.items()
    }


_LAST = re.compile(r"(?P<open>[(\[]?)(?P<word>[^\W_](?:[^\W_]|[.'’°-](?=[^\W_]|$))*)\.(?P<close>[)\]\"'”’»]*)\s*$")
_REFERENCE = re.compile(r"\s*\[[\d\s,;–-]{1,20}\]\s*$")
_NEXT = re.compile(r"\s*(?P<open>[(\[\"'“‘„«]*)(?P<word>[^\W_]*)")
_NUMBERED = re.compile(r"\s*Nos?\.\s*\d")  # "Pat. No. 5,123,456"
_ROMAN = re.compile(r"[IVXLCDM]+")


def abbreviations_from(words: Iterable[str]) -> frozenset[str]:
    """Normalises abbreviations passed by a user: lower-case, without the last full stop.

    Raises:
        InputError: not a list of words, or an abbreviation that is empty or contains a space.
    """
    if isinstance(words, str):
        raise InputError(f"abbreviations={show(words)} is one string; give a list of them, [{show(words)}]")
    check_several(words, "abbreviations", "words, such as ['Anm.'], or leave it out")
    found = set()
    for word in words:
        if not isinstance(word, str) or not word.strip(".") or any(map(str.isspace, word)):
            raise InputError(f"abbreviations holds {show(word)}; give single words, such as 'Anm.'")
        found.add(word.removesuffix(".").lower())
    return frozenset(found)


def goes_on(before: str, after: str, language: str, more: Collection[str] = ()) -> bool:
    """Whether a sentence continues between `before`, which ends with a full stop, and `after`.

    Args:
        before: the text up to the position; the last hundred characters suffice.
        after: the text that follows; the next forty suffice.
        language: an ISO 639-1 code.
        more: further abbreviations that never end a sentence, lower-case and without the last full stop.
    """
    table = abbreviations_of(language)
    plain = before[before.rfind(" ") + 1 :].removesuffix(".")
    if len(plain) > 1 and plain.isalpha() and (key := plain.lower()) not in table.known and key not in more:
        # Nearly every sentence ends with such a word; but "Louis XIV. was" continues.
        return plain.isupper() and after[:1].islower() and _ROMAN.fullmatch(plain) is not None
    if reference := _REFERENCE.search(before):  # "Larsen et al. [12] found", but not "it fell. [12] Then"
        inner = before[: reference.start()]
        return inner.endswith(".") and _is_abbreviation(inner, table, more) and not _starts(after, table)
    last = _LAST.search(before)
    following = _NEXT.match(after)
    if last is None or following is None:
        return False
    word, first = last["word"], following["word"][:1]
    name = word.lower().rsplit("'", 1)[-1].rsplit("’", 1)[-1]
    if first.islower() and ((last["close"][:1] in (")", "]") and last["close"]) or "." in word):
        return True  # "(n = 3 per grp.) were", "t.ex. ett"
    if last["close"]:
        return False
    if name not in more and (_is_word(word, following, after, table) or _is_glued(before, last)):
        return False
    if name in more or name in table.never:
        if len(word) > 1 and word.isupper() and _starts(after, table):  # an acronym, "MLM-based AM. None"
            return False
        # A single capital letter is usually an initial, for which the library decides; "M." is a title in French.
        return not (len(word) == 1 and word.isupper() and word != "M") or first.islower()
    if name in table.open:
        if _NUMBERED.match(after):
            return True
        return not _starts(after, table) and not (name == "etc" and first.isupper())
    if name in table.units:
        return first.islower() or first.isdigit()
    if name in table.numbered and _is_numbered(following, after):
        return True
    if table.ordinals and word.isdigit() and len(word) <= 2:
        earlier = _LAST.search(before[: last.start()])
        if earlier is not None and earlier["word"].lower() in table.known:
            return False  # "Nr. 5.", "obr. 3."
        return not _starts(after, table)
    if len(word) == 1 and word.isupper() and first.islower():  # "av. J.-C. à Rome"
        return True
    if len(word) == 1 and word.isupper() and first.isdigit():  # "Fed. R. Civ. P. 12(b)"
        return _LAST.search(before[: last.start()]) is not None
    return False


def _is_word(word: str, following: re.Match[str], after: str, table: Abbreviations) -> bool:
    """Whether an abbreviation in small letters is an ordinary word or ends a sentence, by what follows it."""
    if not word.islower() or not following["word"][:1].isupper() or _is_numbered(following, after):
        return False
    if word in table.words:
        return True
    closes = bool(table.leading) and word in table.never - table.leading
    return closes and len(following["word"]) > 1 and _starts(after, table)


def _is_glued(before: str, last: re.Match[str]) -> bool:
    """Whether a single small letter is part of a formula: "(a, b)c.", "w_i,j."."""
    return len(last["word"]) == 1 and last["word"].islower() and before[max(0, last.start() - 1)] in ",)]}@_|"


_SMALL = re.compile(r"\.\s+(?![A-Z\W])([^\W\d_]+)\b(?![.'’-]\w)")
_SHORT = re.compile(r"(?<![\w.'’-])[^\W\d_]{1,4}$")
_CAPITAL = re.compile(r"[^\W\d_]{2}[.!?][)\"'”’»]*\s+[(\"'“‘«]*[A-Z\u00c0-\u00de\u0410-\u042f]")


def goes_on_small(block: str, language: str) -> set[int]:
    """Returns the positions where a sentence continues after a short word and a full stop, because a function word in
    small letters follows: "The pop. of the city". They are the ends of the white space in between; empty for a text
    whose sentences begin with small letters, such as a chat."""
    table = abbreviations_of(language)
    if not table.starters:
        return set()
    small = table.starters | table.inner
    found = [
        match
        for match in _SMALL.finditer(block)
        if match[1] in small and _SHORT.search(block, max(0, match.start() - 6), match.start())
    ]
    if not found or not block.lstrip("(\"'“‘«„ \n\t*_-#")[:1].isupper():
        return set()
    most = max(1, sum(1 for _ in _CAPITAL.finditer(block)) // 4)
    return {match.start(1) for match in found} if len(found) <= most else set()


_MAY_HIDE = re.compile(r"(?<=\w)\.\s+(?=[A-Z\u00c0-\u00de\"'“‘(])")
_WHOLE = re.compile(r"[^(]|\([A-Z][^()\n]*[.!?]\)")
_AND_SO_ON = frozenset({"etc", "usw", "osv", "enz", "ecc"})


def unseen_ends(block: str, language: str) -> Iterator[int]:
    """Yields ends of sentences that look like an abbreviation or an initial: "etc. I", "said no. She", "vitamin C.
    Lemons"."""
    table = abbreviations_of(language)
    for match in _MAY_HIDE.finditer(block):
        stop = match.start()
        words = block[max(0, stop - 40) : stop].split()
        word, after = words[-1].lstrip("(\"'“"), block[match.end() : match.end() + 20]
        if len(word) == 1 and word.isupper():
            if len(words) > 1 and words[-2].lower() in table.lettered and after[1:2] != ".":
                yield match.end()
        elif (
            ((name := word.lower()) in _AND_SO_ON and _WHOLE.match(block, match.end()))
            or name in table.units
            or (name in table.open and _starts(after, table) and not _NUMBERED.match(after))
            or (name in table.numbered and word.islower() and _starts(after, table))
            or (len(word) == 1 and word.islower() and words[:-1] and words[-2][-1].isdigit() and _starts(after, table))
        ):
            yield match.end()


_QUOTED = re.compile(r"[。！？!?…][”」』’]$")
_PARTICLES = (*"とのをにがはもでへや", "って", "など")
_INTRODUCED = re.compile(r"[：:][“「『‘][^“「『‘]*$")
_SPEECH = re.compile(r"[^。！？，“「]{0,6}[说說道问問喊叫答嚷]")


def goes_on_unspaced(before: str, after: str) -> bool:
    """Whether a Chinese or Japanese sentence continues without a space:

    `“好。”他说。`, `「はい。」と言った。`, `モーニング娘。の`.
    """
    if _QUOTED.search(before):
        if _INTRODUCED.search(before):  # `他说：“好。”` is a whole sentence
            return False
        return after.startswith(_PARTICLES) or _SPEECH.match(after) is not None
    return before.endswith("。") and after[:1] in ("の", "を")


def _is_abbreviation(before: str, table: Abbreviations, more: Collection[str]) -> bool:
    last = _LAST.search(before)
    return last is not None and last["word"].lower() in table.never | table.open | frozenset(more)


def _starts(after: str, table: Abbreviations) -> bool:
    """Whether the following word is capitalised and usually begins sentences."""
    following = _NEXT.match(after)
    assert following is not None, "the pattern matches an empty text"
    return following["word"][:1].isupper() and following["word"].lower() in table.starters


def _is_numbered(following: re.Match[str], after: str) -> bool:
    """Whether a number, a Roman numeral, a bracketed number or a single capital letter follows."""
    word = following["word"]
    if following["open"][:1] in ("(", "["):
        return word[:1].isdigit()
    single = word[:1].isupper() and (word[1:].isdigit() or (len(word) == 1 and word not in "AI"))
    return word[:1].isdigit() or after.lstrip()[:1] in ("§", "#") or single or bool(word and _ROMAN.fullmatch(word))
