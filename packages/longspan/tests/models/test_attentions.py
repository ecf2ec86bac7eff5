"""`output_attentions`: those of transformers' Longformer on the same weights, dense weights elsewhere, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LongformerConfig, LongformerForMaskedLM, LongformerModel

import longspan
from longspan import InputError, LongspanConfig
from longspan.attention.features import reported

SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 99,
}
IDS = torch.randint(5, 61, (3, 41), generator=torch.Generator().manual_seed(3))
MASK = (torch.arange(41) < torch.tensor([[41], [30], [9]])).long()
GLOBALS = torch.zeros_like(MASK)
GLOBALS[0, [0, 4, 17]] = 1
GLOBALS[1, [2]] = 1


def ours(attention: Any, **options: Any) -> Any:
    torch.manual_seed(1)
    config = LongspanConfig(vocab_size=61, attention=attention, init_std=0.3, **(SIZES | options))
    return longspan.LongspanModel(config).eval()


@pytest.mark.parametrize("head", [False, True], ids=["model", "head"])
def test_a_window_reports_what_transformers_longformer_does(head: bool) -> None:
    torch.manual_seed(0)
    options = SIZES | {"max_position_embeddings": 101, "initializer_range": 0.3}
    config = LongformerConfig(vocab_size=61, attention_window=[4, 8], pad_token_id=1, **options)
    theirs: Any = (LongformerForMaskedLM if head else LongformerModel)(config).eval()
    given = {"input_ids": IDS, "attention_mask": MASK, "output_attentions": True}
    mine = longspan.from_transformers(theirs).eval()
    for marked in (None, GLOBALS):
        with torch.no_grad():
            expected = theirs(**given, global_attention_mask=marked)
            found = mine(**given, global_attention_mask=marked)
        for window, local, other in zip((4, 8), found.attentions, expected.attentions, strict=True):
            assert local.shape == (3, 3, 41, (0 if marked is None else 3) + window + 1)
            assert_same(local, other)
        if marked is None:
            assert "global_attentions" not in found
            continue
        # Theirs are uniform in slots that a row does not use, and have rows of padding behind the text.
        used = (torch.arange(3) < marked.sum(1)[:, None])[:, None, None]
        for far, other in zip(found.global_attentions, expected.global_attentions, strict=True):
            assert far.shape == (3, 3, 41, 3)
            assert_same(far, (other * used)[:, :, :41])


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-4)


def spread(model: Any, local: Tensor, far: Tensor | None, marked: Tensor) -> Tensor:
    """The dense weights `(B, H, T, T)` that the two stand for, put together pair by pair."""
    attention = model.encoder.layers[0].attention
    rows, heads, length, columns = local.shape
    count = 0 if far is None else far.shape[3]
    dense = torch.zeros(rows, heads, length, length)
    offsets = torch.arange(-attention.config.left_tokens, attention.config.right_tokens + 1) * attention.config.dilation
    assert columns == count + len(offsets)
    for row in range(rows):
        places = marked[row].nonzero()[:, 0].tolist()
        for token in range(length):
            for column, offset in enumerate(offsets.tolist(), count):
                if 0 <= token + offset < length:
                    dense[row, :, token, token + offset] += local[row, :, token, column]
            for slot, place in enumerate(places):
                dense[row, :, token, place] += local[row, :, token, slot]
        for slot, place in enumerate(places):
            assert far is not None
            dense[row, :, place] = far[row, :, :, slot]
    return dense


@pytest.mark.parametrize("options", [{}, {"dilation": 3}, {"separate_global_projections": False}], ids=str)
@pytest.mark.parametrize("gathered", [1, 1 << 24], ids=["token by token", "at once"])
def test_any_window_stands_for_its_dense_weights(
    options: dict[str, Any], gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reported, "GATHERED", gathered)
    model = ours({"mechanism": "longformer", "left_tokens": 3, "right_tokens": 5, **options})
    attention, marked = model.encoder.layers[0].attention, GLOBALS * MASK
    hidden, tokens = torch.randn(3, 41, 24), longspan.Tokens(mask=MASK.bool(), is_global=marked.bool())
    with torch.no_grad():
        local, far = reported.reported_weights(attention, hidden, tokens)
        assert_same(spread(model, local, far, marked), attention.weights(hidden, tokens))
        hidden, tokens = hidden[:1, :1], longspan.Tokens()
        local, far = reported.reported_weights(attention, hidden, tokens)
        assert_same(spread(model, local, far, torch.zeros(1, 1)), torch.ones(1, 3, 1, 1))


def test_a_long_text_in_a_window_in_linear_memory_and_with_gradients(memory: Callable[..., Any]) -> None:
    model = ours({"mechanism": "longformer", "left_tokens": 4, "right_tokens": 4}, max_position_embeddings=6000)
    ids = torch.randint(5, 61, (1, 5003))
    with memory() as largest:
        output = model(ids, output_attentions=True)
    assert largest.largest < 5003 * 5003 / 4
    assert [tuple(weights.shape) for weights in output.attentions] == [(1, 3, 5003, 9)] * 2
    torch.testing.assert_close(output.attentions[0].sum(-1), torch.ones(1, 3, 5003))
    output.attentions[1][0, 0, 7, 2].backward()
    assert model.encoder.layers[0].attention.query.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("mechanism", ["full", "poolingformer", "bigbird", "linear"])
def test_elsewhere_weights_are_dense_and_bounded(mechanism: str) -> None:
    model = ours(mechanism, max_position_embeddings=5000)
    with torch.no_grad():
        output = model(IDS, MASK, output_attentions=True, output_hidden_states=True)
        layer, tokens = model.encoder.layers[0], longspan.Tokens(mask=MASK.bool())
        assert_same(output.attentions[0], layer.attention.weights(output.hidden_states[0], tokens))
        assert output.attentions[1].shape == (3, 3, 41, 41)
        assert "attentions" not in model(IDS, MASK)
        with pytest.raises(InputError, match=rf"attention '{mechanism}', .* 4,097 rows .* give at most 4,096 tokens"):
            model(torch.full((1, 4097), 7), output_attentions=True)


def test_the_configuration_may_ask_and_a_tuple_has_them() -> None:
    model = ours("full", output_attentions=True)
    with torch.no_grad():
        assert model(IDS).attentions[0].shape == (3, 3, 41, 41)
        assert model(IDS, return_dict=False)[-1][0].shape == (3, 3, 41, 41)
        assert "attentions" not in model(IDS, output_attentions=False)


def test_an_encoder_beside_a_decoder_gives_them_and_the_model_that_writes_does_not() -> None:
    sizes = SIZES | {"decoder_layers": 1}
    attention = {"mechanism": "longformer", "left_tokens": 2, "right_tokens": 2}
    model = longspan.LongspanForConditionalGeneration(LongspanConfig(vocab_size=61, attention=attention, **sizes))
    with torch.no_grad():
        assert model.eval().get_encoder()(IDS, MASK, output_attentions=True).attentions[1].shape == (3, 3, 41, 5)
    with pytest.raises(InputError, match=r"not offered by a model that writes, .* ask its encoder"):
        model(IDS, labels=IDS[:, :3], output_attentions=True)


def test_stacks_and_heads_that_read_otherwise_refuse() -> None:
    torch.manual_seed(1)
    sizes = SIZES | {"intermediate_size": 3072, "stack": {"stack": "star"}}
    model = longspan.LongspanModel(LongspanConfig(vocab_size=61, **sizes)).eval()
    with pytest.raises(InputError, match="not offered by the stack 'star'"):
        model(IDS, MASK, output_attentions=True)
    choices = longspan.models.LongspanForMultipleChoice(LongspanConfig(vocab_size=61, **SIZES)).eval()
    with pytest.raises(InputError, match="not offered by LongspanForMultipleChoice"):
        choices(IDS, MASK, output_attentions=True)
