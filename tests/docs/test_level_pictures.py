"""Pictures of two levels: what they state is what the masks say, and a second drawing has the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from level_pictures import MAX_TOKENS, draw_levels, draw_more_levels, draw_pools, draw_token

from longspan.attention import PoolingformerConfig
from longspan.errors import InputError
from longspan.patterns import PooledWindow, Window
from longspan.pictures.patterns import save_picture

SMALL = PoolingformerConfig(left_tokens=4, right_tokens=4, pooled_left_tokens=16, pooled_right_tokens=16)


def test_levels_state_the_scores_per_token() -> None:
    titles = [text.get_text() for axes in draw_levels(SMALL, 53).axes for text in axes.texts]
    near = int(Window(4, 4).dense(53).sum()) / 53
    pools = int(PooledWindow(16, 16, 5, 4).dense(53, 14).sum()) / 53
    assert titles[0] == f"{near:.1f} scores per token"
    assert titles[1] == f"{pools:.1f} scores per token"
    assert titles[3] == "tokens it depends on"


def test_a_tokens_picture_counts_what_it_sees() -> None:
    """Token 27: 9 tokens; shared centres 16…40 (7); own centres 13…41 (8); 14 − 4 … 42 + 4 behind (37)."""
    figure = draw_token(SMALL, tokens=57, token=27)
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert labels == [
        "token 27 looks",
        "level 1: 9 tokens",
        'level 2, "shared":\n7 pools',
        'level 2, "per_query":\n8 pools',
        "the layer's input:\n37 tokens",
    ]


def test_a_picture_of_more_levels_counts_what_each_form_sees() -> None:
    """Token 27 with windows of 5 and 11, pools of 3 by 2: centres 18…36 and 18…26; 15 more tokens behind the first."""
    first, second = {"left_tokens": 5, "right_tokens": 5}, {"left_tokens": 11, "right_tokens": 11}
    config = PoolingformerConfig(levels=[first, {**second, "kernel": 3, "stride": 2}])
    labels = [text.get_text() for text in draw_more_levels(config, tokens=57, token=27).axes[0].texts]
    assert labels == [
        "token 27 looks",
        "level 1:\n11 tokens",
        "level 2:\n10 pools",
        "the layer's input:\n31 tokens",
        "level 1, back only:\n6 tokens",
        "level 2, back only:\n5 pools",
        "the layer's input:\n16 tokens",
    ]


def test_shares_of_the_mean_are_written_in_per_cent() -> None:
    """The first and the last pool of 13 tokens have three tokens inside, the others five."""
    mean, ldconv, largest = draw_pools(SMALL, tokens=13).axes
    assert [text.get_text() for text in mean.texts] == ["33"] * 3 + ["20"] * 10 + ["33"] * 3
    for axes in (ldconv, largest):
        rows: dict[float, float] = {}
        for text in axes.texts:
            row = text.get_position()[1]
            rows[row] = rows.get(row, 0) + float(text.get_text())
        assert all(abs(total - 100) <= 3 for total in rows.values()), rows


def test_the_same_bytes_twice(tmp_path: Path) -> None:
    for name in ("one.png", "two.png"):
        save_picture(draw_pools(SMALL, tokens=13), tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


@pytest.mark.parametrize("tokens", [0, MAX_TOKENS + 1])
def test_too_many_tokens_are_refused(tokens: int) -> None:
    with pytest.raises(InputError, match=f"tokens={tokens} cannot be told apart"):
        draw_levels(SMALL, tokens)
    with pytest.raises(InputError, match=f"tokens={tokens} cannot be told apart"):
        draw_pools(SMALL, tokens=tokens)


def test_a_token_outside_the_text_is_refused() -> None:
    with pytest.raises(InputError, match="token=57"):
        draw_token(SMALL, tokens=57, token=57)
