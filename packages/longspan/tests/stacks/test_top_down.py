"""Top-down and bottom-up inference: what its segments are, and what it becomes when parts of it are left out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from closeness import check_outputs
from longspan.attention import Tokens
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForConditionalGeneration, LongspanModel
from longspan.stacks import StackTokens, TopDownConfig
from longspan.stacks.top_down import covering, pool_segments, segment_count, segment_weights
from longspan.training.recipe_file import load_recipe

WINDOWS = {"mechanism": "longformer", "left_tokens": 3, "right_tokens": 2}
SIZES = {"vocab_size": 61, "hidden_size": 12, "num_hidden_layers": 3, "intermediate_size": 20, "init_std": 0.2}
SIZES |= {"num_attention_heads": 2, "max_position_embeddings": 97, "attention": WINDOWS, "dropout": 0.0}


def model(*, kind=LongspanModel, seed=3, normalization="post", **stack):
    torch.manual_seed(seed)
    options = {"stack": "top_down", "kernel": 5, "stride": 3, **stack}
    return kind(LongspanConfig(**SIZES, normalization=normalization, stack=options)).double().eval()


def batch(*lengths, seed=5):
    torch.manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randint(3, 61, mask.shape).masked_fill(~mask, 1), mask


@settings(max_examples=40)
@given(st.integers(1, 200), st.integers(1, 40), st.data())
def test_segments_are_as_many_as_the_formula_says_and_cover_every_token(tokens, kernel, data):
    stride = data.draw(st.integers(1, kernel))
    count = segment_count(tokens, kernel, stride)
    padded = max(kernel, tokens + (kernel - tokens) % stride if tokens > kernel else kernel)
    assert count == (padded - kernel) // stride + 1  # with right padding
    for behind in (0, 17):
        real = torch.arange(tokens + behind)[None] < tokens
        weights, present = segment_weights(real, kernel, stride)
        assert present.sum() == count
        assert present[0, :count].all()
        held = [j * stride + n for j in range(count) for n in range(kernel) if weights[0, j, n] > 0]
        assert set(held) == set(range(tokens))
        torch.testing.assert_close(weights[present].sum(1), torch.ones(count))


def test_the_published_model_has_the_published_sizes():
    """512 segments of 12 288 tokens, the last reaching to 12 296, and 464 million parameters, 406 of them BART's."""
    assert [segment_count(tokens, 32, 24) for tokens in (12288, 12296, 12297)] == [512, 512, 513]
    recipe = load_recipe("top-down-pubmed")
    sizes = {"vocab_size": 50265, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
    sizes |= {"num_hidden_layers": 12, "decoder_layers": 12, "max_decoder_position_embeddings": 1024}
    sizes |= {"attention": recipe.model.attention, "max_position_embeddings": recipe.model.max_tokens}
    with torch.device("meta"):
        built = LongspanForConditionalGeneration(LongspanConfig(**sizes, stack=recipe.model.stack))
    assert len(built.encoder.layers) - built.encoder.layers.lower == 4
    assert len(built.encoder.layers.segments.layers) == 2
    assert sum(each.numel() for each in built.parameters()) == pytest.approx(464e6, rel=0.01)


def test_weights_worked_by_hand():
    """Six tokens, the fourth of which is padding, in segments of three, each two behind the last."""
    real = torch.tensor([[1, 1, 1, 0, 1, 1]]).bool()
    importance = torch.tensor([[0.2, 0.6, 0.0, 0.9, 0.0, 0.0]], dtype=torch.float64)
    weights, present = segment_weights(real, 3, 2, importance)
    expected = [[0.25, 0.75, 0.0], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]
    torch.testing.assert_close(weights[0, :3], torch.tensor(expected, dtype=torch.float64), check_dtype=False)
    assert present[0].tolist() == [True] * 3 + [False] * (present.shape[1] - 3)
    _, without = segment_weights(torch.tensor([[1, 1, 0, 0, 0, 0, 0, 1]]).bool(), 2, 2)
    assert without[0, :4].tolist() == [True, False, False, True]  # nothing is real in the two between
    hidden = torch.arange(1.0, 7.0, dtype=torch.float64)[None, :, None]
    segments = pool_segments(hidden, weights, 2)
    torch.testing.assert_close(segments[0, :3, 0], torch.tensor([1.75, 4.0, 5.5], dtype=torch.float64))
    covered = covering(segments, present, 6, 3, 2)[0, :, 0]
    torch.testing.assert_close(covered, torch.tensor([1.75, 1.75, 2.875, 4.0, 4.75, 5.5], dtype=torch.float64))


def test_a_tiny_importance_counts_in_proportion():
    weights, _ = segment_weights(torch.ones(1, 2).bool(), 2, 2, torch.tensor([[1e-30, 3e-30]]))
    torch.testing.assert_close(weights[0, 0], torch.tensor([0.25, 0.75]))


@pytest.mark.parametrize("without", [{"top_down": "none"}, {"top_down_layers": 0}])
def test_without_top_down_layers_it_is_the_plain_encoder(without):
    ours, (ids, mask) = model(**without), batch(31, 8)
    plain = LongspanModel(LongspanConfig(**SIZES)).double().eval()
    plain.load_state_dict(ours.state_dict())
    check_outputs(ours(ids, mask)[0], plain(ids, mask)[0])


@pytest.mark.parametrize("normalization", ["post", "pre"])
@pytest.mark.parametrize("cross_norm", ["before_sum", "model"])
def test_segments_of_one_token_are_tokens_to_attend_to(normalization, cross_norm):
    """Kernel and stride 1 and no layer above: cross-attention over the tokens, with the norm where it was asked for."""
    options = {"kernel": 1, "stride": 1, "segment_layers": 0, "cross_norm": cross_norm, "top_down_layers": 1}
    ours, (ids, mask) = model(normalization=normalization, **options), batch(13)
    layers = ours.encoder.layers
    torch.nn.init.zeros_(layers.segments.position.weight)
    seen = ours(ids, mask, output_hidden_states=True).hidden_states
    block, hidden, pre = layers[2], seen[2], normalization == "pre"
    own = block.attention(block.attention_norm(hidden) if pre else hidden, Tokens(mask=mask))
    hidden = hidden + own if pre else block.attention_norm(hidden + own)
    norm, cross = block.cross_attention_norm, block.cross_attention
    source = layers.segments.norm(seen[2]) if pre else seen[2]

    def read(states):
        query, key, value = (
            projection(each).unflatten(-1, (2, 6)).transpose(1, 2)
            for projection, each in ((cross.query, states), (cross.key, source), (cross.value, source))
        )
        weights = (query @ key.mT / 6**0.5).softmax(-1)
        return cross.output((weights @ value).transpose(1, 2).flatten(2))

    if cross_norm == "before_sum":
        hidden = hidden + norm(read(hidden))
    else:
        hidden = hidden + read(norm(hidden)) if pre else norm(hidden + read(hidden))
    fed = block.feed_forward(block.feed_forward_norm(hidden) if pre else hidden)
    hidden = ours.encoder.final_norm(hidden + fed) if pre else block.feed_forward_norm(hidden + fed)
    torch.testing.assert_close(seen[3], hidden)


def test_constant_importance_is_the_average_and_none_at_all_too():
    average, weighing, (ids, mask) = model(), model(pooling="importance"), batch(31, 8)
    wanted = average(ids, mask)[0]
    for constant in (0.37, 0.0):
        importance = torch.full(ids.shape, constant)
        torch.testing.assert_close(weighing(ids, mask, importance=importance)[0][mask], wanted[mask])
    importance = torch.rand(ids.shape, dtype=torch.float64)
    assert not torch.allclose(weighing(ids, mask, importance=importance)[0], wanted)
    torch.testing.assert_close(
        weighing(ids, mask, importance=importance)[0][mask], weighing(ids, mask, importance=importance / 7)[0][mask]
    )


@pytest.mark.parametrize("options", [{}, {"pooling": "importance"}, {"top_down": "concatenate"}])
def test_a_document_alone_padded_on_either_side_or_batched_gives_the_same(options):
    """Segments are counted from the first real token, and none begins inside the last; one word of two tokens too."""
    ours, (ids, mask) = model(**options).encoder.layers, batch(31, 1, 7, 12, 30)
    hidden, importance = torch.randn(*ids.shape, 12, dtype=torch.float64), torch.rand(ids.shape, dtype=torch.float64)
    together = ours(hidden, StackTokens(mask=mask, importance=importance)).states
    for row, length in enumerate(mask.sum(1).tolist()):
        own, weights = hidden[row : row + 1, :length], importance[row : row + 1, :length]
        alone = ours(own, StackTokens(importance=weights)).states
        torch.testing.assert_close(together[row, :length], alone[0])
        front = torch.nn.functional.pad(own, (0, 0, 4, 9))
        real = torch.nn.functional.pad(torch.ones(1, length), (4, 9)).bool()
        moved = ours(front, StackTokens(mask=real, importance=torch.nn.functional.pad(weights, (4, 9))))
        torch.testing.assert_close(moved.states[:, 4 : 4 + length], alone)


@pytest.mark.variant
@pytest.mark.parametrize("top_down", ["cross_attention", "concatenate"])
@pytest.mark.parametrize("length", [2, 41])
def test_gradient_reaches_all_tokens(top_down, length):
    """From the first token: farther than the windows reach where it reads all segments. A text may be shorter than one
    segment."""
    ours = model(top_down=top_down).encoder.layers
    hidden = torch.randn(1, length, 12, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(ours(hidden, Tokens()).states[:, 0].square().sum(), hidden)
    assert (gradient.abs().sum(-1) > 0).all()
    few = hidden[:, :6].detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ours(x, Tokens()).states[:, :1, :3], few)


@pytest.mark.parametrize("top_down", ["cross_attention", "concatenate"])
def test_nothing_is_as_large_as_the_square_of_the_length(top_down, memory):
    ours, length = model(top_down=top_down, kernel=64, stride=48), 3001
    hidden = torch.randn(1, length, 12, dtype=torch.float64, requires_grad=True)
    with memory() as made:
        ours.encoder.layers(hidden, Tokens()).states.sum().backward()
    assert made.largest < length**2 / 4


def test_a_decoder_beside_it_is_a_plain_one_and_writes_with_importance():
    sizes = {**SIZES, "decoder_layers": 2}
    stack = {"stack": "top_down", "kernel": 5, "stride": 3, "pooling": "importance"}
    writer = LongspanForConditionalGeneration(LongspanConfig(**sizes, stack=stack)).eval()
    assert type(writer.decoder.layers).__name__ == "Sequential"
    (ids, mask), options = batch(23, 11), {"max_new_tokens": 6, "min_new_tokens": 6, "num_beams": 3}
    importance = torch.rand(ids.shape)
    together = writer.generate(ids, attention_mask=mask, importance=importance, **options)
    alone = writer.generate(ids[1:, :11], importance=importance[1:, :11], **options)
    assert torch.equal(alone[0], together[1])
    with pytest.raises(InputError, match="cannot generate text without an encoder"):
        LongspanForCausalLM(LongspanConfig(**SIZES, stack="top_down"))
    with pytest.raises(InputError, match=r"unknown key 'stack\.segment_attention\.windows'"):
        TopDownConfig(segment_attention={"mechanism": "full", "windows": 3})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pooling": "importance"}, "importance is missing, and the stack weighs tokens"),
        ({"importance": torch.ones(1, 7)}, "'top_down' as configured does not weigh tokens"),
        ({"pooling": "importance", "importance": torch.ones(1, 3)}, r"shape \(1, 3\) but the input is \(1, 7\)"),
        ({"pooling": "importance", "importance": torch.full((1, 7), -0.5)}, "importance holds -0.5"),
        ({"stride": 6}, "stack.stride=6 is more than stack.kernel=5"),
        ({"pooling": "importance", "top_down": "none"}, "means nothing with top_down='none'"),
        ({"max_segments": 31}, "max_segments=31 is fewer than the 32 segments"),
        ({"top_down_layers": 4}, "top_down_layers=4 is more than num_hidden_layers=3"),
    ],
)
def test_what_does_not_fit_is_named(given, message):
    importance = given.pop("importance", None) if "importance" in given else None
    with pytest.raises(InputError, match=message):
        model(**given)(torch.full((1, 7), 5), importance=importance)


def test_more_segments_than_have_positions_are_named():
    endless = SIZES | {"position_embedding": "sinusoidal"}
    stack = TopDownConfig(kernel=5, stride=3, max_segments=4)
    ours = LongspanModel(LongspanConfig(**endless, stack=stack.to_dict())).eval()
    ours(torch.full((1, 14), 5))
    with pytest.raises(InputError, match="15 tokens are 5 segments, more than max_segments=4"):
        ours(torch.full((1, 15), 5))
