"""Pictures of clusters show the masks of real modules."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from cluster_pictures import draw_routing, draw_sorted
from matplotlib.colors import to_rgb

from longspan.pictures.patterns import PAPER


def inked(axes) -> np.ndarray:
    """Which cells of a panel are not paper."""
    return (np.asarray(axes.images[0].get_array()) != to_rgb(PAPER)).any(-1)


def test_heads_look_where_they_may():
    local, back, both, balanced = (inked(axes) for axes in draw_routing(30).axes)
    place = np.arange(30)
    offset = place - place[:, None]
    assert ((offset <= 0) & (offset >= -4) == local).all()
    assert not back[offset > 0].any()
    assert both[offset > 0].any()
    assert (both & (offset < 0)).sum() == (back & (offset < 0)).sum()
    assert balanced.any()


def test_sorted_chunks_are_squares_on_the_diagonal():
    as_sorted, as_written = (inked(axes) for axes in draw_sorted(30).axes)
    place = np.arange(30) // 8
    assert ((place == place[:, None]) == as_sorted).all()
    assert as_written.sum() == as_sorted.sum()
    assert (as_written != as_sorted).any()


def test_letters_tell_the_clusters_without_colours():
    local, *others = draw_routing(30).axes
    as_sorted, as_written = draw_sorted(30).axes
    assert not local.texts
    assert [text.get_text() for text in as_sorted.texts] == ["A", "B", "C"]
    for axes in (*others, as_written):
        image = np.asarray(axes.images[0].get_array())
        colours = {"ABC".index(text.get_text()): text.get_color() for text in axes.texts}
        assert len(axes.texts) > len(colours) == 3
        for text in axes.texts:
            row = image[round(text.get_position()[1])]
            inks = {tuple(cell) for cell in row if tuple(cell) != to_rgb(PAPER)}
            assert inks == {to_rgb(text.get_color())}
