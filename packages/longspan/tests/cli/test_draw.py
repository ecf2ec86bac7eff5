"""`longspan draw`: the picture exists, its counts are those of the dense mask, and mistakes get one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from longspan.cli import main
from longspan.patterns import parse
from longspan.patterns.cells import read_mask
from longspan.pictures.patterns import draw_pattern

PATTERNS = [
    "full",
    "causal",
    "window(5)",
    "window(3, 0, 2) | first(2)",
    "blocks(7) | strided(11)",
    "causal & (fixed(8, 2) | window(4))",
    "window(2) | random_blocks(4, 2, 1) | first(1)",
]


def texts(figure) -> str:
    return "\n".join(text.get_text() for text in figure.texts)


@pytest.mark.parametrize("cells", [8, 64])
@pytest.mark.parametrize("tokens", [1, 13, 61])
@pytest.mark.parametrize("text", PATTERNS)
def test_cells_sum_the_dense_mask(text: str, tokens: int, cells: int) -> None:
    pattern = parse(text)
    mask = read_mask([pattern], tokens, cells=cells)
    dense = pattern.dense(tokens)
    assert mask.visible == int(dense.sum())
    for row in range(mask.shares.shape[1]):
        for column in range(mask.shares.shape[2]):
            block = dense[row * mask.cell : (row + 1) * mask.cell, column * mask.cell : (column + 1) * mask.cell]
            assert mask.shares[0, row, column].item() == pytest.approx(block.double().mean().item())


@pytest.mark.parametrize("cells", [8, 64])
def test_a_pair_is_counted_for_the_first_part_that_shows_it(cells: int) -> None:
    parts = [parse(text) for text in ("window(3)", "first(2)", "random_blocks(4, 2, 0)")]
    mask = read_mask(parts, 53, cells=cells)
    whole = parse("window(3) | first(2) | random_blocks(4, 2, 0)").dense(53)
    assert mask.visible == int(whole.sum())
    alone = read_mask([parts[0]], 53, cells=cells)
    torch.testing.assert_close(mask.shares[0], alone.shares[0])
    assert float(mask.shares.sum(0).max()) <= 1


def test_pools_are_columns_of_their_own() -> None:
    mask = read_mask([parse("pooled_window(8, 8, 5, 4)")], 41, cells=64)
    assert (mask.queries, mask.keys) == (41, 11)
    assert mask.visible == int(parse("pooled_window(8, 8, 5, 4)").dense(41, 11).sum())


def test_title_states_the_count_and_the_share() -> None:
    figure = draw_pattern(parse("window(128) | first(1)"), 512)
    visible = parse("window(128) | first(1)").count_visible(512)
    assert f"512 tokens: {visible:,} of 262,144 pairs visible" in texts(figure)
    assert f"{visible / 512**2:.2%} of full attention" in texts(figure)
    assert "first(1)" in texts(figure)


def test_many_tokens_share_cells_and_the_title_says_so() -> None:
    figure = draw_pattern(parse("window(16)"), 5000)
    assert "a cell is 10 × 10 tokens" in texts(figure)
    assert f"{parse('window(16)').count_visible(5000):,} of 25,000,000" in texts(figure)


def test_heads_get_a_panel_each() -> None:
    pattern = parse("per_head(window(4), window(4, 4, 2), causal, strided(3), full)")
    figure = draw_pattern(pattern, 32, heads=True)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert len(titles) == 5
    assert titles[2].startswith("2: causal")
    assert f"{pattern.count_visible(32):,} of {5 * 32 * 32:,} pairs" in texts(figure)


def test_heads_without_panels_share_one_picture() -> None:
    pattern = parse("per_head(window(4), causal)")
    figure = draw_pattern(pattern, 32)
    union = int(pattern.dense(32).any(0).sum())
    assert len(figure.axes) == 1
    assert f"{union:,} of 1,024 pairs visible by some head" in texts(figure)
    assert "head 1: causal" in texts(figure)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_command_writes_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str) -> None:
    out = tmp_path / f"pattern.{ending}"
    out.write_text("old")
    assert main(["draw", "window(8) | first(1)", "--tokens", "64", "--out", str(out)]) == 0
    assert out.stat().st_size > 1000
    assert str(out) in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
