"""Raised and lowered letters: which are marks of notes and which are exponents, in every kind of file."""

from __future__ import annotations

import re

import pytest

from longspan.data.text.scripts import LEVEL, LOWERED, RAISED, with_scripts


def marked(text: str) -> str:
    """A text with "^{…}" and "_{…}" as raised and lowered letters."""
    text = re.sub(r"\^\{([^}]*)\}", rf"{RAISED}\1{LEVEL}", text)
    return re.sub(r"_\{([^}]*)\}", rf"{LOWERED}\1{LEVEL}", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It cost $320^{1} in all.", "It cost $320 in all."),
        ("It cost 1,250 €^{4} in all.", "It cost 1,250 € in all."),
        ("The mayor agreed.^{2} The council did not.", "The mayor agreed. The council did not."),
        ("as was shown^{12,13}, and later^{[4]}", "as was shown, and later"),
        ("as was shown^{1}^{,}^{2} in it", "as was shown in it"),
        ("“It is done.”^{3} He left.", "“It is done.” He left."),
        ("(see the table above)^{2} it", "(see the table above) it"),
        ("a word ^{7}, and", "a word, and"),
        ("by A. Example^{1,2}* and B. Sample^{†}", "by A. Example* and B. Sample"),
        ("30 %^{4} of it", "30 % of it"),
        ("^{1}Without the tax", "1 Without the tax"),
        ("^{1} Without the tax", "1 Without the tax"),
    ],
)
def test_marks_of_notes_are_left_out(text: str, expected: str) -> None:
    assert with_scripts(marked(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10^{6} litres", "10^6 litres"),
        ("3.2 × 10^{−3} mol", "3.2 × 10^−3 mol"),
        ("an area of 5 km^{2}.", "an area of 5 km^2."),
        ("9.8 m s^{−2} and", "9.8 m s^−2 and"),
        ("E = mc^{2} and R^{2} = 0.9", "E = mc^2 and R^2 = 0.9"),
        ("((x − x_{0})/w)^{2} + (a + b)^{2}", "((x − x₀)/w)^2 + (a + b)^2"),
        ("x^{n} + y_{i}", "x^n + y_i"),
        ("2^{31} − 1 and 128^{3} voxels", "2^31 − 1 and 128^3 voxels"),
        ("H_{2}O and SO_{4}^{2−}", "H₂O and SO₄^2−"),
        ("the T_{max} of log_{10}^{2} x", "the T_max of log₁₀^2 x"),
        ("the ^{14}C date", "the 14C date"),
        ("1^{1}/_{2} cups", "1 1/2 cups"),
        ("in 1998^{3} it", "in 1998^3 it"),
    ],
)
def test_exponents_and_indices_stay(text: str, expected: str) -> None:
    assert with_scripts(marked(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on the 5^{th} of May", "on the 5th of May"),
        ("M^{me} Curie", "Mme Curie"),
        ("L^{A}TEX", "LATEX"),
        ("X^{®} is", "X® is"),
    ],
)
def test_raised_endings_are_joined(text: str, expected: str) -> None:
    assert with_scripts(marked(text)) == expected


def test_a_note_that_is_known_decides() -> None:
    assert with_scripts(marked("in 1998^{3} it"), {"3"}) == "in 1998 it"
    assert with_scripts(marked("10^{3} of them"), {"3"}) == "10^3 of them"
