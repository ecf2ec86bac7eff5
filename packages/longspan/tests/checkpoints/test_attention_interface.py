"""Patterns inside unmodified transformers encoders: exact against a dense band mask, padding respected."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import transformers

from longspan import InputError, use_attention
from longspan.patterns import First, Window, parse


def dense(pattern, mask):
    """The additive `(B, 1, T, T)` mask that says the same to transformers' own attention."""
    seen = pattern.dense(mask.shape[1])[None, None] & mask[:, None, None, :].bool()
    return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)


def output(model, **inputs):
    with torch.no_grad():
        found = model(**inputs)
    return next(found[key] for key in ("last_hidden_state", "logits", "start_logits") if key in found)


@pytest.mark.parametrize("text", ["window(3) | first(1)", "window(2)", "full", "blocks(7) | first(2)"])
@pytest.mark.parametrize(
    "name", ["BertModel", "RobertaForMaskedLM", "XLMRobertaModel", "DistilBertModel", "ElectraModel"]
)
def test_equal_to_a_dense_mask(name, text, published, batch, widest):
    model = published(name)
    inputs = batch(model, 37)
    mask = inputs["attention_mask"]
    model.set_attn_implementation("eager")
    want = output(model, input_ids=inputs["input_ids"], attention_mask=dense(parse(text), mask))
    assert use_attention(model, text) is model
    assert widest(want, output(model, **inputs), mask) <= 1e-5


def test_padding_and_neighbours_change_nothing(published, batch, widest):
    model = use_attention(published("BertModel"), Window(4, 2) | First(1))
    inputs = batch(model, 41)
    together = output(model, **inputs)
    alone = output(model, input_ids=inputs["input_ids"][1:2, :21], attention_mask=torch.ones(1, 21))
    assert widest(together[1:2, :21], alone) <= 1e-5


def test_globals_of_a_batch(published, batch, widest):
    model = published("BertModel")
    inputs = batch(model, 23, globals=True)
    mask, marked = inputs["attention_mask"].bool(), inputs["global_attention_mask"].bool()
    seen = parse("window(2)").dense(23)[None] | marked[:, None, :] | marked[:, :, None]
    bias = torch.zeros(3, 1, 23, 23).masked_fill(~(seen & mask[:, None, :])[:, None], torch.finfo(torch.float32).min)
    model.set_attn_implementation("eager")
    want = output(model, input_ids=inputs["input_ids"], attention_mask=bias)
    assert widest(want, output(use_attention(model, "window(2)"), **inputs), mask) <= 1e-5


def test_gradients_flow(published, batch):
    model = use_attention(published("RobertaForMaskedLM"), "window(3)").train()
    inputs = batch(model, 19)
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    gradients = [p.grad for name, p in model.named_parameters() if "key.weight" in name]
    assert all(gradient is not None and gradient.isfinite().all() and gradient.any() for gradient in gradients)


def test_two_models_keep_their_own_patterns(published, batch, widest):
    first, second = published("BertModel"), published("BertModel")
    second.load_state_dict(first.state_dict())
    use_attention(first, "window(1)")
    use_attention(second, "full")
    inputs = batch(first, 30)
    assert widest(output(first, **inputs), output(second, **inputs)) > 1e-3


def test_memory_is_linear(published, memory):
    tokens = 4096
    model = use_attention(published("BertModel", max_position_embeddings=tokens), "window(8) | first(1)")
    with memory() as made, torch.no_grad():
        model(torch.randint(3, 61, (1, tokens)), attention_mask=torch.ones(1, tokens))
    assert made.largest < tokens * tokens / 8


def test_what_a_pattern_cannot_give_is_refused(published, batch):
    with pytest.raises(InputError, match="has a decoder"):
        use_attention(published("BartModel"), "window(3)")
    with pytest.raises(InputError, match="has a decoder with cross-attention"):
        use_attention(published("BertModel", is_decoder=True, add_cross_attention=True), "window(3)")
    with pytest.raises(InputError, match="has an attention of its own"):
        use_attention(published("LongformerModel"), "window(3)")
    with pytest.raises(InputError, match="windo"):
        use_attention(published("BertModel"), "windo(3)")
    model = published("BertModel")
    model.set_attn_implementation("longspan")
    with pytest.raises(InputError, match="needs a pattern; call longspan"):
        model(torch.randint(3, 61, (1, 5)))
    use_attention(model, "window(3)")
    with pytest.raises(InputError, match="has 4 dimensions"):
        model(torch.randint(3, 61, (1, 5)), attention_mask=torch.zeros(1, 1, 5, 5))
    with pytest.raises(InputError, match="output_attentions=True"):
        model(torch.randint(3, 61, (1, 5)), output_attentions=True)


def test_a_model_that_looks_back_without_a_mask_is_refused_at_its_first_step(published):
    """Nothing asks for a causal mask here, so that the pattern would show the future."""
    model = use_attention(published("BertModel"), "window(3)")
    model.encoder.layer[0].attention.self.is_causal = True
    with pytest.raises(InputError, match="causal without a mask"):
        model(torch.randint(3, 61, (1, 5)))


def test_a_saved_pattern_is_found_again_without_being_asked_for(published, batch, widest, tmp_path):
    model = use_attention(published("BertModel"), Window(3, 1) | First(1))
    inputs = batch(model, 30)
    want = output(model, **inputs)
    folder = tmp_path / "0"
    model.save_pretrained(folder)
    for generation in range(1, 4):
        loaded = transformers.AutoModel.from_pretrained(folder).eval()
        assert widest(want, output(loaded, **inputs)) == 0.0
        folder = tmp_path / str(generation)
        loaded.save_pretrained(folder)
    whole = transformers.AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    assert widest(want, output(whole, **inputs), inputs["attention_mask"]) > 1e-3, "full attention was asked for"


@pytest.mark.slow
def test_without_longspan_a_saved_pattern_is_no_full_attention(published, tmp_path):
    use_attention(published("BertModel"), "window(3)").save_pretrained(tmp_path)
    code = f"import transformers; transformers.AutoModel.from_pretrained({str(tmp_path)!r})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "longspan" in result.stderr.splitlines()[-1]


SMALL = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
IDS = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
LLAMA4 = {"attention_chunk_size": 4, "num_local_experts": 2, "intermediate_size_mlp": 24, "head_dim": 8}
OTHERS = {
    "Llama4TextModel": (SMALL | LLAMA4, "asks for another mask"),
    "Gemma2Model": (SMALL | {"head_dim": 8, "num_key_value_heads": 2}, "softcap, which Gemma2Attention asks for"),
    "BloomModel": ({"vocab_size": 61, "hidden_size": 16, "n_layer": 1, "n_head": 2}, "attention of its own"),
    "BartModel": ({"vocab_size": 61, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}, "has a decoder"),
    "ViTModel": ({"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}, "does not run on token ids"),
    "DebertaV2Model": (SMALL, "attention of its own"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_cannot_is_refused_at_the_call_and_left_as_it_was(name):
    options, message = OTHERS[name]
    model = getattr(transformers, name)(getattr(transformers, name).config_class(**options)).train()
    before = model.config.to_dict(), model.config._attn_implementation
    with pytest.raises(InputError, match=message) as caught:
        use_attention(model, "window(3)")
    assert name in str(caught.value)
    assert (model.config.to_dict(), model.config._attn_implementation) == before
    assert model.training


def test_another_pattern_replaces_the_first_and_a_refusal_keeps_it(published):
    model = use_attention(published("BertModel"), "window(3)")
    use_attention(model, "window(5)")
    assert model.config.longspan_pattern == str(parse("window(5)"))
    model.config.sliding_window = 7
    with pytest.raises(InputError, match="windows of its own"):
        use_attention(model, "window(9)")
    assert model.config.longspan_pattern == str(parse("window(5)"))
    assert model.config._attn_implementation == "longspan"


@pytest.mark.parametrize("name", ["attention_mask", "global_attention_mask"])
def test_a_mask_with_a_two_is_refused(name, published, batch):
    model = use_attention(published("BertModel"), "window(3)")
    inputs = batch(model, 9, globals=True)
    inputs[name][0, 0] = 2
    with pytest.raises(InputError, match=f"{name} holds 2, but .*global_attention_mask"):
        model(**inputs)
