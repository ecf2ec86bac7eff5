"""The decomposed stack: a block-diagonal mask in dense attention, borders, positions, padding, the source's weights."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering, RobertaConfig, RobertaForSequenceClassification

from closeness import check_outputs
from longspan import decompose, from_transformers
from longspan.attention import MECHANISMS, Tokens
from longspan.attention.support import supports
from longspan.errors import InputError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForQuestionAnswering,
    LongspanModel,
)
from longspan.models.heads.sentence_network import reach_of
from longspan.stacks.decomposed import joined, passage_of, question_of

SIZES = {"vocab_size": 61, "hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 3}
SIZES |= {"intermediate_size": 20, "max_position_embeddings": 50, "init_std": 0.3}
SEP = 2


def build(lower=2, positions="restart", kind=LongspanModel, **fields):
    stack = {"stack": "decomposed", "lower_layers": lower, "positions": positions}
    return kind(LongspanConfig(**SIZES | {"attention": "full", "stack": stack} | fields)).double().eval()


def pairs(*lengths, width=None):
    """Random ids `(B, T)` of rows with a question of so many tokens, a separator and a passage of so many."""
    rows = [
        torch.cat([torch.randint(3, 61, (question,)), torch.tensor([SEP]), torch.randint(3, 61, (passage,))])
        for question, passage in lengths
    ]
    width = width or max(map(len, rows))
    ids = torch.stack([torch.nn.functional.pad(row, (0, width - len(row)), value=1) for row in rows])
    return ids, torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]


def dense(attention, hidden, allowed):
    """Full attention with a mask `(T, T)` written out."""
    query, key, value = (
        projection(hidden).unflatten(-1, (2, -1)).transpose(0, 1)
        for projection in (attention.query, attention.key, attention.value)
    )
    scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
    return attention.output((weights @ value).transpose(0, 1).flatten(1))


@pytest.mark.parametrize("positions", ["restart", "joint"])
@pytest.mark.parametrize("lower", [0, 2, 3])
@torch.no_grad()
def test_it_equals_a_block_diagonal_mask_in_the_lower_layers(lower, positions):
    model, (ids, mask) = build(lower, positions), pairs((5, 13), (3, 7))
    encoder, output = model.encoder, model(ids, mask, output_hidden_states=True)
    for row, (question, length) in enumerate([(6, 19), (4, 11)]):
        places = torch.arange(length)
        counted = torch.where(places < question, places, places - question) if positions == "restart" else places
        embeddings = encoder.embeddings
        hidden = embeddings.norm(embeddings.token(ids[row, :length]) + embeddings.position.weight[counted + 2])
        apart = (places < question)[:, None] == (places < question)
        for layer, block in enumerate(encoder.layers):
            torch.testing.assert_close(output.hidden_states[layer][row, :length], hidden)
            allowed = apart if layer < lower else torch.ones_like(apart)
            hidden = block.attention_norm(hidden + dense(block.attention, hidden, allowed))
            hidden = block.feed_forward_norm(hidden + block.feed_forward(hidden))
        torch.testing.assert_close(output[0][row, :length], hidden)


def test_gradients_equal_those_of_each_part_by_itself():
    model, (ids, mask) = build(3), pairs((5, 13))
    model(ids, mask)[0].square().sum().backward()
    found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    (model(ids[:, :6])[0].square().sum() + model(ids[:, 6:])[0].square().sum()).backward()
    torch.testing.assert_close({name: dict(model.named_parameters())[name].grad for name in found}, found)


@pytest.mark.parametrize(
    "attention",
    [
        {"mechanism": "longformer", "left_tokens": 3, "right_tokens": 2},
        {"mechanism": "poolingformer", "left_tokens": 2, "right_tokens": 2, "pooled_left_tokens": 7},
        "linear",
        {"mechanism": "fusion", "left_tokens": 3, "right_tokens": 3, "relative_span": 4},
        "full",
    ],
)
@pytest.mark.parametrize("global_tokens", ["none", "question"])
@torch.no_grad()
def test_padding_and_company_change_nothing_with_any_mechanism(attention, global_tokens):
    if attention == "linear" and global_tokens != "none":
        pytest.skip("linear attention takes no global tokens")
    model = build(2, attention=attention, global_tokens=global_tokens)
    lengths = [(5, 13), (1, 0), (9, 1), (3, 20)]
    ids, mask = pairs(*lengths, width=31)
    together = model(ids, mask)[0]
    for row, length in enumerate(lengths):
        alone = model(ids[row : row + 1, : sum(length) + 1])[0][0]
        torch.testing.assert_close(together[row, : len(alone)], alone)


@torch.no_grad()
def test_a_passage_is_the_same_behind_any_question_and_padding():
    model = build(3, positions_skip_padding=True)
    (ids, mask), (other, other_mask) = pairs((5, 13)), pairs((9, 13))
    other[:, 10:] = ids[:, 6:]
    passage = model(ids, mask)[0][:, 6:]
    torch.testing.assert_close(model(other, other_mask)[0][:, 10:], passage)
    # The published layout: each part is filled up by itself.
    gap = torch.cat([ids[:, :6], torch.full((1, 4), 1), ids[:, 6:]], 1)
    torch.testing.assert_close(model(gap, gap != 1)[0][:, 10:], passage)
    torch.testing.assert_close(build_like(model, positions_skip_padding=False)(gap, gap != 1)[0][:, 10:], passage)


def build_like(model, **fields):
    other = type(model)(LongspanConfig.from_dict(model.config.to_dict() | fields)).double().eval()
    other.load_state_dict(model.state_dict())
    return other


@torch.no_grad()
def test_the_border_is_told_by_types_or_by_the_first_separator():
    model, (ids, _) = build(2, type_vocab_size=2), pairs((5, 13))
    types = (torch.arange(19) >= 6).long()[None]
    expected = build_like(model, sep_token_id=None, eos_token_id=None)(ids, token_type_ids=types)[0]
    torch.testing.assert_close(model(ids.masked_fill(ids == SEP, 2), token_type_ids=types)[0], expected)
    embeds = model.encoder.embeddings.token(ids)
    torch.testing.assert_close(model(inputs_embeds=embeds, token_type_ids=types)[0], expected)
    with pytest.raises(InputError, match=r"the start of the passage is unknown \(inputs_embeds show no sep"):
        model(inputs_embeds=embeds)
    with pytest.raises(InputError, match=r"the start of the passage is unknown \(sep_token_id is None\)"):
        build(2, sep_token_id=None, eos_token_id=None)(ids)


def small(kind, config, **fields):
    sizes = {"vocab_size": 61, "hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 3}
    return kind(config(**sizes, intermediate_size=20, max_position_embeddings=50, **fields)).double().eval()


@pytest.mark.parametrize(
    "source",
    [
        lambda: small(BertForQuestionAnswering, BertConfig),
        lambda: small(RobertaForSequenceClassification, RobertaConfig, pad_token_id=1, type_vocab_size=1),
    ],
)
@torch.no_grad()
def test_decomposing_keeps_every_weight_and_joint_without_lower_layers_every_output(source):
    plain = from_transformers(source())
    model = decompose(plain, lower_layers=2)
    assert type(model) is type(plain)
    assert model.config.stack == {"stack": "decomposed", "lower_layers": 2, "positions": "restart"}
    assert list(model.state_dict()) == list(plain.state_dict())
    assert all(torch.equal(ours, plain.state_dict()[name]) for name, ours in model.state_dict().items())
    ids, mask = pairs((5, 13), (3, 7))
    types = {"token_type_ids": (torch.arange(19) >= torch.tensor([[6], [4]])).long()}
    given = types if plain.config.type_vocab_size > 1 else {}
    joint = decompose(model, 0, positions="joint")(ids, mask, **given)
    check_outputs(joint[0], plain(ids, mask, **given)[0])
    assert not torch.equal(model(ids, mask, **given)[0], joint[0])


def test_a_piece_of_a_document_is_not_read_alone_where_parts_matter():
    windows = {"attention": {"mechanism": "longformer"}, "position_embedding": "sinusoidal"}
    assert reach_of(build(2, **windows).config) is None
    assert reach_of(build(0, "joint", **windows).config) is not None


@pytest.mark.parametrize("lower", [-1, 4, True, 2.5])
def test_a_number_of_layers_that_cannot_be_is_named(lower):
    with pytest.raises(InputError, match=rf"lower_layers( is |=){lower}"):
        decompose(build(0, "joint"), lower)


def test_what_writes_or_has_another_stack_is_refused():
    with pytest.raises(InputError, match="stack 'decomposed' cannot write text"):
        build(1, kind=LongspanForCausalLM)
    with pytest.raises(InputError, match="decoder_layers=2 means nothing in stack 'decomposed', which has no"):
        build(1, kind=LongspanForConditionalGeneration, decoder_layers=2)
    decoder = LongspanForConditionalGeneration(LongspanConfig(**SIZES, decoder_layers=2))
    with pytest.raises(InputError, match="lower_layers is for encoders, and the source is a LongspanForConditional"):
        decompose(decoder, 1)
    reversible = LongspanForQuestionAnswering(LongspanConfig(**SIZES, stack="reversible", normalization="pre"))
    with pytest.raises(InputError, match="the stack 'reversible' has weights or a reading of its own"):
        decompose(reversible, 1)


def takes_globals(name):
    return supports(MECHANISMS[name], "globals") and MECHANISMS[name].bidirectional


@pytest.mark.parametrize("mechanism", [name for name in MECHANISMS if takes_globals(name)])
@pytest.mark.parametrize("border", [0, 20])
@torch.no_grad()
def test_globals_beside_a_part_that_is_empty_in_every_row(mechanism, border):
    """Batches without any question, and without any passage, are read as one part by the same layers."""
    torch.manual_seed(0)
    attention = MECHANISMS[mechanism]().build(width=24, heads=2).double().eval()
    hidden, is_global = torch.randn(2, 20, 24, dtype=torch.float64), torch.zeros(2, 20, dtype=torch.bool)
    is_global[:, [0, 5]] = True
    tokens = Tokens(is_global=is_global, mask=torch.arange(20) < torch.tensor([[20], [17]])).with_slots()
    edge = torch.full((2,), border)
    parts = [part(hidden, tokens, edge) for part in (question_of, passage_of)]
    found = joined([part._replace(hidden=attention(part.hidden, part.tokens)) for part in parts], edge, 20)
    torch.testing.assert_close(found, attention(hidden, tokens))
