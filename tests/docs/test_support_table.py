"""The page of the table of support: every feature and mechanism once, and the file as it is made."""

from __future__ import annotations

from pathlib import Path

from support_table import support_page

from longspan.attention import MECHANISMS
from longspan.attention.support import FEATURES
from longspan.stacks import STACKS
from longspan.stacks.base import STACK_FEATURES

PAGE = Path(__file__).parents[2] / "packages/longspan/docs/mechanisms/support.md"


def test_every_feature_answers_for_every_mechanism_once():
    _, *sections = support_page().split("\n## ")
    assert len(sections) == len(FEATURES) + 1
    for section in sections[:-1]:
        for name in MECHANISMS:
            assert section.count(f"[`{name}`]({name}.md)") == 1, section


def test_reasons_are_those_of_the_configurations():
    sections = {section.partition("\n")[0]: section for section in support_page().split("\n## ")}
    assert "| [`etc`](etc.md) | yes |" in sections["Structure"]
    assert "[`bigbird`](bigbird.md) | no: all tokens see the last block |" in sections["Causal"]
    assert "with `random_blocks=0`; otherwise random blocks are drawn from whole rows" in sections["Sequence parallel"]
    assert "| [`full`](full.md), " in sections["Sequence parallel"]
    assert (
        "[`synthesizer`](synthesizer.md) | no: nothing bounds how far a token sees |" in sections["Sequence parallel"]
    )
    assert "bidirectional: yes; causal: no: they would see the future |" in sections["Global tokens"]


def test_stacks_name_features_that_there_are():
    assert all(kind.supports <= set(STACK_FEATURES) for kind in STACKS.values())
    assert "| `ranges` |" in support_page()


def test_the_page_is_as_it_is_made():
    assert PAGE.read_text(encoding="utf-8") == support_page(), "run python docs/figures.py"
