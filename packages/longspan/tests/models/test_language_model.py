"""The decoder without an encoder as a function: the loss, GPT-2 of equal weights, states, padding, mistakes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, GPT2Config, GPT2LMHeadModel, StaticCache

from closeness import check_outputs, check_weights
from longspan.errors import InputError
from longspan.models import LongspanForCausalLM

WINDOW = {"mechanism": "longformer", "left_tokens": 3}
DILATED = {"mechanism": "longformer", "left_tokens": 2, "dilation": [1, 2, 3]}
LAYERS = {"full": "full", "window": WINDOW, "dilated": DILATED, "mixed": [DILATED, "full"], "mixed2": ["full", WINDOW]}


@pytest.fixture
def make_model(make_config):
    def make(**changes):
        return LongspanForCausalLM(make_config(**({"attention": WINDOW} | changes))).eval()

    return make


def gpt2():
    """A random GPT-2, and ours with its weights: its linear layers hold their matrices the other way round."""
    theirs = GPT2LMHeadModel(
        GPT2Config(vocab_size=61, n_embd=24, n_layer=2, n_head=3, n_positions=97, initializer_range=0.4, bos_token_id=0)
    ).eval()
    config = AutoConfig.for_model(
        "longspan", vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96,
        max_position_embeddings=97, position_offset=0, attention="full", normalization="pre", embedding_norm=False,
        activation_function="gelu_new", eos_token_id=50256, pad_token_id=0,
    )  # fmt: skip
    ours = LongspanForCausalLM(config).eval()
    names = {"wte": "embeddings.token", "wpe": "embeddings.position", "ln_f": "final_norm"}
    weights = {f"decoder.{names[k]}": v for k, v in theirs.transformer.named_children() if k in names}
    pairs = {}
    for name, module in weights.items():
        pairs |= {f"{name}.{kind}": value for kind, value in module.named_parameters()}
    parts = {"ln_1": "attention_norm", "ln_2": "feed_forward_norm", "attn.c_proj": "attention.output"}
    parts |= {"mlp.c_fc": "feed_forward.up", "mlp.c_proj": "feed_forward.down"}
    for layer, block in enumerate(theirs.transformer.h):
        for name, part in parts.items():
            module = block.get_submodule(name)
            pairs[f"decoder.layers.{layer}.{part}.bias"] = module.bias
            turned = module.weight if name.startswith("ln") else module.weight.T
            pairs[f"decoder.layers.{layer}.{part}.weight"] = turned
        joined = block.attn.c_attn
        each = zip(("query", "key", "value"), joined.weight.chunk(3, 1), joined.bias.chunk(3), strict=True)
        for name, weight, bias in each:
            pairs[f"decoder.layers.{layer}.attention.{name}.weight"] = weight.T
            pairs[f"decoder.layers.{layer}.attention.{name}.bias"] = bias
    missing, unexpected = ours.load_state_dict(pairs, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # tied to the table
    return theirs, ours


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 3, "num_return_sequences": 2},
        {"do_sample": True, "top_k": 7},
        {"prefill_chunk_size": 4},
        {"prompt_lookup_num_tokens": 3},
    ],
    ids=lambda options: next(iter(options), "greedy"),
)
def test_gpt2_of_equal_weights_writes_the_same_tokens(options):
    theirs, ours = gpt2()
    ids = torch.randint(1, 61, (2, 11))
    mask = torch.ones_like(ids)
    if "prompt_lookup_num_tokens" in options:
        ids, mask = ids[:1], mask[:1]
    else:
        mask[1, :4] = 0
    ids = ids.masked_fill(mask == 0, 0)
    logits = [model(ids, attention_mask=mask).logits for model in (theirs, ours)]
    torch.testing.assert_close(logits[1][0], logits[0][0], atol=1e-4, rtol=1e-4)
    written = []
    for model in (theirs, ours):
        torch.manual_seed(5)
        options = {"do_sample": False, "max_new_tokens": 21, "pad_token_id": 0, "eos_token_id": 7} | options
        written.append(model.generate(ids, attention_mask=mask, **options))
    assert torch.equal(*written)


@torch.no_grad()
def test_loss_is_the_mean_over_the_next_tokens(make_model, make_batch):
    model = make_model()
    ids, mask = make_batch(17, 11)
    labels = ids.masked_fill(mask == 0, -100)
    output = model(ids, mask, labels=labels)
    expected = [functional.cross_entropy(output.logits[b, : n - 1], ids[b, 1:n]) for b, n in ((0, 17), (1, 11))]
    torch.testing.assert_close(output.loss, (16 * expected[0] + 10 * expected[1]) / 26)
    torch.testing.assert_close(model(ids, mask, labels=labels, num_items_in_batch=13).loss, output.loss * 2)
    assert output.cache is None
    torch.testing.assert_close(model(ids, mask, logits_to_keep=2).logits, output.logits[:, -2:])


@pytest.mark.parametrize("attention", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("normalization", ["post", "pre"])
@pytest.mark.parametrize("position_embedding", ["learned", "sinusoidal", "none"])
@torch.no_grad()
def test_pieces_equal_the_full_pass(attention, normalization, position_embedding, make_model):
    model = make_model(attention=attention, normalization=normalization, position_embedding=position_embedding)
    ids = torch.randint(3, 61, (2, 29))
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    full = model(ids, mask, use_cache=False).logits
    cache, pieces = DynamicCache(), []
    for first, last in ((0, 7), (7, 8), (8, 9), (9, 21), (21, 29)):
        piece = model(ids[:, first:last], mask[:, :last], cache=cache)
        assert piece.cache is cache
        assert cache.get_seq_length() == last
        pieces.append(piece.logits)
    torch.testing.assert_close(torch.cat(pieces, 1)[0], full[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(torch.cat(pieces, 1)[1, 6:], full[1, 6:], atol=1e-5, rtol=1e-4)
    alone = model(ids[1:, 6:]).logits
    torch.testing.assert_close(alone[0], full[1, 6:], atol=1e-5, rtol=1e-4)


def test_the_future_stays_unseen_and_every_parameter_learns(make_model):
    model = make_model(attention=[DILATED, "full"]).train()
    ids = torch.randint(3, 61, (2, 13))
    changed = ids.clone()
    changed[:, 8:] = torch.randint(3, 61, (2, 5))
    model.eval()
    first, second = (model(x).logits for x in (ids, changed))
    assert torch.equal(first[:, :8], second[:, :8])
    assert not torch.equal(first[:, 8:], second[:, 8:])
    model(ids, labels=ids).loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_it_is_saved_and_found_by_transformers(make_model, tmp_path):
    model = make_model(attention=[WINDOW, "full"])
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(again) is LongspanForCausalLM
    assert again.lm_head.weight is again.decoder.embeddings.token.weight
    ids = torch.randint(3, 61, (1, 13))
    check_weights(again, model)
    check_outputs(again(ids).logits, model(ids).logits)
    states = model(ids, output_hidden_states=True).hidden_states
    assert len(states) == 3
    torch.testing.assert_close(model.lm_head(states[-1]), model(ids).logits)


def test_mistakes_are_named(make_model, make_config):
    model = make_model(max_position_embeddings=19)
    ids = torch.randint(3, 61, (2, 13))
    for changes, message in (
        ({"decoder_layers": 2}, "decoder_layers=2 is for LongspanForConditionalGeneration"),
        ({"embedding_size": 12}, "embedding_size=12 differs"),
        ({"global_tokens": "first"}, "global_tokens='first' would let every token see the future"),
        ({"attention": "fusion"}, "'fusion' has no causal form"),
    ):
        with pytest.raises(InputError, match=message):
            LongspanForCausalLM(make_config(**changes))
    with pytest.raises(InputError, match=r"attention_mask covers 12 of 13 tokens; give one for each, \(2, 13\)"):
        model(ids, torch.ones(2, 12))
    with pytest.raises(InputError, match="attention_mask holds 2"):
        model(ids, torch.full((2, 13), 2))
    with pytest.raises(InputError, match=r"labels has shape \(2, 12\)"):
        model(ids, labels=ids[:, 1:])
    with pytest.raises(InputError, match=r"max_new_tokens=8 .* at most 7"):
        model.generate(ids, max_new_tokens=8)
    with pytest.raises(InputError, match="cache is a tuple"):
        model(ids, cache=((ids, ids),))
    with pytest.raises(InputError, match="output_attentions"):
        model(ids, output_attentions=True)


@torch.no_grad()
def test_a_preallocated_cache_is_used_as_it_is(make_model):
    model = make_model(attention=["full", WINDOW])
    ids = torch.randint(3, 61, (2, 13))
    cache = StaticCache(config=model.config, max_cache_len=17)
    pieces = [model(piece, cache=cache).logits for piece in ids.split([5, 1, 7], 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), model(ids).logits, atol=1e-5, rtol=1e-4)
    assert [layer.keys.shape[2] for layer in cache.layers] == [17, min(17, 1 + WINDOW["left_tokens"])]


def test_labels_may_be_moved_already(make_model):
    """As transformers hands them to a text that is spread over several devices: `labels` then count for nothing."""
    model, ids = make_model(), torch.randint(3, 61, (2, 13))
    moved = torch.cat([ids[:, 1:], torch.full((2, 1), -100)], 1)
    moved[1, 5] = -100
    output = model(ids, labels=ids.flip(1), shift_labels=moved)
    torch.testing.assert_close(output.loss, functional.cross_entropy(output.logits.flatten(0, 1), moved.flatten()))
    torch.testing.assert_close(model(ids, shift_labels=moved).loss, output.loss)
