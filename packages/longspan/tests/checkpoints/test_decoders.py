"""Patterns inside unmodified transformers decoders: exact against the dense mask of the pattern in the same model."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import DynamicCache, StaticCache

from closeness import check_outputs, check_weights
from longspan import InputError, use_attention
from longspan.models.transformers_names import cache_field
from longspan.patterns import parse
from longspan.patterns.text import KINDS

FAMILIES = ["gpt2", "llama", "mistral", "mistral with a window", "qwen2", "qwen3", "qwen3 with both kinds of layers"]
PATTERN = "window(5) & causal | first(2)"
LENGTHS = (5, 37, 67)


def tokens(mask):
    """Random tokens, and the positions that `generate` gives them."""
    return {"input_ids": torch.randint(3, 61, mask.shape), "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}


def padded(length):
    """A full row, one padded on the left, one on the right, and one all but empty."""
    mask = torch.ones(4, length, dtype=torch.long)
    mask[1, : length // 3] = 0
    mask[2, -(length // 4) :] = 0
    mask[3, 1:] = 0
    return mask


def loss(model, mask, inputs, weights):
    """A number that depends on every real output and on no other."""
    return (model(**inputs, attention_mask=mask).logits * weights * mask[..., None]).sum()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_and_gradients_are_those_of_a_dense_mask(name, length, decoder, by_hand):
    model, mask = decoder(name), padded(length)
    inputs, weights = tokens(mask), torch.randn(4, length, 61)
    found = []
    for change in (by_hand, use_attention):
        change(model, PATTERN)
        model.zero_grad()
        loss(model, mask, inputs, weights).backward()
        found.append((model(**inputs, attention_mask=mask).logits, [p.grad.clone() for p in model.parameters()]))
    (want, want_gradients), (have, have_gradients) = found
    real = mask[..., None].bool()
    torch.testing.assert_close(have.where(real, 0), want.where(real, 0), rtol=0, atol=1e-5)
    for mine, theirs in zip(have_gradients, want_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()) + 1e-6)


def test_the_pattern_matters(decoder):
    model, inputs = decoder("llama"), tokens(torch.ones(1, 37, dtype=torch.long))
    whole = model(**inputs).logits
    assert (use_attention(model, PATTERN)(**inputs).logits - whole).abs().max() > 1e-2
    torch.testing.assert_close(use_attention(model, "full")(**inputs).logits, whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("text", [PATTERN, "full", "causal", "strided(5) | window(1)"])
def test_padding_in_holes_counts_real_tokens(text, decoder, by_hand):
    mask = (torch.rand(3, 61) < 0.6).long()
    model, inputs = decoder("qwen3"), tokens(mask)
    want = by_hand(model, text)(**inputs, attention_mask=mask).logits
    have = use_attention(model, text)(**inputs, attention_mask=mask).logits
    torch.testing.assert_close(have * mask[..., None], want * mask[..., None], rtol=0, atol=1e-5)
    row = mask[1].bool()
    alone = model(input_ids=inputs["input_ids"][1:2, row]).logits
    torch.testing.assert_close(have[1:2, row], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_row_of_a_batch_is_what_it_is_alone(name, side, decoder):
    model = use_attention(decoder(name), "window(4) | first(3)")
    rows = [torch.randint(3, 61, (length,)) for length in (53, 34, 1, 7)]
    ids, mask = torch.zeros(4, 53, dtype=torch.long), torch.zeros(4, 53, dtype=torch.long)
    places = [slice(53 - len(row), None) if side == "left" else slice(len(row)) for row in rows]
    for index, (row, place) in enumerate(zip(rows, places, strict=True)):
        ids[index, place], mask[index, place] = row, 1
    together = model(input_ids=ids, attention_mask=mask, position_ids=tokens(mask)["position_ids"]).logits
    for index, (row, place) in enumerate(zip(rows, places, strict=True)):
        alone = model(input_ids=row[None]).logits[0]
        torch.testing.assert_close(together[index, place], alone, rtol=0, atol=1e-5)


PIECES = {
    "one by one": [1] * 79,
    "uneven": [3, 1, 41, 2, 32],
    "chunks": [40, 39],
    "prefill, then one by one": [70] + [1] * 9,
}


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("cache", [DynamicCache, StaticCache])
@pytest.mark.parametrize("name", ["gpt2", "mistral with a window", "qwen3 with both kinds of layers"])
@torch.no_grad()
def test_in_pieces_is_at_once(name, cache, pieces, decoder):
    mask = torch.ones(3, 79, dtype=torch.long)
    mask[1, :23], mask[2, :50] = 0, 0
    model = use_attention(decoder(name), "window(9) | first(4)")
    inputs = tokens(mask)
    want = model(**inputs, attention_mask=mask).logits
    options = {"max_cache_len": 90} if cache is StaticCache else {}
    state, found, start = cache(config=model.config, **options), [], 0
    for piece in pieces:
        part = slice(start, start + piece)
        now = {key: value[:, part] for key, value in inputs.items()}
        found.append(model(**now, attention_mask=mask[:, : part.stop], **cache_field(state), use_cache=True).logits)
        start += piece
    have = torch.cat(found, dim=1) * mask[..., None]
    torch.testing.assert_close(have, want * mask[..., None], rtol=0, atol=1e-5)


OF_EVERY_KIND = {
    "full": "full",
    "causal": "causal",
    "window": "window(3, 2, 4)",
    "first": "first(3) | window(0)",
    "blocks": "blocks(7)",
    "strided": "strided(6)",
    "fixed": "fixed(6, 2)",
    "random_blocks": "random_blocks(4, 2) | window(1)",
    "drawn_blocks": "drawn_blocks(4, 2, 0, 0, 0, 0, 0, 12) | window(1)",
    "planned_blocks": "planned_blocks(4, 2, 0, 0, 0, 0, 0, 12) | window(1)",
    "prefix": "prefix(9) | window(2)",
    "pooled_window": "pooled_window(9, 3, 3, 2) | window(0)",
    "per_head": "per_head(window(1), window(7), first(2) | window(0), causal)",
}


def test_the_table_has_every_kind():
    assert set(OF_EVERY_KIND) == set(KINDS)


@pytest.mark.parametrize("text", OF_EVERY_KIND.values(), ids=OF_EVERY_KIND)
@torch.no_grad()
def test_every_pattern_decodes_and_looks_back_only(text, decoder, by_hand):
    model, mask = decoder("llama"), padded(47)
    inputs, real = tokens(mask), mask[..., None]
    want = by_hand(model, text)(**inputs, attention_mask=mask).logits
    at_once = use_attention(model, text)(**inputs, attention_mask=mask).logits
    torch.testing.assert_close(at_once * real, want * real, rtol=0, atol=1e-5)
    state = DynamicCache(config=model.config)
    for index in range(47):
        now = {key: value[:, index : index + 1] for key, value in inputs.items()}
        step = model(**now, attention_mask=mask[:, : index + 1], **cache_field(state), use_cache=True).logits
        torch.testing.assert_close(
            step * real[:, index : index + 1], want[:, [index]] * real[:, [index]], rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("text", ["first(4) | window(8)", "full", "random_blocks(4, 3)"])
@torch.no_grad()
def test_the_future_changes_nothing_to_the_last_bit(text, decoder):
    model, ids = use_attention(decoder("qwen2"), text), torch.randint(3, 61, (2, 71))
    before, changed = model(input_ids=ids).logits, ids.clone()
    changed[:, 40:] = (changed[:, 40:] - 2) % 58 + 3
    after = model(input_ids=changed).logits
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.equal(before[:, 40:], after[:, 40:])


def test_an_encoder_class_that_is_told_to_be_a_decoder(published, by_hand):
    model, mask = published("BertModel", is_decoder=True), padded(41)
    inputs = {"input_ids": tokens(mask)["input_ids"], "attention_mask": mask, "use_cache": False}
    want = by_hand(model, PATTERN)(**inputs).last_hidden_state
    have = use_attention(model, PATTERN)(**inputs).last_hidden_state
    torch.testing.assert_close(have * mask[..., None], want * mask[..., None], rtol=0, atol=1e-5)


def test_half_precision_and_dropout_run(decoder):
    mask = padded(67)
    model = use_attention(decoder("llama", attention_dropout=0.3), PATTERN)
    full, inputs = model(**tokens(mask), attention_mask=mask).logits, tokens(mask)
    once = model.train()(**inputs, attention_mask=mask).logits
    assert not torch.equal(once, model(**inputs, attention_mask=mask).logits)
    assert once.shape == full.shape
    low = model.eval().to(torch.bfloat16)(**inputs, attention_mask=mask).logits
    assert low.dtype == torch.bfloat16
    assert low.isfinite().all()


def test_the_pattern_is_saved_with_a_decoder(decoder, tmp_path):
    model, inputs = use_attention(decoder("qwen3"), PATTERN), tokens(torch.ones(1, 40, dtype=torch.long))
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.config.longspan_pattern == str(parse(PATTERN))
    check_weights(loaded, model)
    check_outputs(loaded(**inputs).logits, model(**inputs).logits)


def test_no_text_at_all_and_one_token(decoder):
    model = use_attention(decoder("llama"), PATTERN)
    assert model(input_ids=torch.tensor([[7]])).logits.shape == (1, 1, 61)
    empty = torch.ones(2, 6, dtype=torch.long)
    empty[1] = 0
    assert model(input_ids=torch.full((2, 6), 7), attention_mask=empty).logits.isfinite().all()


def test_holes_beside_a_window_of_the_model_are_refused(decoder):
    model = use_attention(decoder("mistral with a window"), PATTERN)
    with pytest.raises(InputError, match="zeros between ones"):
        model(input_ids=torch.full((1, 5), 5), attention_mask=torch.tensor([[1, 1, 0, 1, 1]]))
