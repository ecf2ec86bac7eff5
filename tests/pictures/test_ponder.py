"""Ponder times of a text: of every kind of model, and a page on which everything is there and escaped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import longspan
from longspan.errors import InputError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForTokenClassification,
    LongspanModel,
)
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.inference.ponder import Piece, Pondered
from longspan_documents.pictures.shaded import ponder_page, shade_of_steps

TEXT = "Ada wrote <b>notes</b>.\n\nShe \u202eread & thought."
ACT = {"stack": "universal", "halting": "adaptive"}


def build(kind, **changes):
    fields = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
    fields |= {"vocab_size": 261, "attention": "full", "stack": ACT, "max_position_embeddings": 80}
    return kind(LongspanConfig(**fields | changes))


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([TEXT], 261)


@pytest.mark.parametrize(
    "kind", [LongspanModel, LongspanForTokenClassification, LongspanForCausalLM, LongspanForConditionalGeneration]
)
def test_times_are_those_of_the_model(kind, tokenizer):
    model = build(kind, decoder_layers=3 if kind is LongspanForConditionalGeneration else 0)
    found = longspan.ponder(model, TEXT, tokenizer=tokenizer)
    assert model.training
    assert "".join(TEXT[piece.start : piece.end] for piece in found.pieces if piece.end - piece.start == 1)
    encoded = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        output = model.eval()(
            **({"labels": encoded["input_ids"]} if kind is LongspanForConditionalGeneration else {}),
            input_ids=encoded["input_ids"],
        )
    times = output.get("encoder_ponder_times", output.get("ponder_times"))
    if times is not None:  # a head gives what it predicts
        assert [piece.steps for piece in found.pieces] == times[0, 1:-1].int().tolist()
    assert found.most == 3
    assert found.mean == pytest.approx(sum(piece.steps for piece in found.pieces) / len(found.pieces))


def test_a_folder_is_read_and_its_page_is_written(tmp_path: Path, tokenizer):
    build(LongspanModel).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    found = longspan.ponder(tmp_path / "model", TEXT, html=tmp_path / "page.html", title="a <title>")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page == ponder_page(found, "a <title>")
    assert "a &lt;title&gt;" in page
    assert "<b>" not in page
    assert "\u202e" not in page


def test_every_word_is_there_with_its_shade():
    text = "one two\nthree"
    pieces = tuple(Piece(start=start, end=end, steps=n) for n, (start, end) in enumerate([(0, 3), (4, 7), (8, 13)], 1))
    page = ponder_page(Pondered(text=text, pieces=pieces, most=3))
    marks = re.findall(r'<span class="s(\d)" title="([^"]+)">([^<]*)</span>', page)
    assert marks == [("0", "1 step", "one"), ("4", "2 steps", "two"), ("9", "3 steps", "three")]
    assert "2.00 steps on average, at most 3" in page
    assert shade_of_steps(1, 1) == 0


def test_models_that_do_not_ponder_and_lost_tokenizers_are_named(tokenizer, tmp_path: Path):
    with pytest.raises(InputError, match="model has the stack 'sequential', in which every token takes every step"):
        longspan.ponder(build(LongspanModel, stack="sequential"), TEXT, tokenizer=tokenizer)
    with pytest.raises(InputError, match="tokenizer is NoneType; give the model's own"):
        longspan.ponder(build(LongspanModel), TEXT)
    with pytest.raises(InputError, match="is no name of a page"):
        longspan.ponder(build(LongspanModel), TEXT, tokenizer=tokenizer, html=tmp_path / "page.txt")
