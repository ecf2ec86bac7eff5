"""The picture of learned spans, and the command that draws it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from longspan.cli import main
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.pictures.spans import draw_spans, learned_spans

SIZES = {"vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}


def model_of(**options) -> LongspanForCausalLM:
    spec = {"mechanism": "adaptive_span", "span_tokens": 64, **options}
    model = LongspanForCausalLM(
        LongspanConfig(attention=spec, position_embedding="none", intermediate_size=16, **SIZES)
    )
    for layer, shares in zip(model.decoder.layers, ([0.0, 0.25, 1.0], [0.5, 0.125, 0.0]), strict=True):
        if not options:
            layer.attention.span_share.data.copy_(torch.tensor(shares))
    return model


def test_a_bar_for_each_head_in_rising_order() -> None:
    figure = draw_spans(model_of())
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == [1, 16, 64, 1, 8, 32]  # a span of 0 stands on the axis, which begins at 1
    assert "2 layers, 6 heads: mean span 20 tokens, longest 64" in figure.texts[0].get_text()
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0", "1"]


def test_spans_that_depend_on_the_token_are_refused() -> None:
    with pytest.raises(InputError, match="no head that learns a span"):
        learned_spans(model_of(dynamic=True))


def test_the_command_draws_a_folder(tmp_path: Path, capsys) -> None:
    model_of().save_pretrained(tmp_path / "model")
    out = tmp_path / "spans.png"
    assert main(["draw", "--model", str(tmp_path / "model"), "--out", str(out)]) == 0
    assert out.stat().st_size > 1000
    assert f"wrote {out}" in capsys.readouterr().out
    for arguments in (["draw"], ["draw", "full", "--model", str(tmp_path / "model")]):
        assert main(arguments) != 0
        assert "takes a pattern or --model FOLDER" in capsys.readouterr().err
