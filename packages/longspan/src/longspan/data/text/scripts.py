"""Superscripts and subscripts as plain text: footnote marks are removed, exponents and indices are kept.

Readers wrap such letters in `RAISED` or `LOWERED` and `LEVEL`; `with_scripts` replaces them by plain characters. The
mark of a note after a word, a sum of money or an end mark is removed, like those of Markdown and Word. An exponent gets
a "^": "10^6", "m^2", "x^−1"; superscript digits are not used, because NFKC normalisation, which many tokenizers apply,
turns 10⁶ into 106. Subscript digits become Unicode subscripts, "H₂O", which NFKC turns into plain digits, and subscript
letters get a "_". Superscript endings of words ("5th", "Mme") are joined.
"""

from __future__ import annotations

import re
from collections.abc import Collection

RAISED, LOWERED, LEVEL = map(chr, range(0xFDD0, 0xFDD3))
"""Characters that occur in no text, before superscripts, before subscripts, and after both."""

_LETTERS = f"[^{RAISED}{LOWERED}{LEVEL}]*"
_SCRIPT = re.compile(
    "|".join(f"{up}{_LETTERS}(?:{LEVEL}{up}{_LETTERS})*{LEVEL}?" for up in (RAISED, LOWERED)) + f"|{LEVEL}"
)
_MARKS = str.maketrans("", "", RAISED + LOWERED + LEVEL)
_MARK = r"(?:\d{1,3}|[a-z]|[*†‡§¶‖∗#])"
_NOTE = re.compile(rf"[\[(]?{_MARK}(?:\s?[,;–-]?\s?{_MARK})*[\])]?,?")
_CITED = re.compile(r"\[(?:[\d,–\s-]{1,20}|[a-z]|(?:note|nb|fn)\s?\d{1,3})\]", re.IGNORECASE)
_SIGNED = re.compile(r"[+\-−–]\s?\w*|\d{1,2}[+\-−–]|\w\s?[+\-−–]\s?\w")
_WORD = re.compile(r"[^\W\d_₀-₉]+$")
_NUMBER = re.compile(r"(?P<money>[$€£¥₹₩₽]\s?|\b(?:USD|EUR|GBP|CHF|Rs\.?|kr\.?)\s)?(?P<digits>\d(?:[\d.,]*\d)?)$")
_BRACKETS = {")": "(", "]": "[", "}": "{"}
_UNITS_TEXT = """
m cm mm km dm nm µm μm pm hm in ft yd mi s ms min h hr kg g mg L l dL mL Hz kHz MHz GHz J kJ W kW N Pa kPa V A K mol
cd lm eV keV MeV GeV TeV pc kpc Mpc Gpc arcsec arcmin deg rad sr px dpi inch inches feet metres meters
"""
_UNITS = frozenset(_UNITS_TEXT.split())
_FUNCTIONS_TEXT = """
sin cos tan cot sec csc sinh cosh tanh log ln lg exp det dim adj eta chi rho phi psi
"""
_FUNCTIONS = frozenset(_FUNCTIONS_TEXT.split())
_CONSONANTS = re.compile(r"[b-df-hj-np-tv-z]{2,3}")
_SUBSCRIPTS = str.maketrans("0123456789+-−=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎")
_ENDINGS = frozenset({"st", "nd", "rd", "th", "o", "a", "e", "er", "re", "r", "s", "º", "ª", "d", "t", "h"})


def with_scripts(text: str, notes: Collection[str] = ()) -> str:
    """Replaces marked superscripts and subscripts by plain characters.

    Args:
        text: a line or a paragraph, from its beginning.
        notes: the marks of the notes known to be near the text.
    """
    if not (RAISED in text or LOWERED in text or LEVEL in text):  # the usual case
        return text
    pieces: list[str] = []
    done = 0
    for match in _SCRIPT.finditer(text):
        pieces.append(text[done : match.start()])
        done = match.end()
        run = match[0].translate(_MARKS).strip()
        if not run:
            continue
        line = "".join(pieces)[-60:]
        before = line.rstrip()
        after = text[done : done + 1]
        if not before or "\ue000" <= before[-1] <= "\uf8ff" or (line != before and after.isalnum()):
            begins = _NOTE.fullmatch(run) and after.isalpha() and not before and not run.isalpha()
            pieces.append(
                f"{run} " if begins else run
            )  # the mark at the beginning of a note, or the mass number of an isotope
            continue
        placed = _raised(before, run, after, notes) if match[0][0] == RAISED else _lowered(before, run)
        if placed != run and before and line != before:  # a space between an exponent and its base
            pieces[:] = ["".join(pieces).rstrip()]
        pieces.append(placed)
    pieces.append(text[done:])
    return "".join(pieces)


def _raised(before: str, run: str, after: str, notes: Collection[str]) -> str:
    """Returns the plain text of a superscript after `before`."""
    if after in {"/", "⁄"} and run.isdigit():  # a fraction
        return f" {run}" if before[-1].isdigit() else run
    if _CITED.fullmatch(run):
        return ""
    if _SIGNED.fullmatch(run) and not _NOTE.fullmatch(run):
        return f"^{run}" if before[-1].isalnum() or before[-1] in ")]}₀₁₂₃₄₅₆₇₈₉" else run
    if run.isalpha():
        return _raised_letters(before, run, after)
    if not _NOTE.fullmatch(run):
        return run
    return "" if _is_mark(before, run, notes) else f"^{run}"


def _raised_letters(before: str, run: str, after: str) -> str:
    if after.isalpha() or not before[-1].isalnum() or not run.isascii():
        return run  # the A of LaTeX, ™ and so on
    word = _WORD.search(before)
    letter = word[0] if word is not None and len(word[0]) == 1 else ""
    if len(run) > 1:
        return f"^{run}" if letter.islower() else run
    return run if run in _ENDINGS and (before[-1].isdigit() or letter.isupper()) else f"^{run}"


def _is_mark(before: str, run: str, notes: Collection[str]) -> bool:
    """Whether superscript digits or signs are footnote marks instead of an exponent."""
    last = before[-1]
    if last in _BRACKETS:
        inside = _in_brackets(before)
        return run in notes if inside is None else re.search(r"[^\W\d_]{3}", inside) is not None
    if word := _WORD.search(before):
        name = word[0]
        if len(name) == 1 or name in _FUNCTIONS:
            return False
        power = run.isdigit() and int(run) < 5
        return not (power and (name in _UNITS or _CONSONANTS.fullmatch(name)))
    if number := _NUMBER.search(before):
        known = run in notes and len(number["digits"]) > 2
        return not run.isdigit() or number["money"] is not None or known
    return last not in "=+−<>≤≥∑∏∫√∂∇∞|" and last not in "₀₁₂₃₄₅₆₇₈₉^_"


def _in_brackets(before: str) -> str | None:
    """Returns the content of the brackets at the end of a text; None if they do not open in it."""
    depth = 0
    for place in range(len(before) - 1, -1, -1):
        depth += (before[place] == before[-1]) - (before[place] == _BRACKETS[before[-1]])
        if depth == 0:
            return before[place + 1 : -1]
    return None


def _lowered(before: str, run: str) -> str:
    """Returns the plain text of a subscript after `before`."""
    if not before or not (before[-1].isalnum() or before[-1] in ")]}"):
        return run
    if run.translate(_SUBSCRIPTS) != run and not any(map(str.isalpha, run)):
        return run.translate(_SUBSCRIPTS) if before[-1].isalpha() or before[-1] in ")]}" else f"_{run}"
    return f"_{run}" if run[0].isalnum() else run
