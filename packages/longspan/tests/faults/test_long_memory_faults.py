"""Spans, memories, levels and structure that cannot be: in recipes, on the command line and in a model's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from longspan.checkpoints import lengthen
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanModel

SPANS, COMPRESSIVE, LEVELS, ETC = "adaptive-span-enwik8", "compressive-enwik8", "levels-novels-3", "etc-mlm-base"
SHRINKING = "[{left_tokens: 9, right_tokens: 9}, {left_tokens: 5, right_tokens: 9, kernel: 2, stride: 2}]"
RECIPES: list[tuple[str, str, str]] = [
    (SPANS, "model.attention.ramp_tokens=99", "ramp_tokens=99 is longer than span_tokens=24"),
    (SPANS, "model.attention.mean_span_tokens=99", "mean_span_tokens=99.0 is longer than span_tokens=24"),
    (SPANS, "model.attention.initial_span=1.5", "initial_span is 1.5; it must be at most 1"),
    (COMPRESSIVE, "model.new.stack.rate=0", "rate is 0; it must be at least 1"),
    (COMPRESSIVE, "model.new.stack.compressed_tokens=0", "rate=3 with compressed_tokens=0 compresses nothing"),
    (LEVELS, f"model.attention.levels={SHRINKING}", "levels[1].left_tokens=5 is less than the 9"),
    (LEVELS, "model.attention=etc", "'etc' has no causal form, since its global tokens see the whole text"),
    (SPANS, "model.attention=etc", "'etc' has no causal form"),
    (ETC, "model.attention=longformer", "task.summary_tokens=16 needs attention that reads structure"),
    (ETC, "task.summary_tokens=300", "leaves no room in addition to the special tokens and summary_tokens=300"),
]
"""Shipped recipe, what is changed, and words of the refusal."""
COMPARED: list[tuple[str, str, str]] = [
    ("adaptive_span", "adaptive_span.ramp_tokens=4096", "ramp_tokens=4096 is longer than span_tokens=1024"),
    ("three:poolingformer", f"three.levels={SHRINKING}", "levels[1].left_tokens=5 is less than the 9"),
    ("etc", "etc.radius_tokens=0", "radius_tokens is 0"),
]
SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SPAN: dict[str, Any] = {"mechanism": "adaptive_span", "span_tokens": 16, "ramp_tokens": 4}


def test_recipes_and_commands_refuse_in_one_sentence(check_fault: Callable[..., str]) -> None:
    for recipe, change, says in RECIPES:
        check_fault(run=["train", recipe, "--smoke", "--output", "out", change], says=says)
    more = {"model.new.num_memory_tokens": 129}
    check_fault(recipe=more, run=["train", "recipe.yaml"], says="num_memory_tokens=129 is more than the longest text")
    for name, change, says in COMPARED:
        check_fault(run=["compare", change, "--mechanisms", name, "--output", "out"], says=says)


def test_a_span_longer_than_the_table_of_a_saved_model(tmp_path: Path, check_fault: Callable[..., str]) -> None:
    model = LongspanForCausalLM(LongspanConfig(vocab_size=61, position_embedding="none", attention=SPAN, **SIZES))
    model.save_pretrained(tmp_path / "model")
    longer = {**model.config.attention, "span_tokens": 32}
    says = ("decoder.relative.distances has shape (16, 8)", "the configuration asks for (32, 8)")
    edited = {"model/config.json": {"attention": longer}}
    check_fault(run=["lengthen", "model", "--max-tokens", "20000", "--output", "out"], edit=edited, says=says)
    with pytest.raises(InputError, match="span_tokens=32 does not fit the source, whose table of distances has"):
        lengthen(model, "adaptive_span", max_tokens=20_000, span_tokens=32)


def test_more_memory_than_text() -> None:
    """Vectors in front of a text are at most as many as it can have; a memory of what was read holds what there is."""
    with pytest.raises(InputError, match="num_memory_tokens=8 is more than the longest text has tokens, max_"):
        LongspanConfig(vocab_size=61, max_position_embeddings=7, num_memory_tokens=8, attention="longformer", **SIZES)
    options = {"vocab_size": 61, "num_memory_tokens": 8, "attention": "longformer", **SIZES}
    model = LongspanModel(LongspanConfig(max_position_embeddings=8, **options)).eval()
    assert model(torch.full((2, 1), 5)).memory_states.shape == (2, 8, 16)
    full: dict[str, Any] = {"mechanism": "full", "positions": "relative", "bias": False}
    stack = {"stack": "recurrent", "memory_tokens": 999, "compressed_tokens": 999, "rate": 3}
    ids, sizes = torch.randint(3, 61, (1, 13)), {"vocab_size": 61, "position_embedding": "none", **SIZES}
    writer = LongspanForCausalLM(LongspanConfig(attention=full, stack=stack, **sizes)).eval()
    with torch.no_grad():
        first = writer(ids[:, :5], use_cache=True)
        rest = writer(ids[:, 5:], cache=first.cache)
        torch.testing.assert_close(torch.cat([first.logits, rest.logits], 1), writer(ids).logits)


def test_structure_that_names_what_is_not_there() -> None:
    model = LongspanModel(LongspanConfig(vocab_size=61, attention="etc", **SIZES)).eval()
    ids, is_global = torch.full((1, 6), 5), torch.arange(6)[None] < 2
    with pytest.raises(InputError, match="belongs_to holds 2 in row 0, which has 2 global tokens; give the number of"):
        model(ids, global_attention_mask=is_global, belongs_to=torch.tensor([[-1, -1, 0, 1, 2, 0]]))
    for kind in (
        lambda: LongspanForCausalLM(LongspanConfig(vocab_size=61, attention="etc", **SIZES)),
        lambda: LongspanForCausalLM(LongspanConfig(vocab_size=61, attention="etc", stack="recurrent", **SIZES)),
    ):
        with pytest.raises(InputError, match="'etc' has no causal form, since its global tokens see the whole text"):
            kind()
