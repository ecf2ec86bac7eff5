"""The reversible stack: numbers worked out by hand, gradients of the stored form, and memory that ignores depth."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from longspan.attention import Attention, FullConfig, LongformerConfig, Tokens
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForConditionalGeneration, LongspanModel
from longspan.models.transformers_names import enable_checkpointing
from longspan.stacks import ReversibleConfig, Sizes
from longspan.stacks.block import Block
from longspan.stacks.rebuilding import Trail

WIDTH, HEADS = 6, 2
OPTIONS = {"activation_function": "gelu", "eps": 1e-5, "activation_dropout": 0.0, "pre": True}


def build(layers=3, *, width=WIDTH, inner=11, dropout=0.0, attention=None, join="concat", dtype=torch.float64):
    attention = attention or LongformerConfig(left_tokens=2, right_tokens=1, dropout=dropout)

    def block(layer):
        mechanism = attention.build(width=width, heads=HEADS)
        return Block(mechanism, inner=inner, **(OPTIONS | {"activation_dropout": dropout, "dropout": dropout}))

    stack = ReversibleConfig(join=join).build(block, layers, Sizes(width=width))
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.3)
    return stack.to(dtype)


def gradients(stack, hidden, tokens, *, recompute, more=(), **given):
    """Output, hidden states, gradients of the input, of `more` and of the weights, and the next random number."""
    stack.recompute = recompute
    torch.manual_seed(5)
    hidden = hidden.detach().requires_grad_()
    output, states, *_ = stack(hidden, tokens, *given.get("source", ()), output_hidden_states=True)
    loss = output.square().sum() + sum((each * (i + 1)).sin().sum() for i, each in enumerate(states))
    found = torch.autograd.grad(loss, [hidden, *more, *stack.parameters()], allow_unused=True)
    return [output, *states, torch.rand(3), *found]


def tokens_of(length):
    mask, is_global = torch.ones(2, length, dtype=torch.bool), torch.zeros(2, length, dtype=torch.bool)
    mask[1, length // 2 :], is_global[:, :1] = False, True
    return Tokens(mask=mask, is_global=is_global)


class Twice(Attention):
    """Twice its input."""

    def forward(self, hidden, tokens=None, state=None):
        return 2 * hidden


class Noisy(Attention):
    """Its input times random numbers."""

    def forward(self, hidden, tokens=None, state=None):
        return hidden * torch.rand_like(hidden) if self.training else hidden


def with_attention(kind, layers, width=WIDTH):
    stack = build(layers, width=width)
    for block in stack:
        block.attention = kind(FullConfig(), width=width, heads=HEADS, causal=False)
    return stack


def test_numbers_worked_out_by_hand():
    """X1 = X2 = [3, 1]. LN gives [1, −1], and twice that makes Y1 = [5, −1]. LN of it, whose mean is 2 and whose
    deviation is 3, gives [1, −1] again, and three times that makes Y2 = [6, −2]. Their mean is [5.5, −1.5]; side by
    side they have the mean 2 and the variance (9 + 9 + 16 + 16) / 4 = 12.5."""
    stack = with_attention(Twice, 1, width=2)
    (block,) = stack
    block.feed_forward = nn.Linear(2, 2, bias=False, dtype=torch.float64)
    nn.init.eye_(block.feed_forward.weight).data.mul_(3)
    for norm in (block.attention_norm, block.feed_forward_norm, stack.join_norm):
        norm.eps = 0.0
        norm.reset_parameters()
    nn.init.zeros_(stack.join.bias)
    stack.join.weight.data = torch.tensor([[1, 0, 0, 0], [0, 0, 0, 1]], dtype=torch.float64)
    hidden = torch.tensor([[[3.0, 1.0]]], dtype=torch.float64, requires_grad=True)
    expected = torch.tensor([[[3, -4]]], dtype=torch.float64) / 12.5**0.5
    output = stack(hidden, Tokens(), output_hidden_states=True)
    torch.testing.assert_close(output.states, expected)
    assert torch.equal(output.all_hidden_states[0], hidden)
    stack.join = None  # as join="both" leaves it
    both = torch.tensor([[[3, -3, 4, -4]]], dtype=torch.float64) / 12.5**0.5
    torch.testing.assert_close(stack(hidden, Tokens()).states, both)
    stack.join_norm = None  # and "average"
    torch.testing.assert_close(stack(hidden, Tokens()).states, torch.tensor([[[5.5, -1.5]]], dtype=torch.float64))


@pytest.mark.parametrize("length", [0, 1, 2, 13, 31])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("join", ["concat", "both", "average"])
def test_gradients_equal_those_of_stored_activations(length, dropout, join):
    stack, hidden = build(dropout=dropout, join=join), torch.randn(2, length, WIDTH, dtype=torch.float64)
    rebuilt, stored = (gradients(stack, hidden, tokens_of(length), recompute=each) for each in (True, False))
    torch.testing.assert_close(rebuilt, stored, atol=1e-10, rtol=1e-10)
    if length:
        assert (rebuilt[0] - gradients(stack.eval(), hidden, tokens_of(length), recompute=True)[0]).any() == (
            dropout > 0
        )


def test_gradcheck():
    stack = build(2, width=4, inner=5)
    names, weights = zip(*stack.named_parameters(), strict=True)

    def run(hidden, *weights):
        given = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(stack, given, (hidden, tokens_of(5))).states

    hidden = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (hidden, *weights), fast_mode=True)


def test_what_is_random_in_a_mechanism_is_replayed():
    stack, hidden = with_attention(Noisy, 3), torch.randn(2, 7, WIDTH, dtype=torch.float64)
    rebuilt, stored = (gradients(stack, hidden, Tokens(), recompute=each) for each in (True, False))
    torch.testing.assert_close(rebuilt, stored, atol=1e-10, rtol=1e-10)


def test_gradients_that_come_in_half_way_and_more_than_once():
    stack, hidden = build(4), torch.randn(2, 9, WIDTH, dtype=torch.float64, requires_grad=True)
    states = stack(hidden, Tokens(), output_hidden_states=True).all_hidden_states
    early = torch.autograd.grad(states[1].square().sum(), hidden, retain_graph=True)  # nothing comes from later layers
    late = [torch.autograd.grad(states[4].square().sum(), hidden, retain_graph=True) for _ in range(2)]
    stack.recompute = False
    again = stack(hidden, Tokens(), output_hidden_states=True).all_hidden_states
    for ours, layer in ((early, 1), (late[0], 4), (late[1], 4)):
        theirs = torch.autograd.grad(again[layer].square().sum(), hidden, retain_graph=True)
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


def test_frozen_weights_get_no_gradients_and_the_others_all_of_theirs():
    stack, hidden = build(3), torch.randn(2, 9, WIDTH, dtype=torch.float64)
    for name, parameter in stack.named_parameters():
        parameter.requires_grad_(name.startswith("1.") or "up" in name)
    found = []
    for stack.recompute in (True, False):
        stack.zero_grad()
        stack(hidden, Tokens()).states.square().sum().backward()
        found.append({name: parameter.grad for name, parameter in stack.named_parameters()})
    torch.testing.assert_close(found[0], found[1], atol=1e-10, rtol=1e-10)
    learned = {name for name, each in found[0].items() if each is not None}
    assert learned == {name for name, each in stack.named_parameters() if each.requires_grad and "global" not in name}


def test_shared_tables_get_their_gradients():
    options = {"mechanism": "fusion", "left_tokens": 3, "right_tokens": 2, "relative_span": 5}
    model = LongspanModel(config(attention=options, position_embedding="none", dropout=0.2)).double()
    ids, found = torch.randint(3, 61, (2, 23)), []
    for model.encoder.layers.recompute in (True, False):
        model.zero_grad()
        torch.manual_seed(5)
        model(ids)[0].square().sum().backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    torch.testing.assert_close(found[0], found[1], atol=1e-10, rtol=1e-10)
    table = found[0]["encoder.relative.near.weight"]
    assert table is not None
    assert table.any()


def config(**changes):
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3, "intermediate_size": 40, "init_std": 0.2}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 97, "stack": "reversible", "normalization": "pre"}
    return LongspanConfig(**(sizes | changes))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_decoder_sends_gradients_to_its_source(checkpointing):
    """Its blocks have three branches: each reads what the one before it wrote. Checkpointing has nothing to add."""
    model = LongspanForConditionalGeneration(config(decoder_layers=2, dropout=0.2)).double()
    if checkpointing:
        # transformers renamed the method between 5.17 and 5.23.
        enable_checkpointing(model)
    ids, found = torch.randint(3, 61, (2, 23)), []
    for recompute in (True, False):
        model.encoder.layers.recompute = model.decoder.layers.recompute = recompute
        model.zero_grad()
        torch.manual_seed(5)
        model(ids, labels=ids[:, :7]).loss.backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    torch.testing.assert_close(found[0], found[1], atol=1e-10, rtol=1e-10)
    assert all(each is not None for name, each in found[0].items() if "global" not in name)


def kept_bytes(stack, hidden):
    """Bytes of what autograd keeps for backward, weights not counted, each storage once."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in stack.parameters()}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = stack(hidden, Tokens()).states
    assert output.requires_grad
    return sum(found.values())


@pytest.mark.slow
def test_memory_of_a_training_step_does_not_grow_with_depth(memory):
    """What autograd keeps, what is alive after forward, and the most of a whole step, without gradients of weights."""
    hidden, found = torch.randn(1, 512, 16, requires_grad=True), {}
    build(2, width=16, inner=64, dtype=torch.float32)(hidden, Tokens()).states.sum().backward()  # masks are made once
    for layers in (2, 8, 32):
        for recompute in (True, False):
            stack = build(layers, width=16, inner=64, dtype=torch.float32).requires_grad_(requires_grad=False)
            stack.recompute = recompute
            with memory() as made:
                made.known |= {weight.untyped_storage()._cdata for weight in stack.parameters()}
                output = stack(hidden, Tokens()).states
                alive = made.alive
                output.sum().backward()
            found[layers, recompute] = kept_bytes(stack, hidden), alive, made.peak
    for measure in range(3):
        sizes = [found[layers, True][measure] for layers in (2, 8, 32)]
        assert max(sizes) <= 1.1 * min(sizes)
        assert found[32, False][measure] > 5 * found[2, False][measure] > 5 * sizes[0] / 2


def test_a_graph_is_freed_with_its_loss():
    """Nothing in it reaches itself, so that no memory waits for the garbage collector."""
    stack, hidden = build(2), torch.randn(2, 9, WIDTH, dtype=torch.float64, requires_grad=True)
    trails = []
    finish = Trail.finish
    gc.disable()
    try:
        Trail.finish = lambda trail, *streams: (trails.append(weakref.ref(trail)), finish(trail, *streams))[1]
        output = stack(hidden, Tokens()).states
        assert trails[0]() is not None
        del output
        assert trails[0]() is None
    finally:
        Trail.finish = finish
        gc.enable()


def test_bfloat16_gradients_are_as_near_as_those_of_stored_activations():
    """Streams in float32 are taken back exactly enough: 16 layers add nothing to the error of bfloat16."""
    exact, hidden = build(16, width=16, inner=40), torch.randn(2, 67, 16, dtype=torch.float64)
    exact.load_state_dict({name: tensor.bfloat16() for name, tensor in exact.state_dict().items()})
    hidden, count = hidden.bfloat16().double(), len(list(exact.parameters()))
    wanted = gradients(exact, hidden, Tokens(), recompute=False)[-count:]
    half, errors = exact.bfloat16(), []
    for recompute in (True, False):
        found = gradients(half, hidden.bfloat16(), Tokens(), recompute=recompute)[-count:]
        pairs = [(ours, theirs) for ours, theirs in zip(found, wanted, strict=True) if ours is not None]
        errors.append(sum(float((ours - theirs).square().sum()) for ours, theirs in pairs) ** 0.5)
    assert errors[0] <= 1.05 * errors[1]


@pytest.mark.parametrize("inside", [False, True])
def test_autocast_is_as_it_was(inside):
    stack, hidden = build(3, dropout=0.2, dtype=torch.float32), torch.randn(2, 9, WIDTH)
    found = []
    for stack.recompute in (True, False):
        stack.zero_grad()
        torch.manual_seed(5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = stack(hidden, Tokens()).states
            if inside:
                output.float().square().sum().backward()
        if not inside:
            output.float().square().sum().backward()
        found.append({name: parameter.grad for name, parameter in stack.named_parameters()})
    assert all(each is not None for name, each in found[0].items() if "global" not in name)
    torch.testing.assert_close(found[0], found[1], atol=1e-3, rtol=2e-2)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_forward_mode_is_served_and_second_derivatives_are_refused():
    stack, hidden = build(2), torch.randn(2, 5, WIDTH, dtype=torch.float64)

    def loss(hidden):
        return stack(hidden, Tokens()).states.square().sum()

    expected = torch.autograd.grad(loss(hidden.requires_grad_()), hidden)[0]
    direction = torch.randn_like(hidden)
    slope = torch.func.jvp(loss, (hidden.detach(),), (direction,))[1]
    torch.testing.assert_close(slope, (expected * direction).sum())
    gradient = torch.autograd.grad(loss(hidden), hidden, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_weights_that_changed_since_are_an_error_as_always():
    stack, hidden = build(2), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    loss = stack(hidden, Tokens()).states.sum()
    with torch.no_grad():
        stack[0].feed_forward.up.weight.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def test_weights_that_were_exchanged_since_are_an_error():
    stack, hidden = build(2), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    others = {name: torch.randn_like(each).requires_grad_() for name, each in stack.named_parameters()}
    loss = torch.func.functional_call(stack, others, (hidden, Tokens())).states.sum()
    with pytest.raises(RuntimeError, match=r"exchanged between forward and backward.*set its recompute to False"):
        loss.backward()
    stack.recompute = False
    torch.func.functional_call(stack, others, (hidden, Tokens())).states.sum().backward()


def test_states_that_are_kept_give_the_same_in_training_too():
    model = LongspanForCausalLM(config(dropout=0.2)).double()
    ids, found = torch.randint(3, 61, (2, 23)), []
    for use_cache in (True, False):
        model.zero_grad()
        torch.manual_seed(5)
        model(ids, use_cache=use_cache).logits.square().mean().backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    torch.testing.assert_close(found[0], found[1], atol=1e-10, rtol=1e-10)


def test_sums_that_are_normalized_are_refused():
    with pytest.raises(InputError, match=r"normalization='post' does not go with stack 'reversible'.*set it to 'pre'"):
        LongspanConfig(stack="reversible")


def test_an_average_is_normalized_by_the_model_and_a_concatenation_by_itself():
    assert LongspanModel(config()).encoder.final_norm is None
    assert LongspanModel(config(stack={"stack": "reversible", "join": "average"})).encoder.final_norm is not None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of a graph that breaks
def test_a_compiled_model_trains_with_a_break_in_its_graph():
    model = LongspanModel(config(dropout=0.0))
    ids, found = torch.randint(3, 61, (2, 23)), []
    torch.compiler.reset()
    for run in (model, torch.compile(model, backend="aot_eager")):
        model.zero_grad()
        run(ids)[0].square().mean().backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="recomputes its activations"):
        torch.compile(model, backend="eager", fullgraph=True)(ids)
