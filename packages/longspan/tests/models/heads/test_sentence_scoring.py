"""Sentence scoring: means over each sentence's tokens, whatever else stands in the batch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from closeness import check_outputs
from longspan.errors import InputError
from longspan.models import LongspanForSentenceScoring
from longspan.models.heads.sentence_network import mean_by_sentence

SENTENCES = torch.tensor([[-1, 0, 0, 0, 1, 1, 2, 3, 3, 3, -1], [-1, 0, 0, 2, 2, 2, -1, -1, -1, -1, -1]])


@pytest.fixture(params=[0, 2], ids=["tokens-alone", "with-sentence-layers"])
def model(make_config, request):
    config = make_config(global_tokens="first", head={"head": "sentence_scoring", "layers": request.param})
    return LongspanForSentenceScoring(config).eval()


def test_means_equal_a_loop():
    hidden = torch.randn(2, 11, 5, dtype=torch.float64)
    means, exists = mean_by_sentence(hidden, SENTENCES, 5)
    assert exists.tolist() == [[True, True, True, True, False], [True, False, True, False, False]]
    for row in range(2):
        for sentence in range(5):
            chosen = hidden[row, SENTENCES[row] == sentence]
            expected = chosen.mean(0) if len(chosen) else torch.zeros(5, dtype=torch.float64)
            torch.testing.assert_close(means[row, sentence], expected)


def test_means_have_their_gradient():
    hidden = torch.randn(2, 11, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: mean_by_sentence(x, SENTENCES, 4)[0], hidden)


def test_loss_counts_sentences_with_a_label_only(model, make_batch):
    ids, mask = make_batch(11, 6)
    labels = torch.tensor([[1, 0.25, -100, 0], [0, 1, 1, -100]])
    output = model(ids, mask, sentence_ids=SENTENCES, labels=labels)
    counted = torch.tensor([[True, True, False, True], [True, False, True, False]])
    expected = functional.binary_cross_entropy_with_logits(output.scores[counted], labels[counted])
    torch.testing.assert_close(output.loss, expected)
    assert (output.scores[~output.sentence_mask] == -torch.inf).all()
    nothing = model(ids, mask, sentence_ids=SENTENCES, labels=torch.full_like(labels, -100)).loss
    nothing.backward()
    assert nothing == 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_padding_belongs_to_no_sentence(model, make_batch):
    ids, mask = make_batch(11, 6)
    careless = torch.where(mask.bool(), SENTENCES, 0)
    careful = model(ids, mask, sentence_ids=SENTENCES).scores
    check_outputs(model(ids, mask, sentence_ids=careless, max_sentences=4).scores, careful)


def test_documents_without_tokens_or_sentences(model):
    empty = torch.zeros(2, 0, dtype=torch.long)
    assert model(empty, sentence_ids=empty).scores.shape == (2, 0)
    ids = torch.randint(3, 61, (2, 5))
    assert model(ids, sentence_ids=torch.full_like(ids, -1)).scores.shape == (2, 0)


def test_sentence_layers_show_each_sentence_the_document(make_config, make_batch):
    ids, mask = make_batch(11, 6)
    changed = ids.clone()
    changed[0, 7:10] = torch.randint(3, 61, (3,))
    for layers, same in ((0, True), (1, False)):
        # No token sees another sentence's here, so only sentence layers can carry anything across.
        config = make_config(attention={"mechanism": "longformer", "left_tokens": 0, "right_tokens": 0}, dropout=0.0)
        config.head = {"head": "sentence_scoring", "layers": layers}
        model = LongspanForSentenceScoring(config).eval()
        first, second = (model(x, mask, sentence_ids=SENTENCES).scores[0, :3] for x in (ids, changed))
        assert torch.equal(first, second) is same


def test_mistakes_are_named(model, make_batch):
    ids, mask = make_batch(11, 6)
    with pytest.raises(InputError, match="sentence_ids is missing"):
        model(ids, mask)
    with pytest.raises(InputError, match="sentence_ids has shape"):
        model(ids, mask, sentence_ids=SENTENCES[:, :9])
    with pytest.raises(InputError, match="counts 4 sentences"):
        model(ids, mask, sentence_ids=SENTENCES, max_sentences=3)
