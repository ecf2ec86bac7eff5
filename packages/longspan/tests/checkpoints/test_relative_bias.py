"""Patterns in the encoders of T5, mT5 and UMT5, against their own attention told by a mask of pairs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import longspan
from longspan import InputError
from longspan.checkpoints.lengthening.in_place import read_further
from longspan.patterns import parse

SIZES: dict[str, Any] = {"vocab_size": 61, "d_model": 24, "d_kv": 5, "d_ff": 40, "num_layers": 2, "num_heads": 3}
SIZES |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0}
KINDS = ["T5", "MT5", "UMT5"]


def make(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**(SIZES | options))
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def inputs(tokens: int) -> dict[str, Tensor]:
    ids = torch.randint(3, 61, (2, tokens), generator=torch.Generator().manual_seed(tokens))
    mask = (torch.arange(tokens) < torch.tensor([[tokens], [max(1, tokens - 5)]])).long()
    return {"input_ids": ids * mask, "attention_mask": mask, "decoder_input_ids": torch.tensor([[0, 7, 9]] * 2)}


def expected(model: Any, pattern: str, given: dict[str, Tensor]) -> Tensor:
    """Its own logits, where every pair that the pattern hides has the least score there is."""
    tokens = given["input_ids"].shape[1]
    index = torch.arange(tokens)
    visible = parse(pattern).visible(index[:, None], index[None]) & given["attention_mask"][:, None, None].bool()
    scores = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    states = model.get_encoder()(given["input_ids"], attention_mask=scores)
    return model(
        encoder_outputs=states,
        attention_mask=given["attention_mask"],
        decoder_input_ids=given["decoder_input_ids"],
    ).logits


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_short_texts_come_out_as_before_and_long_ones_in_windows(kind: str) -> None:
    model = make(kind, attn_implementation="eager")
    patterned = longspan.use_attention(copy.deepcopy(model), "window(40)")
    for tokens in (1, 17, 41):
        given = inputs(tokens)
        torch.testing.assert_close(patterned(**given).logits, model(**given).logits, atol=1e-5, rtol=1e-5)
    for pattern in ("window(3)", "window(30)", "window(6) | first(2)"):
        patterned, given = longspan.use_attention(copy.deepcopy(model), pattern), inputs(97)
        torch.testing.assert_close(patterned(**given).logits, expected(model, pattern, given), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_by_distance_learn_and_copies_have_their_own(kind: str) -> None:
    model = make(kind, attn_implementation="eager")
    patterned = longspan.use_attention(copy.deepcopy(model), "window(50)")
    gradients = []
    for one in (model, patterned):
        one(**inputs(43)).logits.square().sum().backward()
        bias = next(weight for name, weight in one.encoder.named_parameters() if "relative_attention_bias" in name)
        assert bias.grad is not None
        gradients.append(bias.grad)
    torch.testing.assert_close(*gradients, atol=1e-3, rtol=1e-3)
    again = copy.deepcopy(patterned)
    with torch.no_grad():
        for name, weight in again.encoder.named_parameters():
            if "relative_attention_bias" in name:
                weight.zero_()
        assert (again(**inputs(9)).logits - patterned(**inputs(9)).logits).abs().max() > 0.01


def test_a_long_text_takes_linear_memory(memory: Callable[..., Any]) -> None:
    model = longspan.use_attention(make("T5"), "window(16)", max_tokens=4096)
    assert model.config.n_positions == model.encoder.config.n_positions == 4096
    with torch.no_grad(), memory() as made:
        model.get_encoder()(torch.full((1, 4001), 7))
    assert made.largest < 4001 * 4001 / 8


def test_it_writes_the_same_and_is_saved_as_it_was(tmp_path: Any) -> None:
    model = make("T5")
    patterned, given = longspan.use_attention(copy.deepcopy(model), "window(40)"), inputs(33)
    options = {"max_new_tokens": 7, "num_beams": 2, "input_ids": given["input_ids"]}
    options["attention_mask"] = given["attention_mask"]
    assert torch.equal(patterned.generate(**options), model.generate(**options))
    patterned.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert again.encoder.config._attn_implementation == model.encoder.config._attn_implementation
    patterned.set_attn_implementation("eager")
    with torch.no_grad():
        torch.testing.assert_close(patterned(**given).logits, model(**given).logits, atol=1e-5, rtol=1e-5)


def test_who_can_read_further() -> None:
    sizes = SIZES | {"local_radius": 7}
    longer = transformers.LongT5ForConditionalGeneration(transformers.LongT5Config(**sizes))
    assert read_further(longer, 16)  # in its own windows
    assert read_further(make("T5"), 16)
    bart = transformers.BartConfig(vocab_size=61, d_model=16, encoder_layers=1, decoder_layers=1)
    model = transformers.BartForConditionalGeneration(bart)
    assert not read_further(model, 16)
    with pytest.raises(InputError, match=r"decoder with cross-attention; .* encoders of T5, mT5 and UMT5"):
        longspan.use_attention(model, "window(3)")
