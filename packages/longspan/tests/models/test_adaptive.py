"""Adaptive embeddings and softmax against a dense softmax written out by hand, and PyTorch's own where it has them."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

from closeness import check_outputs, check_weights
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.models.adaptive import AdaptiveHead

VOCABULARY, CUTOFFS = 61, [7, 19, 41]
FORMS = {
    "equal": {},
    "projected": {"embedding_size": 16},
    "divided": {"embedding_divisor": 2},
    "divided projected": {"embedding_divisor": 2, "embedding_size": 40},
    "untied first": {"embedding_divisor": 2, "tie_projections": [False, True, True, True]},
    "untied": {"embedding_divisor": 2, "tie_word_embeddings": False},
    "one cluster": {"cutoffs": [], "embedding_size": 16},
}


def make(**changes):
    fields = {
        "vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 32, "attention": "full", "scale_embedding": True, "cutoffs": CUTOFFS, "dropout": 0.0,
    }  # fmt: skip
    model = LongspanForCausalLM(LongspanConfig(**(fields | changes))).eval()
    with torch.no_grad():  # biases start at 0, and projections too small to matter
        for parameter in model.lm_head.parameters():
            parameter.normal_(std=0.5)
    return model.double()


def dense(model, states):
    """Log-probabilities `(N, V)` word by word: one table of logits for the head, one for each tail."""
    head, config = model.lm_head, model.config
    edges = [0, *config.cutoffs, VOCABULARY]
    weight = [module.weight for module in head.words]
    bias = torch.cat([module.bias for module in head.words])
    rows = list(weight) if len(weight) > 1 else [weight[0][a:b] for a, b in pairwise(edges)]
    logits = []
    for cluster, matrix in enumerate(rows):
        seen = states @ head.projections[cluster].weight if len(head.projections) else states
        logits.append(torch.einsum("nf,vf->nv", seen, matrix) + bias[edges[cluster] : edges[cluster + 1]])
        if cluster == 0 and config.cutoffs:
            logits[0] = torch.cat([logits[0], seen @ head.clusters.weight.T + head.clusters.bias], 1)
    first = logits[0].exp() / logits[0].exp().sum(1, keepdim=True)
    parts = [first[:, : edges[1]]]
    for tail, within in enumerate(logits[1:]):
        share = within.exp() / within.exp().sum(1, keepdim=True)
        parts.append(first[:, edges[1] + tail, None] * share)
    return torch.cat(parts, 1).log()


@pytest.mark.parametrize("form", FORMS)
def test_equal_to_a_dense_softmax(form):
    model = make(**FORMS[form])
    states = torch.randn(53, 24, dtype=torch.double, requires_grad=True)
    words = torch.randint(0, VOCABULARY, (53,))
    expected = dense(model, states)
    assert torch.allclose(expected.exp().sum(1), torch.ones(53, dtype=torch.double))
    assert torch.allclose(model.lm_head(states), expected)
    nats = model.lm_head.nats(states, words)
    wanted = -expected.gather(1, words[:, None])[:, 0]
    assert torch.allclose(nats, wanted)
    assert torch.equal(model.lm_head.best(states), expected.argmax(1))
    inputs = [states, *model.lm_head.parameters()]
    found = torch.autograd.grad(nats.sum(), inputs)
    for one, other in zip(found, torch.autograd.grad(wanted.sum(), inputs), strict=True):
        assert torch.allclose(one, other)


@pytest.mark.parametrize("form", FORMS)
def test_embeddings_are_rows_taken_to_the_width(form):
    model = make(**FORMS[form])
    token, config = model.decoder.embeddings.token, model.config
    edges = [0, *config.cutoffs, VOCABULARY]
    for word in (0, 6, 7, 18, 19, 40, 41, 60):
        cluster = sum(word >= edge for edge in edges[1:-1])
        several = len(token.tables) > 1
        table = token.tables[cluster if several else 0].weight
        row = table[word - edges[cluster] if several else word]
        if len(token.projections):
            row = token.projections[cluster if several else 0].weight @ row
        assert torch.allclose(token(torch.tensor([[word, 3]]))[0, 0], row)


def test_equal_to_pytorch_where_that_has_the_same_form():
    """PyTorch's has its clusters' widths by one `div_value` and projections in the tails alone."""
    config = LongspanConfig(vocab_size=VOCABULARY, hidden_size=24, num_attention_heads=3, cutoffs=CUTOFFS,
                            embedding_divisor=2, tie_word_embeddings=False)  # fmt: skip
    ours = AdaptiveHead(config, 24).double()
    theirs = nn.AdaptiveLogSoftmaxWithLoss(24, VOCABULARY, CUTOFFS, div_value=2.0, head_bias=True).double()
    with torch.no_grad():
        ours.projections[0].weight.copy_(torch.eye(24))
        rows = ours.words[0].weight.shape[0]
        for parameter in ours.words.parameters():
            parameter.zero_()
        ours.words[0].weight.copy_(theirs.head.weight[:rows])
        ours.words[0].bias.copy_(theirs.head.bias[:rows])
        ours.clusters.weight.copy_(theirs.head.weight[rows:])
        ours.clusters.bias.copy_(theirs.head.bias[rows:])
        for tail, (down, up) in enumerate(theirs.tail, start=1):
            ours.projections[tail].weight.copy_(down.weight.T)
            ours.words[tail].weight.copy_(up.weight)
    states, words = torch.randn(31, 24, dtype=torch.double), torch.randint(0, VOCABULARY, (31,))
    assert torch.allclose(ours(states), theirs.log_prob(states))
    assert torch.allclose(ours.nats(states, words), -theirs(states, words).output)


@pytest.mark.parametrize("form", FORMS)
def test_the_model_learns_writes_saves_and_loads(form, tmp_path):
    model = make(**FORMS[form])
    ids = torch.randint(3, VOCABULARY, (2, 13))
    labels = ids.clone()
    labels[1, 4:] = -100
    logits = model(ids).logits
    wanted = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    output = model(ids, labels=labels)
    assert output.logits is None
    assert torch.allclose(output.loss, wanted)
    assert torch.allclose(model(ids, labels=labels, num_items_in_batch=5).loss * 5, wanted * 15)
    known = torch.cat([labels, torch.full((2, 1), 3)], 1)
    more = functional.cross_entropy(logits.flatten(0, 1), known[:, 1:].flatten())
    assert torch.allclose(model(ids, labels=known).loss, more)
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.float().save_pretrained(tmp_path)
    again = LongspanForCausalLM.from_pretrained(tmp_path)
    check_weights(again, model)
    check_outputs(again(ids).logits, model(ids).logits)
    tied = again.lm_head.words[0].weight is again.decoder.embeddings.token.tables[0].weight
    assert tied == again.config.tie_word_embeddings
    written = again.generate(ids, max_new_tokens=5, do_sample=False, eos_token_id=None)
    assert written.shape == (2, 18)


def test_ties():
    model = make(embedding_divisor=2, tie_projections=[False, True, True, True])
    head, token = model.lm_head, model.decoder.embeddings.token
    pairs = zip(head.projections, token.projections, strict=True)
    assert [ours.weight is theirs.weight for ours, theirs in pairs] == [False, True, True, True]


def test_no_label_is_no_loss_and_no_table_of_all_words():
    model = make().float()
    ids = torch.randint(3, VOCABULARY, (1, 5))
    assert model(ids, labels=torch.full((1, 5), -100)).loss == 0
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            seen.extend(one.numel() for one in [result] if isinstance(one, torch.Tensor))
            return result

    ids = torch.randint(0, 7, (1, 307))  # all in the shortlist
    with Watch():
        model(ids, labels=ids).loss.backward()
    assert 307 * VOCABULARY not in seen
    assert 307 * (7 + 3) in [size + 10 for size in seen]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cutoffs": [19, 7]}, "cutoffs=.*must increase"),
        ({"cutoffs": [7, 7]}, "cutoffs=.*must increase"),
        ({"cutoffs": [7, 61]}, "stay below vocab_size=61"),
        ({"cutoffs": [0]}, "cutoffs"),
        ({"embedding_divisor": 3}, "embedding_divisor=3 leaves no width"),
        ({"tie_projections": [True]}, "tie_projections=.*4 clusters"),
        ({"cutoffs": None, "embedding_divisor": 2}, "embedding_divisor=2 is for models with cutoffs"),
        ({"decoder_layers": 1}, "is for LongspanForCausalLM"),
        ({"head": "masked_lm"}, "is for LongspanForCausalLM"),
    ],
)
def test_what_no_model_can_have(changes, message):
    with pytest.raises(InputError, match=message):
        make(**changes)


def test_what_the_head_cannot_do():
    model = make(label_smoothing=0.1)
    ids = torch.randint(3, VOCABULARY, (1, 5))
    with pytest.raises(InputError, match="label_smoothing"):
        model(ids, labels=ids)
    with pytest.raises(InputError, match="cannot be resized"):
        model.resize_token_embeddings(70)
    with pytest.raises(InputError, match="outside of the vocabulary"):
        make()(ids, labels=torch.full((1, 5), 61))
    with pytest.raises(InputError, match="logits_to_keep"):
        make()(ids, labels=ids, logits_to_keep=4)
