"""The segment-recurrent stack against its definition, and against one dense pass over the whole unrolled text."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from closeness import check_outputs
from longspan.errors import InputError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForMaskedLM,
    LongspanModel,
)
from longspan.models.transformers_names import CACHE, enable_checkpointing

HEADS, HEAD_WIDTH, WIDTH = 2, 3, 6
RELATIVE = {"mechanism": "full", "positions": "relative", "bias": False}
WINDOWS = {"mechanism": "longformer", "positions": "relative", "left_tokens": 5, "dilation": [1, 2]}
KINDS = {"relative": RELATIVE, "plain": {"mechanism": "full"}, "windows": WINDOWS}
every_kind = pytest.mark.parametrize("attention", KINDS.values(), ids=KINDS)


def build(attention=None, *, memory=7, layers=3, same_length=False, **fields):
    sizes = {"vocab_size": 29, "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": layers}
    sizes |= {"intermediate_size": 11, "position_embedding": "none", "dropout": 0.0, "init_std": 0.4}
    stack = {"stack": "recurrent", "memory_tokens": memory, "same_length": same_length}
    model = LongspanForCausalLM(LongspanConfig(attention=attention or RELATIVE, stack=stack, **(sizes | fields)))
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.4)
    return model.double().eval()


def ids_of(rows, length):
    return torch.randint(3, 29, (rows, length))


def in_segments(model, ids, segments, *, learns=False, mask=None, **options) -> tuple[Tensor, object]:
    """The logits of segments that follow one another, and the cache behind them."""
    cache, found, end = None, [], 0
    with torch.set_grad_enabled(learns):
        for length in segments:
            end += length
            given = {} if mask is None else {"attention_mask": mask[:, :end]}
            output = model(ids[:, end - length : end], cache=cache, use_cache=True, **given, **options)
            cache = output.cache
            found.append(output.logits)
    return torch.cat(found, 1), cache


def sinusoid(distance: Tensor) -> Tensor:
    angles = [distance.double() / 10000 ** (2 * i / WIDTH) for i in range(WIDTH // 2)]
    return torch.stack([*(angle.sin() for angle in angles), *(angle.cos() for angle in angles)], -1)


def block_by_hand(model, block, context: Tensor, seen: Tensor) -> Tensor:
    """A block for the last T of S positions, `(B, S, E)` → `(B, T, E)`; `seen` `(B, T, S)` says what each sees."""
    attention, (rows, keys, _), queries = block.attention, context.shape, seen.shape[1]
    normed = block.attention_norm(context) if block.pre else context
    q, k, v = (
        project(normed).view(rows, keys, HEADS, HEAD_WIDTH)
        for project in (attention.query, attention.key, attention.value)
    )
    q, distance = q[:, keys - queries :], torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    config, seen = attention.config, seen[:, None].expand(-1, HEADS, -1, -1)
    if config.mechanism == "longformer":
        steps = torch.tensor(config.dilation)[:, None, None]
        seen = seen & (distance % steps == 0) & (distance <= config.left_tokens * steps)
    scores = torch.einsum("bihd,bjhd->bhij", q, k)
    if config.positions == "relative":
        content, position = model.decoder.relative()
        places = (sinusoid(distance) @ attention.position.weight.T).view(queries, keys, HEADS, HEAD_WIDTH)
        scores = torch.einsum("bihd,bjhd->bhij", q + content, k)
        scores = scores + torch.einsum("bihd,ijhd->bhij", q + position, places)
    weights = (scores * HEAD_WIDTH**-0.5).masked_fill(~seen, -1e300).softmax(-1) * seen
    hidden = context[:, keys - queries :]
    gathered = attention.output(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))
    if block.pre:
        hidden = hidden + gathered
        return hidden + block.feed_forward(block.feed_forward_norm(hidden))
    hidden = block.attention_norm(hidden + gathered)
    return block.feed_forward_norm(hidden + block.feed_forward(hidden))


def logits_of(model, hidden: Tensor) -> Tensor:
    norm = model.decoder.final_norm
    return model.lm_head(hidden if norm is None else norm(hidden))


def unrolled(model, ids: Tensor, segments, memory: int, mask: Tensor | None = None, same: bool = False) -> Tensor:
    """One dense pass over the whole text: in every layer a query sees the keys from `memory` positions before its
    segment on, up to itself; with `same` as many as `memory` in all."""
    place, starts = torch.arange(ids.shape[1]), []
    for length in segments:
        starts += [len(starts)] * length
    first = torch.tensor(starts) - memory if not same else place - memory + 1
    seen = (place[None] <= place[:, None]) & (place[None] >= first[:, None])
    seen = seen.expand(len(ids), -1, -1) if mask is None else seen & mask[:, None].bool()
    hidden = model.decoder.embeddings(ids)
    for block in model.decoder.layers:
        hidden = block_by_hand(model, block, hidden, seen)
    return logits_of(model, hidden)


def by_definition(model, embedded: Tensor, segments, memory: int) -> list[Tensor]:
    """Logits of each segment, from `[SG(m) ∘ h]` in every layer, the memories being the last inputs of each."""
    memories, found = [embedded[:, :0]] * len(model.decoder.layers), []
    for hidden in embedded.split(segments, 1):
        for layer, block in enumerate(model.decoder.layers):
            context = torch.cat([memories[layer].detach(), hidden], 1)
            past, total = context.shape[1] - hidden.shape[1], context.shape[1]
            seen = torch.arange(past, total)[:, None] >= torch.arange(total)
            memories[layer] = context[:, max(0, total - memory) :]
            hidden = block_by_hand(model, block, context, seen.expand(len(hidden), -1, -1))
        found.append(logits_of(model, hidden))
    return found


@every_kind
@pytest.mark.parametrize("memory", [0, 3, 7, 100])
@pytest.mark.parametrize("normalization", ["post", "pre"])
def test_segments_equal_the_dense_pass_over_the_unrolled_text(attention, memory, normalization):
    model, ids, segments = build(attention, memory=memory, normalization=normalization), ids_of(3, 31), (9, 1, 1, 5, 15)
    mask = torch.arange(31) >= torch.tensor([[0], [4], [13]])
    with torch.no_grad():
        expected = unrolled(model, ids, segments, memory, mask)
    for learns in (False, True):
        found, cache = in_segments(model, ids, segments, learns=learns, mask=mask)
        torch.testing.assert_close(found[mask], expected[mask])
        assert cache.get_seq_length() == 31
        kind = "HiddenLayer" if learns else "WindowLayer"
        assert {type(layer).__name__ for layer in cache.layers} == {kind}


def test_with_one_layer_and_a_long_memory_segments_equal_full_attention():
    model, ids = build(layers=1, memory=31), ids_of(2, 31)
    whole = model(ids, use_cache=False).logits
    for segments in ((31,), (8, 8, 8, 7), (1,) * 31):
        torch.testing.assert_close(in_segments(model, ids, segments)[0], whole)


@every_kind
def test_gradients_are_those_of_the_definition_and_none_reaches_the_memory(attention):
    model, segments = build(attention, memory=5).train(), (8, 6, 7)
    given = torch.randn(2, 21, WIDTH, dtype=torch.float64, requires_grad=True)
    labels, found = ids_of(2, 21), []
    weights = [each for name, each in model.named_parameters() if "token" not in name and "lm_head" not in name]
    embedded = model.decoder.embeddings(None, inputs_embeds=given)
    cache, ours = None, []
    for part in embedded.split(segments, 1):
        output = model.decoder(None, inputs_embeds=part, cache=cache, use_cache=True)
        cache = output.cache
        ours.append(model.lm_head(output.last_hidden_state))
    # The decoder normalises and drops what it embeds; here that has been done.
    for logits in (by_definition(model, model.decoder.embeddings(None, inputs_embeds=embedded), segments, 5), ours):
        losses = [
            cross_entropy(a.flatten(0, 1), b.flatten()) for a, b in zip(logits, labels.split(segments, 1), strict=True)
        ]
        last = torch.autograd.grad(losses[-1], given, retain_graph=True)[0]
        assert not last[:, :14].any()
        assert last[:, 14:].any()
        total = torch.autograd.grad(sum(losses), [given, *weights], allow_unused=True, retain_graph=True)
        found.append((logits, total))
    torch.testing.assert_close(*found)


def test_training_goes_on_with_labels_and_a_cache():
    model, ids = build().train(), ids_of(2, 24)
    cache = None
    for part in ids.split(8, 1):
        output = model(part, labels=part, use_cache=True, cache=cache)
        cache = output.cache
        output.loss.backward()
    assert [layer.hidden.shape for layer in cache.layers] == [(2, 7, WIDTH)] * 3
    assert not any(layer.hidden.requires_grad for layer in cache.layers)
    assert model(ids[:, :8], labels=ids[:, :8]).cache is None


@pytest.mark.parametrize("memory", [1, 4, 12])
@pytest.mark.parametrize("attention", [RELATIVE, WINDOWS], ids=["full", "windows"])
def test_same_length_shows_every_query_as_many_keys(memory, attention):
    model, ids, segments = build(attention, memory=memory, same_length=True), ids_of(2, 29), (9, 1, 12, 7)
    expected = unrolled(model, ids, segments, memory, same=True)
    for learns in (False, True):
        torch.testing.assert_close(in_segments(model, ids, segments, learns=learns)[0], expected)
    torch.testing.assert_close(model(ids, use_cache=False).logits, expected)


def test_same_length_is_the_published_mask():
    """`mask_len = klen - mem_len`, `shift = qlen - mask_len` or else qlen, and j ≤ i - shift is hidden as well."""
    memory = 6
    for past, new in ((0, 4), (0, 9), (2, 9), (6, 9), (6, 1), (3, 2)):
        keys = past + new
        i, j = torch.arange(new)[:, None], torch.arange(keys)
        shift = new - (keys - memory) if keys > memory else new
        published = (j <= i + past) & (j > i - shift)
        window = (j <= i + past) & (j > i + past - memory)
        assert torch.equal(published, window)


@pytest.mark.parametrize("learns", [False, True])
def test_a_trained_model_takes_another_memory(learns, tmp_path):
    trained, ids, segments = build(memory=3), ids_of(2, 31), (9, 13, 9)
    short = in_segments(trained, ids, segments, learns=learns)[0]
    model = trained.with_memory(memory_tokens=11, same_length=True)
    torch.testing.assert_close(
        in_segments(model, ids, segments, learns=learns)[0], unrolled(model, ids, segments, 11, same=True)
    )
    model = model.with_memory(memory_tokens=31, same_length=False)
    assert all(ours is theirs for ours, theirs in zip(model.parameters(), trained.parameters(), strict=True))
    long = in_segments(model, ids, segments, learns=learns)[0]
    torch.testing.assert_close(long, model(ids, use_cache=False).logits)
    check_outputs(in_segments(model.with_memory(clamp_tokens=30), ids, segments, learns=learns)[0], long)
    model = model.with_memory(clamp_tokens=4)
    clamped = in_segments(model, ids, segments, learns=learns)[0]
    assert not torch.allclose(clamped, long)
    model.save_pretrained(tmp_path)
    loaded = LongspanForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    nothing = {"compressed_tokens": 0, "rate": None, "compression": None, "compression_loss": None}
    assert loaded.config.stack == {"stack": "recurrent", "memory_tokens": 31, "same_length": False, **nothing}
    torch.testing.assert_close(in_segments(loaded, ids, segments, learns=learns)[0], clamped)
    assert not torch.allclose(in_segments(loaded.with_memory(memory_tokens=3), ids, segments, learns=learns)[0], short)
    assert torch.equal(in_segments(trained, ids, segments, learns=learns)[0], short)


def test_columns_of_a_batch_know_nothing_of_each_other():
    model, ids, segments = build(), ids_of(3, 31), (9, 13, 9)
    other = ids.clone()
    other[1] = ids_of(1, 31)
    for learns in (False, True):
        ours, theirs = (in_segments(model, each, segments, learns=learns)[0] for each in (ids, other))
        assert torch.equal(ours[[0, 2]], theirs[[0, 2]])
        assert not torch.allclose(ours[1], theirs[1])


def test_generation_with_a_memory_equals_a_loop_of_full_passes():
    model, prompt = build(memory=6), ids_of(2, 9)
    written, segments = prompt, [9]
    for _ in range(15):
        with torch.no_grad():
            logits = unrolled(model, written, segments, 6)
        written = torch.cat([written, logits[:, -1:].argmax(-1)], 1)
        segments.append(1)
    options = {"max_new_tokens": 15, "min_new_tokens": 15, "do_sample": False, "attention_mask": torch.ones(2, 9)}
    model.generation_config.eos_token_id = None
    assert torch.equal(model.generate(prompt, **options), written)
    # The prompt may come in segments as well, and what is written may be gone on with.
    part = model.generate(
        prompt, **(options | {"max_new_tokens": 5, "min_new_tokens": 5}), return_dict_in_generate=True
    )
    rest = {
        "max_new_tokens": 10,
        "min_new_tokens": 10,
        "cache": part[CACHE],
        "attention_mask": torch.ones(2, 14),
    }
    assert torch.equal(model.generate(part.sequences, **(options | rest)), written)
    cache = in_segments(model, prompt[:, :8], (8,), learns=True)[1]
    assert model.generate(prompt, cache=cache, **options).shape == (2, 24)


def test_a_text_goes_on_for_ever_without_a_table_of_positions():
    model = build(max_position_embeddings=10, memory=4)
    found, cache = in_segments(model, ids_of(1, 40), (10,) * 4)
    assert found.isfinite().all()
    assert max(layer.get_mask_sizes(1)[0] for layer in cache.layers) == 5
    table = build({"mechanism": "full"}, max_position_embeddings=10, position_embedding="learned")
    with pytest.raises(InputError, match="20 tokens are more than max_position_embeddings=10"):
        in_segments(table, ids_of(1, 20), (10, 10))


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing_behind_a_memory(reentrant):
    model, ids = (
        build(dropout=0.2, attention={**RELATIVE, "dropout": 0.1, "position_dropout": 0.1}).train(),
        ids_of(2, 24),
    )

    def gradients():
        torch.manual_seed(7)
        model.zero_grad()
        in_segments(model, ids, (8, 9, 7), learns=True)[0].square().mean().backward()
        return {name: each.grad for name, each in model.named_parameters()}

    plain = gradients()
    enable_checkpointing(model, use_reentrant=reentrant)
    torch.testing.assert_close(gradients(), plain)


@pytest.mark.parametrize("normalization", ["pre", "post"])
def test_training_drops_what_comes_out_of_the_last_layer(normalization):
    """As the published code, `core_out = self.drop(core_out)`: once, behind everything, and not in the memory."""
    model, ids = build(dropout=0.25, normalization=normalization), ids_of(3, 500)
    plain = model.decoder(ids, use_cache=False, output_hidden_states=True)
    model.train()
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout) and layer is not model.decoder.final_dropout:
            layer.p = 0.0
    dropped = model.decoder(ids, use_cache=True, output_hidden_states=True)
    kept = dropped.last_hidden_state != 0
    torch.testing.assert_close(dropped.last_hidden_state[kept], plain.last_hidden_state[kept] / 0.75)
    assert abs(float((~kept).double().mean()) - 0.25) < 5 * (0.25 * 0.75 / kept.numel()) ** 0.5
    assert torch.equal(dropped.hidden_states[-1], dropped.last_hidden_state)
    for layer, (state, before) in enumerate(zip(dropped.cache.layers, plain.hidden_states, strict=False)):
        torch.testing.assert_close(state.hidden, before[:, -7:], msg=f"memory of layer {layer}")


@every_kind
def test_short_floats_and_autocast_stay_close(attention):
    exact, ids, segments = build(attention).float(), ids_of(2, 31), (9, 13, 9)
    expected = in_segments(exact, ids, segments)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = [in_segments(exact, ids, segments, learns=learns)[0].float() for learns in (False, True)]
    short = build(attention).bfloat16()
    short.load_state_dict(exact.state_dict())
    found += [in_segments(short, ids, segments, learns=learns)[0].float() for learns in (False, True)]
    for logits in found:
        assert (logits - expected).abs().mean() < 0.05 * expected.abs().mean()


@pytest.mark.slow
@pytest.mark.parametrize("learns", [False, True])
def test_a_segment_compiles(learns):
    model, ids, segments = build(layers=1), ids_of(2, 20), (10, 10)
    plain = in_segments(model, ids, segments, learns=learns)[0]
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", dynamic=True)
    torch.testing.assert_close(in_segments(compiled, ids, segments, learns=learns)[0], plain)


def test_what_cannot_be_is_refused_in_one_sentence():
    for kind in (LongspanModel, LongspanForMaskedLM):
        with pytest.raises(InputError, match="stack 'recurrent' cannot encode"):
            kind(build().config)
    with pytest.raises(InputError, match="decoder_layers=2 means nothing in stack 'recurrent'"):
        LongspanForConditionalGeneration(LongspanConfig(stack="recurrent", decoder_layers=2))
    with pytest.raises(InputError, match="leaves no key to see"):
        build(memory=0, same_length=True)
    with pytest.raises(InputError, match=r"stack\.memory_tokens is -1|memory_tokens is -1"):
        build(memory=-1)
    with pytest.raises(InputError, match="'linear' does not choose keys by their distance; set same_length=False"):
        build({"mechanism": "linear"}, same_length=True)
    model, ids = build(), ids_of(1, 12)
    cache = in_segments(model, ids, (12,))[1]
    with pytest.raises(InputError, match="which have no gradients"):
        model(ids, cache=cache)
    with pytest.raises(InputError, match="clamp_tokens=5 means nothing to attention 'full'"):
        build({"mechanism": "full"}).with_memory(clamp_tokens=5)
    with pytest.raises(InputError, match=r"unknown key 'stack\.memory'"):
        model.with_memory(memory=3)
    plain = LongspanForCausalLM(LongspanConfig(**{**model.config.to_diff_dict(), "stack": "sequential"}))
    with pytest.raises(InputError, match=r"unknown key 'stack\.memory_tokens'"):
        plain.with_memory(memory_tokens=3)


def test_what_was_remembered_cannot_be_taken_back_while_something_learns():
    cache = in_segments(build(), ids_of(1, 12), (12,), learns=True)[1]
    with pytest.raises(InputError, match="cannot be taken back"):
        cache.layers[0].crop(-1)
    assert not cache.layers[0].is_croppable
    assert in_segments(build(), ids_of(1, 12), (12,))[1].layers[0].is_croppable
