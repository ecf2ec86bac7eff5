"""The compressive memory against its definition in loops: groups, gradients, losses; and models that have one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention import Tokens, attention_config
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.models.stream_memory import StreamMemory
from longspan.stacks import RecurrentConfig, Sizes, stack_config
from longspan.stacks.block import Block, BlockState
from longspan.stacks.compression import Compressor

HEADS, WIDTH = 2, 6
RELATIVE = {"mechanism": "full", "positions": "relative", "bias": False, "share_biases": False}
MEMORY = {"memory_tokens": 7, "compressed_tokens": 3, "rate": 2}


def make_stack(*, layers=2, attention=None, pre=False, dtype=torch.float64, **options):
    """A stack with random weights, and f_c that is no mean."""

    def block(layer):
        built = attention_config(attention or RELATIVE).build(width=WIDTH, heads=HEADS, causal=True)
        sizes = {"activation_function": "gelu", "eps": 1e-5, "dropout": 0.0, "activation_dropout": 0.0}
        return Block(built, inner=5, pre=pre, **sizes)

    config = RecurrentConfig(**{**MEMORY, **options})
    stack = config.build(block, layers, Sizes(width=WIDTH, heads=HEADS, causal=True))
    for name, weight in stack.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(weight, std=0.5)
    return stack.to(dtype).eval()


def in_segments(stack, text: Tensor, segments, mask: Tensor | None = None, *, learns: bool):
    """The states of segments that follow one another, the losses, and the states that layers keep."""
    states, outputs, losses, end = None, [], [], 0
    with torch.set_grad_enabled(learns):
        states = [BlockState(stack.new_state(layer)) for layer in range(len(stack))]
        for length in segments:
            end += length
            tokens = Tokens(mask=None if mask is None else mask[:, :end])
            output = stack(text[:, end - length : end], tokens, block_states=states)
            outputs.append(output.states)
            losses.append(output.aux.loss)
    return torch.cat(outputs, 1), losses, [state.own for state in states]


def one_of(compressor: Compressor, states: list[Tensor]) -> Tensor:
    """f_c of c states, and of the further ones behind them."""
    rate = compressor.rate
    if compressor.compression == "mean":
        return sum(states[:rate]) / rate
    if compressor.compression == "max":
        return torch.stack(states[:rate]).amax(0)
    read = states[:rate]
    if compressor.compression == "dilated":
        weight, bias = compressor.dilated.weight, compressor.dilated.bias
        taps = [sum(weight[..., k] @ states[i + k * rate] for k in range(rate)) for i in range(rate)]
        read = [state + tap + bias for state, tap in zip(read, taps, strict=True)]
    weight, bias = compressor.convolution.weight, compressor.convolution.bias
    return bias + sum(weight[..., i] @ state for i, state in enumerate(read))


def gathered(attention, queries: Tensor, memory: Tensor) -> Tensor:
    """What `(T, E)` gather from `(M, E)` by content, head by head: `(T, H·D)`."""
    split = WIDTH // HEADS
    parts = []
    for head in range(HEADS):
        rows = slice(head * split, (head + 1) * split)
        q, k, v = (
            torch.nn.functional.linear(x, part.weight[rows], None if part.bias is None else part.bias[rows])
            for part, x in ((attention.query, queries), (attention.key, memory), (attention.value, memory))
        )
        parts.append((q @ k.T / split**0.5).softmax(-1) @ v)
    return torch.cat(parts, -1)


def by_definition(stack, text: Tensor, segments) -> tuple[Tensor, list[Tensor], list[list[Tensor]]]:
    """One row `(T, E)`: states, the loss of each segment, and what each layer holds in the end."""
    config = stack.config
    limits = config.memory_tokens, config.compressed_tokens, config.rate or 3
    recent, old = [[] for _ in stack], [[] for _ in stack]
    outputs, losses = [], []
    for hidden in text.split(segments):
        loss = 0.0
        for layer, block in enumerate(stack):
            memory = torch.stack([*old[layer], *recent[layer]])[None] if recent[layer] else None
            after = block(hidden[None], Tokens(), memory=memory)[0]
            recent[layer] += list(hidden.detach())
            left, made = [], []
            while len(recent[layer]) - limits[0] >= limits[2]:
                made.append(one_of(stack.compressors[layer], recent[layer]))
                left += recent[layer][: limits[2]]
                recent[layer] = recent[layer][limits[2] :]
            if made and config.learns_to_compress:
                loss = loss + lost(stack, layer, torch.stack(left), torch.stack(made), hidden.detach())
            old[layer] = [*old[layer], *(each.detach() for each in made)][-limits[1] :]
            hidden = after
        outputs.append(hidden)
        losses.append(loss)
    return torch.cat(outputs), losses, [[*a, *b] for a, b in zip(old, recent, strict=True)]


def lost(stack, layer: int, left: Tensor, made: Tensor, hidden: Tensor) -> Tensor:
    block, compressor = stack[layer], stack.compressors[layer]
    if stack.config.compression_loss == "auto_encoding":
        decoded = [compressor.decoder(each).view(compressor.rate, WIDTH) for each in made]
        return (torch.cat(decoded) - left).square().mean()
    norm = block.attention_norm if block.pre else torch.nn.Identity()
    ways = [gathered(block.attention, norm(hidden), norm(memory)) for memory in (left, made)]
    return (ways[0] - ways[1]).square().mean()


KINDS = [
    {"compression": "mean"},
    {"compression": "max"},
    {},
    {"compression": "convolution", "compression_loss": "auto_encoding"},
    {"compression": "dilated"},
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind.values()) or "convolution")
SEGMENTS = (9, 1, 4, 0, 6, 2, 1, 1, 7)


@every_kind
@pytest.mark.parametrize(("pre", "learns"), [(False, True), (True, False)])
def test_segments_equal_the_definition(kind, pre, learns):
    stack, text = make_stack(pre=pre, **kind), torch.randn(2, sum(SEGMENTS), WIDTH, dtype=torch.float64)
    ours, _, states = in_segments(stack, text, SEGMENTS, learns=learns)
    for row in range(2):
        expected, _, held = by_definition(stack, text[row], SEGMENTS)
        torch.testing.assert_close(ours[row], expected)
        for state, each in zip(states, held, strict=True):
            torch.testing.assert_close(state.hidden[row], torch.stack(each))
            assert ("key" in state.tensors) is not learns
    assert states[0].get_seq_length() == sum(SEGMENTS)


@pytest.mark.parametrize(("kind", "pre"), [(KINDS[0], False), *((kind, True) for kind in KINDS[2:]), (KINDS[2], False)])
def test_losses_and_all_gradients_equal_the_definition(kind, pre):
    stack = make_stack(pre=pre, **kind).train()
    text = torch.randn(1, sum(SEGMENTS), WIDTH, dtype=torch.float64, requires_grad=True)
    ours, losses, _ = in_segments(stack, text, SEGMENTS, learns=True)
    expected, wanted, _ = by_definition(stack, text[0], SEGMENTS)
    weights = dict(stack.named_parameters())
    ours_main = torch.autograd.grad(ours.square().sum(), [text, *weights.values()], allow_unused=True)
    main = torch.autograd.grad(expected.square().sum(), [text, *weights.values()], allow_unused=True)
    torch.testing.assert_close(ours_main, main)
    own = [name for name in weights if name.startswith("compressors")]
    assert all((gradient is None) == (name in own) for name, gradient in zip(weights, ours_main[1:], strict=True))
    if not own:
        assert losses == [None] * len(SEGMENTS)
    else:
        torch.testing.assert_close(
            torch.stack(losses), torch.stack([torch.as_tensor(each) for each in wanted]).double()
        )
        theirs = torch.autograd.grad(sum(wanted), [weights[name] for name in own])
        gradients = torch.autograd.grad(sum(losses), [text, *weights.values()], allow_unused=True)
        assert gradients[0] is None
        ours_of_loss = dict(zip(weights, gradients[1:], strict=True))
        torch.testing.assert_close([ours_of_loss[name] for name in own], list(theirs))
        assert all(gradient is None for name, gradient in ours_of_loss.items() if name not in own)


def test_a_loss_of_nothing_reaches_every_weight_of_a_compression():
    stack = make_stack().train()
    _, (loss,), _ = in_segments(stack, torch.randn(2, 3, WIDTH, dtype=torch.float64), (3,), learns=True)
    assert loss == 0
    loss.backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in stack.compressors.parameters())


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_every_row_is_as_if_it_were_alone(data):
    """Whatever stands between the real tokens of a row: padding on either side, in any segment, and of whole rows."""
    kind = data.draw(st.sampled_from(KINDS))
    memory, compressed, rate = (data.draw(st.integers(*span)) for span in ((6, 9), (1, 4), (1, 3)))
    stack = make_stack(memory_tokens=memory, compressed_tokens=compressed, **{**kind, "rate": rate}).train()
    lengths = [data.draw(st.lists(st.integers(0, 8), min_size=3, max_size=3)) for _ in range(4)]
    segments = [max(each) for each in lengths]
    text = torch.randn(3, sum(segments), WIDTH, dtype=torch.float64)
    mask = torch.zeros(3, sum(segments), dtype=torch.bool)
    for segment, each in enumerate(lengths):
        for row, length in enumerate(each):
            first = sum(segments[:segment]) + (segments[segment] - length) * data.draw(st.integers(0, 1))
            mask[row, first : first + length] = True
    for learns in (True, False):
        stack.train(learns)
        ours, losses, states = in_segments(stack, text, segments, mask, learns=learns)
        assert all(loss is None or loss.isfinite() for loss in losses)
        for row in range(3):
            own = [each[row] for each in lengths]
            expected, _, held = by_definition(stack, text[row][mask[row]], own)
            torch.testing.assert_close(ours[row][mask[row]], expected)
            for state, each in zip(states, held, strict=True):
                if each:
                    torch.testing.assert_close(state.hidden[row, -len(each) :], torch.stack(each))


@pytest.mark.parametrize("kind", KINDS[2:])
def test_the_loss_of_a_padded_batch_is_a_mean_over_what_is_there(kind):
    stack = make_stack(layers=1, **kind).train()
    text = torch.randn(2, 18, WIDTH, dtype=torch.float64)
    mask = torch.arange(18) >= torch.tensor([[0], [6]])
    _, (_, loss), _ = in_segments(stack, text, (12, 6), mask, learns=True)
    sums, counts = 0.0, 0
    for row, segments in enumerate(((12, 6), (6, 6))):
        own = by_definition(stack, text[row][mask[row]], segments)[1][1]
        weight = (3, 2)[row] if stack.config.compression_loss == "auto_encoding" else 6
        sums, counts = sums + weight * own, counts + weight
    torch.testing.assert_close(loss, sums / counts)


def test_rate_one_with_a_mean_is_a_longer_memory():
    text = torch.randn(2, 40, WIDTH, dtype=torch.float64)
    for learns in (True, False):
        torch.manual_seed(3)
        ours = make_stack(memory_tokens=8, compressed_tokens=16, rate=1, compression="mean")
        plain = make_stack(memory_tokens=24, compressed_tokens=0, rate=None)
        plain.load_state_dict(ours.state_dict())
        outputs = [in_segments(stack, text, (8,) * 5, learns=learns)[0] for stack in (ours, plain)]
        torch.testing.assert_close(*outputs)


def test_without_compressed_tokens_it_is_transformer_xl_bit_for_bit():
    torch.manual_seed(3)
    plain = RecurrentConfig(memory_tokens=7)
    assert plain.returns() == RecurrentConfig(memory_tokens=7, compressed_tokens=0).returns()
    stack = make_stack(compressed_tokens=0, rate=None)
    assert not any("compress" in name for name in stack.state_dict())
    assert [type(stack.new_state(0)).__name__, type(make_stack().new_state(0)).__name__] == [
        "HiddenLayer",
        "CompressedLayer",
    ]
    text = torch.randn(2, 24, WIDTH, dtype=torch.float64)
    with_one = make_stack()
    with_one.load_state_dict(stack.state_dict(), strict=False)
    # Until something has left the memory, compressed ones are none, and the same is computed.
    ours, theirs = (in_segments(each, text[:, :7], (3, 4), learns=True)[0] for each in (with_one, stack))
    assert torch.equal(ours, theirs)


SIZES = {"vocab_size": 29, "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 2}
SIZES |= {"intermediate_size": 11, "position_embedding": "none", "dropout": 0.0, "init_std": 0.4}


def make_model(**options):
    attention = {"mechanism": "full", "positions": "relative", "bias": False}
    stack = {"stack": "recurrent", "memory_tokens": 4, "compressed_tokens": 3, "rate": 2, **options}
    return LongspanForCausalLM(LongspanConfig(attention=attention, stack=stack, **SIZES)).double().eval()


def logits_of(model, ids, segments, mask=None):
    cache, logits, end = None, [], 0
    with torch.no_grad():
        for length in segments:
            end += length
            given = {} if mask is None else {"attention_mask": mask[:, :end]}
            output = model(ids[:, end - length : end], cache=cache, use_cache=True, **given)
            cache = output.cache
            logits.append(output.logits)
    return torch.cat(logits, 1), cache


@pytest.mark.parametrize("left", [0, 3])
def test_generation_goes_on_from_its_state(left):
    """One row beside a longer one, and two beams each: what is written is what segments of one token give."""
    model, prompt, new = make_model(), torch.randint(3, 29, (2, 11)), 9
    mask = (torch.arange(11) >= torch.tensor([[0], [left]])).long()
    model.generation_config.eos_token_id = None
    options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    written = model.generate(prompt, attention_mask=mask, **options)
    whole = torch.cat([mask, torch.ones(2, new, dtype=torch.long)], 1)
    logits, cache = logits_of(model, written, (11, *[1] * (new - 1)), whole)
    assert torch.equal(logits[:, 10:].argmax(-1), written[:, 11:])
    assert max(layer.get_mask_sizes(1)[0] for layer in cache.layers) <= 4 + 3 + 2
    alone = model.generate(prompt[1:, left:], **options)
    assert torch.equal(alone[:, 11 - left :], written[1:, 11:])
    beams = {**options, "num_beams": 2}
    both = model.generate(prompt, attention_mask=mask, **beams)
    assert torch.equal(model.generate(prompt[1:, left:], **beams)[:, 11 - left :], both[1:, 11:])


def test_a_model_is_read_with_other_memories_and_saved_as_it_is(tmp_path):
    model, ids, segments = make_model(compression="dilated"), torch.randint(3, 29, (2, 30)), (7, 9, 5, 9)
    before = logits_of(model, ids, segments)[0]
    longer = model.with_memory(memory_tokens=5, compressed_tokens=9)
    assert (
        longer.decoder.layers.compressors[0].convolution.weight
        is model.decoder.layers.compressors[0].convolution.weight
    )
    assert not torch.allclose(logits_of(longer, ids, segments)[0], before)
    assert torch.equal(logits_of(model, ids, segments)[0], before)
    plain = model.with_memory(compressed_tokens=0, rate=None, compression=None)
    assert logits_of(plain, ids, segments)[1].layers[0].get_mask_sizes(1)[0] == 5
    torch.testing.assert_close(logits_of(model.with_memory(same_length=True), ids, (4,))[0], before[:, :4])
    longer.save_pretrained(tmp_path)
    loaded = LongspanForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert stack_config(loaded.config.stack) == stack_config(longer.config.stack)
    torch.testing.assert_close(logits_of(loaded, ids, segments)[0], logits_of(longer, ids, segments)[0])


def test_training_goes_on_exactly_from_a_stored_memory():
    """The memory goes through tensors as a checkpoint holds them; losses and gradients are the same to the last bit."""
    model, ids = make_model().train(), torch.randint(3, 29, (2, 40))
    memory = StreamMemory(model.config)

    def read(carried, parts):
        losses = []
        for number, part in parts:
            output = model(part, labels=part, **carried.before(number, 0))
            carried.after(number, 0, output.cache)
            model.zero_grad()
            output.loss.backward()
            losses.append([output.loss, *(weight.grad.clone() for weight in model.parameters())])
        return losses

    parts = list(enumerate(ids.split(7, 1)))
    read(memory, parts[:3])
    stored = {name: tensor.clone() for name, tensor in memory.tensors().items()}
    again = StreamMemory(model.config)
    again.load(stored, model)
    ours, theirs = read(memory, parts[3:]), read(again, parts[3:])
    assert all(
        torch.equal(a, b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True)
    )
    assert any(weight.any() for weight in ours[-1][1:])
    part = ids[:, :7]
    losses = [
        model(part, labels=part, cache=memory.caches[0], use_cache=True).loss,
        model(part, labels=part).loss,
    ]
    assert losses[0] != losses[1]


def test_what_a_compression_has_lost_joins_the_loss_in_training_alone():
    model, ids = make_model(), torch.randint(3, 29, (2, 16))
    _, cache = logits_of(model, ids[:, :8], (8,))
    model.train()
    found = {}
    for training in (True, False):
        model.train(training)
        _, cache = logits_of(model, ids[:, :8], (8,))
        found[training] = model(ids[:, 8:], labels=ids[:, 8:], cache=cache, use_cache=True)
    main = torch.nn.functional.cross_entropy(found[True].logits[:, :-1].flatten(0, 1), ids[:, 9:].flatten())
    torch.testing.assert_close(found[False].loss, main)
    assert found[True].loss > main


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0}, "rate is 0; it must be at least 1"),
        ({"compressed_tokens": -1}, "compressed_tokens is -1; it must be at least 0"),
        ({"compressed_tokens": 0, "rate": 3}, "rate=3 with compressed_tokens=0 compresses nothing; give"),
        ({"compressed_tokens": 0, "rate": None, "compression": "mean"}, "compression='mean' with compressed_tokens=0"),
        ({"compression": "most_used"}, "compression is 'most_used'; choose 'mean', 'max', 'convolution'"),
        ({"compression": "max", "compression_loss": "attention"}, "has nothing to teach, since it has no weights"),
        ({"compression": "dilated", "rate": 4}, "memory_tokens=7 is too few for compression='dilated'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(options, message):
    with pytest.raises(InputError, match=message):
        RecurrentConfig(**{**MEMORY, **options})


def test_mechanisms_that_gather_otherwise_learn_to_compress_by_decoding():
    linear = {"mechanism": "linear"}
    with pytest.raises(InputError, match="compression_loss='attention' does not go with attention 'linear'"):
        make_stack(attention=linear)
    for options in ({"compression_loss": "auto_encoding"}, {"compression": "mean"}):
        make_stack(attention=linear, **options)


def test_a_cache_of_another_memory_is_refused():
    ids = torch.randint(3, 29, (1, 6))
    _, cache = logits_of(make_model(compressed_tokens=0, rate=None), ids, (6,))
    with pytest.raises(InputError, match="which has no compressed memory; begin the text with a new cache"):
        make_model()(ids, cache=cache)
    _, cache = logits_of(make_model(), ids, (6,))
    with pytest.raises(InputError, match="cannot be taken back"):
        cache.layers[0].crop(-1)
