"""Scores along a document."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib", reason="pictures are drawn with matplotlib, of the 'pictures' extra")

from longspan_documents.inference.results import ScoredSentence
from longspan_documents.pictures.strips import scored_document


def test_what_stands_between_two_pieces_has_no_score() -> None:
    pieces = [ScoredSentence("A sentence.", 0, 10, 0.5), ScoredSentence("Behind code.", 30, 40, 1.0)]
    _, axes = scored_document(pieces, [], below=0.0, height=3.0)
    (area,) = axes.collections
    (path,) = area.get_paths()
    inside = [
        (place, score) for place in (5, 12, 20, 28, 35) for score in (0.25, 0.75) if path.contains_point((place, score))
    ]
    assert inside == [(5, 0.25), (35, 0.25), (35, 0.75)]
