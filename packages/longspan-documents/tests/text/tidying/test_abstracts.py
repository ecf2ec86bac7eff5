"""The document's own abstract, and sections that are only called like one."""

from __future__ import annotations

import pytest

from longspan_documents.text.reading import document_of, sentences_of

ABSTRACT = (
    "We measure how slowly snails move, with one camera and no light at all.\nOn three data sets the error is halved."
)
PROSE = "The snail went on for a long while, and nobody saw it on its way to the wall.\nIt was slow.\n\n"
FIRST = "We measure how slowly snails move, with one camera and no light at all."
BODY = f"1 Introduction\n\n{PROSE * 12}"

FORMS = {
    "a heading": f"Abstract\n\n{ABSTRACT}\n\n{BODY}",
    "a numbered heading": f"I. EXECUTIVE SUMMARY\n\n{ABSTRACT}\n\n{BODY}",
    "right above": f"ABSTRACT\n{ABSTRACT}\n\n{BODY}",
    "a dash": f"Abstract—{ABSTRACT}\n\nKeywords: snails\n\n{BODY}",
    "a full stop": f"ABSTRACT. {ABSTRACT}\n\n{BODY}",
    "tl;dr": f"TL;DR: {ABSTRACT}\n\n{BODY}",
    "with a title": f"The Slow Snail\n\nAnn Author\n\nSummary\n\n{ABSTRACT}\n\n{BODY}",
    "in German": f"Zusammenfassung\n\n{ABSTRACT}\n\n{BODY}",
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    own = [sentence.text for sentence in sentences_of(document_of(FORMS[form])) if sentence.abstract]
    assert own == [FIRST, "On three data sets the error is halved."]


def test_parts_of_a_structured_abstract() -> None:
    text = f"Abstract\n\nBackground\n\n{ABSTRACT}\n\nResults\n\nAll snails were slow.\n\nKeywords: snails\n\n{BODY}"
    own = [sentence.text for sentence in sentences_of(document_of(text)) if sentence.abstract]
    assert own == [FIRST, "On three data sets the error is halved.", "All snails were slow."]


OTHERS = {
    "the end of a chapter": f"{BODY}Summary\n\n{ABSTRACT}\n\n2 The Wall\n\n{PROSE * 3}",
    "contents": f"# Snails\n\n- [Summary](#summary)\n- [Use](#use)\n\n{PROSE * 9}",
    "a word at the beginning": f"Summary judgment was granted to the snail, and the wall had to pay.\n\n{BODY}",
    "nothing else": f"Abstract\n\n{PROSE * 90}",
    "how a command is called": "NAME\n    snail - go slowly\n\n"
    "SYNOPSIS\n    snail [-s] [--wall WALL] FILE [-o OUTPUT] [-h]\n"
    f"    snail --list [--all] WALL [-o OUTPUT]\n\nDESCRIPTION\n    {PROSE}{BODY}",
    "features": f"# Snail\n\n{PROSE}## Highlights\n\n- One snail at a time\n- No light, no sound, no camera\n\n{BODY}",
    "a field": f"Name: snail\nSummary: a package for slow and steady progress on the walls of the garden\n\n{BODY}",
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_sections(case: str) -> None:
    assert not any(sentence.abstract for sentence in sentences_of(document_of(OTHERS[case])))
