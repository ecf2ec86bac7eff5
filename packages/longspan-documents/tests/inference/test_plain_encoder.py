"""The bundled encoder in NumPy: the vectors that PyTorch gives, and its parts against PyTorch's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch

from longspan.errors import InputError
from longspan.ops.tiles.pooling import pool_reference
from longspan_documents.gelu import gelu
from longspan_documents.inference.encoders import BUNDLED, bundled_encoder
from longspan_documents.inference.plain_encoder import (
    LONGEST,
    PlainEncoder,
    attend,
    attend_near,
    normed,
    plain_encoder,
    pooled,
)

QUESTIONS = ("Who planted the roses?", "When?", "", " \n", "how many carps are in the pond of 1934 ?", "?", "x" * 300)
PROSE = " ".join(topics.values()).split(". ")


def test_questions_have_the_vectors_that_pytorch_gives() -> None:
    expected = bundled_encoder().embed(QUESTIONS)
    found = plain_encoder().embed(QUESTIONS)
    assert found.dtype == expected.dtype
    assert found == pytest.approx(expected, abs=2e-6)
    assert not found[2:4].any()
    assert plain_encoder().dimensions == expected.shape[1]


@pytest.mark.parametrize("sentences", [0, 1, 2, 5, 11, 60])
def test_a_text_has_the_vectors_that_pytorch_gives(sentences: int) -> None:
    """Eleven sentences reach far beyond the window of 32 tokens, and that of 128 in pools."""
    texts, firsts = PROSE[:sentences], list(range(0, sentences, 5))
    expected = bundled_encoder().embed_document(texts, firsts)
    found, tokens = plain_encoder().read_document(texts, firsts)
    assert found == pytest.approx(expected, abs=2e-6)
    assert tokens == bundled_encoder().read_document(texts)[1]
    if sentences == 11:
        assert 800 < tokens < LONGEST


def test_a_long_text_goes_through_pytorch() -> None:
    texts = PROSE[:150]
    found, tokens = plain_encoder().read_document(texts)
    assert tokens > LONGEST
    assert (found == bundled_encoder().embed_document(texts)).all()


@pytest.mark.parametrize(("length", "stride", "first", "last"), [(301, 1, -32, 32), (301, 4, -126, 126), (5, 4, -3, 0)])
def test_attention_in_blocks_is_that_of_all_pairs(length: int, stride: int, first: int, last: int) -> None:
    random = np.random.default_rng(0)
    query = random.normal(size=(2, length, 7))
    key, value = random.normal(size=(2, 2, -(-length // stride), 7))
    offsets = stride * np.arange(key.shape[1]) - np.arange(length)[:, None]
    dense = attend(query, key, value, (offsets >= first) & (offsets <= last))
    assert attend_near(query, key, value, first, last, stride) == pytest.approx(dense, abs=1e-12)


def test_a_query_far_from_every_key_gathers_nothing() -> None:
    states = np.ones((1, 200, 3))
    assert not attend_near(states, states, states, 500, 600).any()


def test_parts_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    hidden = torch.linspace(-9, 9, 4001)
    assert gelu(hidden.numpy()) == pytest.approx(torch.nn.functional.gelu(hidden).numpy(), abs=1e-6, rel=1e-6)
    exact = torch.nn.functional.gelu(hidden.double()).numpy()
    assert np.abs(gelu(hidden.double().numpy()) - exact).max() < 1e-8
    states, weight = torch.randn(1, 3, 23, 7), torch.randn(3, 5, 7)
    expected = pool_reference(states, kernel=5, stride=4, pooling="ldconv", weight=weight)[0].numpy()
    assert pooled(states[0].numpy(), weight.numpy(), 4) == pytest.approx(expected, abs=1e-6)
    expected = torch.nn.functional.layer_norm(states, (7,), weight[0, 0], weight[0, 1], 1e-3)
    norm = normed(states.numpy(), weight[0, 0].numpy(), weight[0, 1].numpy(), 1e-3)
    assert norm == pytest.approx(expected.numpy(), abs=1e-5)


def test_a_query_that_sees_nothing_gathers_nothing() -> None:
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 2, 5, 7).unbind(0)
    visible = torch.rand(5, 5) > 0.4
    visible[3] = False
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
    found = attend(*(each.numpy() for each in (query, key, value)), visible.numpy())
    rows = [0, 1, 2, 4]
    assert visible[rows].any(1).all()
    assert found[:, rows] == pytest.approx(expected[:, rows].numpy(), abs=1e-6)
    assert not found[:, 3].any()


@pytest.mark.parametrize("change", [{"normalization": "post"}, {"sinusoids": "paper"}, {"attention": []}])
def test_another_network_is_refused(change: dict, tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    shutil.copytree(BUNDLED, folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(InputError, match="; install the package again"):
        PlainEncoder(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="; install the package again"):
        PlainEncoder(folder)
