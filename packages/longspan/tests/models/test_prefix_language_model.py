"""The prefix language model beside the definition: masks written by hand, one token at a time, without a cache."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional
from transformers import GenerationConfig

from closeness import check_outputs, check_weights
from longspan.checkpoints import lengthen
from longspan.checkpoints.loading import load_model
from longspan.errors import InputError
from longspan.models import LongspanForPrefixLM

MASK, START = 5, 2
SOURCES, TARGETS = (7, 3, 11), (5, 4, 1)
"""Lengths of the rows."""


HYBRID = [
    {"layers": "0", "mechanism": "sinkhorn", "block_tokens": 4, "target_attention": "full"},
    {"layers": "1", "mechanism": "full"},
]
"""DialogLM's: some layers read the source by sorted blocks, and every layer shows all of it to the target."""
FORMS = {"next-token": ("full", False), "pseudo-masks": ("full", True), "hybrid": (HYBRID, True)}


@pytest.fixture(params=FORMS.values(), ids=FORMS)
def model(request, make_config):
    attention, pseudo = request.param
    config = make_config(attention=attention, pseudo_masks=pseudo, mask_token_id=MASK, scale_embedding=True)
    model = LongspanForPrefixLM(config).double().eval()
    for name, parameter in model.named_parameters():
        if "source_" in name:  # which otherwise start as copies
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture
def batch(make_batch):
    """Sources `(B, S)` with their mask, and labels `(B, T)`."""
    ids, mask = make_batch(*SOURCES)
    labels, real = make_batch(*TARGETS)
    return ids, mask, labels.masked_fill(real == 0, -100)


def of_source(attention, hidden):
    """What a source `(S, E)` gathers in a layer of the hybrid: bidirectional sorted blocks by its own projections."""
    plain = replace(attention.config, target_attention="sorted").build(width=attention.width, heads=3).double().eval()
    weights = {
        f"{name}.{kind}": getattr(getattr(attention, f"source_{name}"), kind)
        for name in ("query", "key", "value")
        for kind in ("weight", "bias")
    }
    weights["output.weight"] = torch.eye(attention.width, dtype=hidden.dtype)
    weights["output.bias"] = torch.zeros(attention.width, dtype=hidden.dtype)
    return functional_call(plain, weights, (hidden[None],))[0]


def dense(model, ids, places, seen, read):
    """Logits `(N, V)` of one row by the formulas: post-norm blocks, and a softmax over the pairs in `seen` `(N, N)`;
    in layers of the hybrid the `read` tokens of the source gather by sorted blocks."""
    decoder, size = model.decoder, model.config.hidden_size
    table = decoder.embeddings
    hidden = table.norm(table.token(ids) * math.sqrt(size) + table.position(places + table.offset))
    for block in decoder.layers:
        each = (getattr(block.attention, name)(hidden) for name in ("query", "key", "value"))
        query, key, value = (one.view(len(ids), 3, size // 3).transpose(0, 1) for one in each)
        scores = (query @ key.mT / math.sqrt(size // 3)).masked_fill(~seen, -math.inf)
        gathered = (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
        if hasattr(block.attention, "source_query"):
            gathered = torch.cat([of_source(block.attention, hidden[:read]), gathered[read:]])
        hidden = block.attention_norm(hidden + block.attention.output(gathered))
        wide = functional.gelu(block.feed_forward.up(hidden))
        hidden = block.feed_forward_norm(hidden + block.feed_forward.down(wide))
    return model.lm_head(hidden)


def by_hand(model, source, target):
    """Logits `(T, V)` of a target behind a source, a token at a time: each sees the true ones before it alone."""
    found = []
    for index in range(len(target)):
        ids = [*source, START, *target[:index]] + [MASK] * model.config.pseudo_masks
        read = len(source) + 1
        seen = torch.tensor([[k < read or k <= q for k in range(len(ids))] for q in range(len(ids))])
        found.append(dense(model, torch.tensor(ids), torch.arange(len(ids)), seen, read)[-1])
    return torch.stack(found)


def test_every_row_is_what_the_definition_gives_token_by_token(model, batch):
    ids, mask, labels = batch
    output = model(ids, mask, labels=labels)
    assert output.logits.shape == (3, max(TARGETS), 61)
    nats = 0.0
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        expected = by_hand(model, ids[row, :source].tolist(), labels[row, :target].tolist())
        torch.testing.assert_close(output.logits[row, :target], expected, atol=1e-10, rtol=1e-10)
        nats = nats + functional.cross_entropy(expected, labels[row, :target], reduction="sum")
    torch.testing.assert_close(output.loss, nats / sum(TARGETS))
    torch.testing.assert_close(model(ids, mask, labels=labels, num_items_in_batch=5).loss, output.loss * 2)


def test_gradients_are_those_of_the_definition(model, batch):
    ids, mask, labels = (part[:2] for part in batch)
    model(ids, mask, labels=labels).loss.backward()
    fast = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    rows = [(ids[row, :n].tolist(), labels[row, :t]) for row, (n, t) in enumerate(zip((7, 3), (5, 4), strict=True))]
    each = [functional.cross_entropy(by_hand(model, s, t.tolist()), t, reduction="sum") for s, t in rows]
    (torch.stack(each).sum() / 9).backward()
    slow = {name: weight.grad for name, weight in model.named_parameters()}
    # A padded source writes nothing, so its own row of the table gets nothing either.
    torch.testing.assert_close(fast, slow, atol=1e-10, rtol=1e-8)


@torch.no_grad()
@pytest.mark.parametrize("padding", ["right", "left"])
def test_cached_writing_is_the_likeliest_token_again_and_again(model, batch, padding):
    ids, mask, _ = batch
    if padding == "left":
        ids, mask = ids.flip(1), mask.flip(1)
    written = torch.empty(3, 0, dtype=torch.long)
    for _ in range(6):
        guessed = model(ids, mask, labels=torch.cat([written, written.new_full((3, 1), 9)], 1)).logits[:, -1]
        guessed[:, 60] = -math.inf  # the end, which comes after six tokens at the earliest
        written = torch.cat([written, guessed.argmax(-1, keepdim=True)], 1)
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "eos_token_id": 60}
    assert torch.equal(model.generate(ids, attention_mask=mask, global_attention_mask=mask, **options), written)
    beams = {**options, "num_beams": 3, "no_repeat_ngram_size": 1}
    together = model.generate(ids, attention_mask=mask, **beams)
    alone = ids[1:2, mask[1] == 1]
    assert torch.equal(together[1:2], model.generate(alone, **beams))
    # No token twice in what is written, whatever the source holds.
    assert all(len(set(row)) == 6 for row in together.tolist())


@torch.no_grad()
def test_it_writes_up_to_its_last_position(make_config):
    for pseudo in (False, True):
        config = make_config(attention="full", pseudo_masks=pseudo, mask_token_id=MASK, max_position_embeddings=19)
        model, most = LongspanForPrefixLM(config).eval(), 8 - pseudo
        ids = torch.randint(6, 61, (1, 11))
        assert model.generate(ids, max_new_tokens=most, min_new_tokens=most).shape == (1, most)
        with pytest.raises(InputError, match=f"give at most {most}"):
            model.generate(ids, max_new_tokens=most + 1)


@torch.no_grad()
def test_total_lengths_are_those_of_what_is_written(model, batch, caplog):
    """As of an encoder–decoder, and not less the source's, as transformers counts behind embeddings."""
    ids, *_ = batch
    end = int(model.generate(ids[:1], max_new_tokens=1, do_sample=False))
    options = {"do_sample": False, "eos_token_id": end}  # which would come first
    assert model.generate(ids[:1], max_new_tokens=9, **options).shape == (1, 1)
    assert model.generate(ids[:1], min_length=5, max_length=9, **options).shape[1] in range(6, 10)
    settings = GenerationConfig(min_length=5, max_length=6, **options)
    assert model.generate(ids[:1], generation_config=settings).shape == (1, 6)
    assert (settings.min_length, settings.max_length, settings.max_new_tokens) == (5, 6, None)
    model.generation_config = settings
    assert model.generate(ids[:1]).shape == (1, 6)
    assert model.generate(ids[:1], min_length=0, max_new_tokens=7).shape == (1, 1)
    with pytest.raises(InputError, match="max_new_tokens=9999 is more"):
        model.generate(ids[:1], max_length=9999)
    assert "seem to have been set" not in caplog.text


@torch.no_grad()
def test_saved_and_found_again(model, batch, tmp_path):
    model.float().save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert isinstance(loaded, LongspanForPrefixLM)
    assert loaded.config.pseudo_masks == model.config.pseudo_masks
    ids, mask, labels = batch
    check_weights(loaded, model)
    check_outputs(loaded.eval()(ids, mask, labels=labels).logits, model(ids, mask, labels=labels).logits)
    assert "LongspanForPrefixLM.from_pretrained" in (tmp_path / "README.md").read_text(encoding="utf-8")


@torch.no_grad()
def test_lengthened_it_reads_more_and_short_sources_as_before(model, batch):
    ids, mask, labels = batch
    longer = lengthen(model, model.config.attention, 211)
    check_outputs(longer(ids, mask, labels=labels).logits, model(ids, mask, labels=labels).logits)
    assert longer.get_parameter("decoder.embeddings.position.weight").shape[0] == 213
    assert longer.config.max_decoder_position_embeddings == 211
    assert longer(torch.randint(6, 61, (1, 150)), labels=labels[:1]).loss.isfinite()


def test_a_model_is_refused_whose_layers_do_not_read_both_ways(make_config):
    with pytest.raises(
        InputError,
        match=r"attention of layer 0 is longformer.*choose one that does.*full.*sinkhorn.*target_attention=full",
    ):
        LongspanForPrefixLM(make_config())
    with pytest.raises(InputError, match=r"sinkhorn.* supports no bidirectional source"):
        LongspanForPrefixLM(make_config(attention="sinkhorn"))
    with pytest.raises(InputError, match="positions=relative"):
        LongspanForPrefixLM(make_config(attention={"mechanism": "full", "positions": "relative"}))
    with pytest.raises(InputError, match="stack='recurrent'"):
        LongspanForPrefixLM(make_config(attention="full", stack="recurrent"))
    with pytest.raises(InputError, match="cutoffs"):
        LongspanForPrefixLM(make_config(attention="full", cutoffs=[20]))
    with pytest.raises(InputError, match=r"decoder_layers=2.*LongspanForPrefixLM"):
        LongspanForPrefixLM(make_config(attention="full", decoder_layers=2))


def test_mistakes_are_named(model, batch, make_config):
    ids, mask, labels = batch
    with pytest.raises(InputError, match="logits_to_keep=1 and labels"):
        model(ids, mask, labels=labels, logits_to_keep=1)
    cache = model(ids, mask).cache
    assert cache.get_seq_length() == ids.shape[1]
    with pytest.raises(InputError, match="cache with 11 tokens and labels"):
        model(ids[:, :1], cache=cache, labels=labels)
    with pytest.raises(InputError, match="neither given"):
        model(labels=labels)
    with pytest.raises(InputError, match=r"attention_mask has shape \(3, 4\)"):
        model(ids, mask[:, :4], labels=labels)
    for wrong in (labels[:1], labels[0]):
        with pytest.raises(InputError, match=r"labels has shape .* but the input has 3 rows"):
            model(ids, mask, labels=wrong)
    for options in ({"use_cache": False}, {"prefill_chunk_size": 3}, {"cache": cache}):
        with pytest.raises(InputError, match=next(iter(options))):
            model.generate(ids, attention_mask=mask, max_new_tokens=2, **options)
    if model.config.pseudo_masks:
        with pytest.raises(InputError, match="cache_implementation is given"):
            model.generate(ids, attention_mask=mask, max_new_tokens=2, cache_implementation="static")
        with pytest.raises(InputError, match="2 tokens after a cache"):
            model(ids[:, :2], cache=cache)
        without = LongspanForPrefixLM(make_config(attention="full", pseudo_masks=True))
        with pytest.raises(InputError, match="mask_token_id=None"):
            without(ids, mask, labels=labels)
    nothing = LongspanForPrefixLM(make_config(attention="full", eos_token_id=None))
    with pytest.raises(InputError, match="no token that starts"):
        nothing(ids, mask, labels=labels)
