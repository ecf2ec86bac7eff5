"""Patterns inside ModernBERT, whose layers have windows of their own but for every third."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaModel,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertModel,
)

from longspan import InputError, from_transformers, lengthen, use_attention
from longspan.patterns import Pattern, Window, parse
from longspan_documents.inference.sentence_encoder import load_sentence_encoder
from tiny_writers import TEXT, word_tokenizer

SIZES: dict[str, Any] = {
    **dict.fromkeys(("bos_token_id", "cls_token_id"), 0),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
    "pad_token_id": 1,
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
    "local_attention": 8,
    "initializer_range": 0.3,
}
TINY: dict[str, Any] = {
    **{name: SIZES[name] for name in ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")},
    "num_hidden_layers": 1,
}
OWN = Window(4, 4)
"""What `local_attention=8` means: four tokens on each side."""


def made(kind: type = ModernBertModel, **options: Any) -> Any:
    return kind(ModernBertConfig(**(SIZES | options))).eval()


def batch(tokens: int) -> dict[str, Tensor]:
    """Three rows, the second half padded in front, the third by five tokens behind."""
    mask = torch.ones(3, tokens, dtype=torch.long)
    mask[1, : tokens // 2], mask[2, -5:] = 0, 0
    return {"input_ids": torch.randint(3, 61, (3, tokens)), "attention_mask": mask}


def dense(pattern: Pattern, mask: Tensor) -> Tensor:
    """The additive `(B, 1, T, T)` mask that says the same to transformers' own attention."""
    shown = pattern.dense(mask.shape[1])[None, None] & mask[:, None, None, :].bool()
    return torch.zeros(shown.shape).masked_fill(~shown, torch.finfo(torch.float32).min)


@torch.no_grad()
@pytest.mark.parametrize("tokens", [3, 9, 37, 101])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_every_token_in_its_layers_windows_is_what_transformers_computes(tokens: int, implementation: str) -> None:
    """Under a pattern that hides nothing, at lengths below and above the model's own."""
    model, inputs = made(), batch(tokens)
    model.set_attn_implementation(implementation)
    want = model(**inputs).last_hidden_state
    found = use_attention(model, "full")(**inputs).last_hidden_state
    real = inputs["attention_mask"].bool()
    assert (want - found)[real].abs().max() <= 2e-5


@torch.no_grad()
@pytest.mark.parametrize("text", ["window(7) | first(1)", "window(2)", "blocks(6) | first(2)"])
def test_a_pattern_is_for_all_layers_and_windows_narrow_it(text: str) -> None:
    model, inputs = made(), batch(41)
    model.set_attn_implementation("eager")
    mask = inputs["attention_mask"]
    masks = {"full_attention": dense(parse(text), mask), "sliding_attention": dense(parse(text) & OWN, mask)}
    want = model(input_ids=inputs["input_ids"], attention_mask=masks).last_hidden_state
    found = use_attention(model, text)(**inputs).last_hidden_state
    # A token that sees none, since only padding is near, has no meaning.
    real = mask.bool() & (parse(text).dense(41) & mask[:, None].bool()).any(2)
    assert (want - found)[real].abs().max() <= 2e-5


def test_a_short_text_comes_out_as_before_and_a_long_one_is_read(tmp_path: Path) -> None:
    """Windows as wide as the text change nothing, and no position has an end."""
    model, inputs = made(ModernBertForMaskedLM), batch(15)
    with torch.no_grad():
        want = model(**inputs).logits
        use_attention(model, "window(16)").save_pretrained(tmp_path)
        again = ModernBertForMaskedLM.from_pretrained(tmp_path).eval()
        found = again(**inputs).logits
        long = again(**batch(400)).logits
    real = inputs["attention_mask"].bool()
    assert (want - found)[real].abs().max() <= 2e-5
    assert long.isfinite().all()


def test_a_far_token_changes_nothing_that_windows_hide() -> None:
    """Two global layers of 3 tokens to each side and three local ones, of which 3 are shown: 15 in all."""
    model, inputs = use_attention(made(), "window(3)"), batch(60)
    ids = inputs["input_ids"][:1]
    changed = ids.clone()
    changed[0, 40] = 3 + (changed[0, 40] - 2) % 58
    with torch.no_grad():
        before, after = (model(input_ids=each).last_hidden_state[0] for each in (ids, changed))
    moved = (before - after).abs().amax(1) > 1e-6
    assert moved[40]
    assert not moved[:25].any()
    assert not moved[56:].any()


def test_memory_is_linear(memory: Any) -> None:
    tokens = 4096
    model = use_attention(made(num_hidden_layers=4), "window(8) | first(1)")
    with memory() as tensors, torch.no_grad():
        model(input_ids=torch.randint(3, 61, (1, tokens)), attention_mask=torch.ones(1, tokens, dtype=torch.long))
    assert tensors.largest < tokens * tokens / 8


def test_gradients_reach_every_weight() -> None:
    model, inputs = use_attention(made().train(), "window(7) | first(1)"), batch(23)
    model(**inputs).last_hidden_state.pow(2).sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


def test_a_longer_input_is_read_whole_by_the_commands(tmp_path: Path) -> None:
    """`max_tokens` is what a saved model says of itself, so that `longspan embed --encoder` cuts nothing."""
    text = TEXT * 8  # 201 tokens
    folders = {None: tmp_path / "short", 256: tmp_path / "long"}
    for max_tokens, folder in folders.items():
        model = made(vocab_size=len(word_tokenizer()), eos_token_id=2, pad_token_id=0)
        use_attention(model, "window(6)", max_tokens=max_tokens).save_pretrained(folder)
        word_tokenizer().save_pretrained(folder)
    short, long = (load_sentence_encoder(folder) for folder in folders.values())
    assert (short.max_tokens, long.max_tokens) == (32, 256)
    (vector,) = long.vectors([text])
    assert long.note is None
    short.vectors([text])
    assert "1 text longer than the 32 tokens" in str(short.note)
    ids = word_tokenizer()(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        states = ModernBertModel.from_pretrained(folders[256])(input_ids=ids).last_hidden_state[0]
    assert torch.allclose(torch.from_numpy(vector), states.mean(0), atol=1e-5)


def test_a_longest_input_needs_rotary_positions_of_one_kind() -> None:
    with pytest.raises(InputError, match="needs rotary positions, which BertModel has not"):
        use_attention(BertModel(BertConfig(**TINY)), "window(3)", max_tokens=99)
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 32}
    llama = LlamaModel(LlamaConfig(**TINY, rope_parameters=yarn))
    with pytest.raises(InputError, match="has those of type 'yarn'"):
        use_attention(llama, "window(3)", max_tokens=99)
    for wrong in (0, 2.5, True):
        with pytest.raises(InputError, match="max_tokens is "):
            use_attention(made(), "window(3)", max_tokens=wrong)  # pyright: ignore[reportArgumentType]
    longer = use_attention(LlamaModel(LlamaConfig(**TINY, max_position_embeddings=16)), "window(3)", max_tokens=99)
    assert longer.config.max_position_embeddings == 99


def test_windows_that_are_not_asked_for_are_not_lost() -> None:
    """A configuration that names more windows than the layers ask for."""
    model = made()
    model.layers[1].attn.sliding_window = None
    with pytest.raises(InputError, match="windows of its own, of 4 tokens"):
        use_attention(model, "window(3)")


@torch.no_grad()
def test_a_folder_is_lengthened_as_transformers_has_it(tmp_path: Path) -> None:
    source = made(ModernBertForMaskedLM, attn_implementation="eager")
    source.save_pretrained(tmp_path / "source")
    for name, options, pattern in (
        ("long", {}, Window(32, 32)),
        ("narrow", {"left_tokens": 6, "right_tokens": 3}, Window(6, 3)),
    ):
        model: Any = lengthen(tmp_path / "source", "longformer", 400, **options)
        assert model.report.parity_logits <= 2e-5
        model.save_pretrained(tmp_path / name)
        again = ModernBertForMaskedLM.from_pretrained(tmp_path / name).eval()
        assert (again.config.max_position_embeddings, parse(again.config.longspan_pattern)) == (400, pattern)
        inputs = batch(101)
        mask = inputs["attention_mask"]
        masks = {"full_attention": dense(pattern, mask), "sliding_attention": dense(pattern & OWN, mask)}
        want = source(input_ids=inputs["input_ids"], attention_mask=masks).logits
        real = mask.bool() & (pattern.dense(101) & mask[:, None].bool()).any(2)
        assert (want - again(**inputs).logits)[real].abs().max() <= 2e-5
    assert "layer 0: longformer(left_tokens=6, right_tokens=3)\n" in str(model.report)
    assert "layers 1–2: longformer(left_tokens=4, right_tokens=3)\n" in str(model.report)
    inputs = batch(32)  # as long as it could read
    long, real = ModernBertForMaskedLM.from_pretrained(tmp_path / "long").eval(), inputs["attention_mask"].bool()
    assert (source(**inputs).logits - long(**inputs).logits)[real].abs().max() <= 2e-5
    assert lengthen(tmp_path / "narrow", "longformer", 500).config.longspan_pattern == "window(6, 3)"
    with pytest.raises(InputError, match=r"not supported: its rotary positions.*`longspan lengthen`"):
        from_transformers(tmp_path / "source")
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 32}
    kinds = dict.fromkeys(("full_attention", "sliding_attention"), yarn)
    with pytest.raises(InputError, match="has those of type 'yarn'"):
        lengthen(made(rope_parameters=kinds), "longformer", 99)
