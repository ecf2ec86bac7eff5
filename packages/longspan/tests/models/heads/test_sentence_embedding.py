"""Vectors of sentences: by hand, in pieces, and the loss that teaches them."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForSentenceEmbedding
from longspan.models.heads import sentence_network
from longspan.models.heads.sentence_network import EmbeddingNetwork
from longspan.models.losses import distillation_loss

WINDOW = {"mechanism": "longformer", "left_tokens": 3, "right_tokens": 2, "separate_global_projections": False}


def make() -> LongspanForSentenceEmbedding:
    torch.manual_seed(0)
    config = LongspanConfig(
        vocab_size=37,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        attention=WINDOW,
        position_embedding="sinusoidal",
        dropout=0.0,
        init_std=0.2,
        head={"head": "sentence_embedding", "dimensions": 5},
    )
    return LongspanForSentenceEmbedding(config).eval()


def test_a_vector_is_the_weighted_sum_of_its_tokens_projected_and_scaled() -> None:
    model = make()
    ids = torch.tensor([[3, 7, 11, 13, 17]])
    with torch.no_grad():
        found = model(ids, sentence_ids=torch.tensor([[0, 0, 1, 1, 1]])).embeddings[0]
        states = model.model(ids).last_hidden_state[0]
        for row, part in ((0, states[:2]), (1, states[2:])):
            weights = torch.log1p((part @ model.weight.weight[0] + model.weight.bias).exp())
            vector = model.projection.weight @ (weights[:, None] * part).sum(0)
            torch.testing.assert_close(found[row], vector / vector.norm())


def test_a_passage_is_embedded_as_one_sentence_of_all_its_tokens() -> None:
    """Of five sentences the first two are a passage and the last two; rows with fewer sentences have fewer passages."""
    model = make()
    ids = torch.randint(3, 37, (2, 15), generator=torch.Generator().manual_seed(1))
    sentence_ids = torch.tensor([[i // 3 for i in range(15)], [*([0] * 5), *([1] * 4), *([-1] * 6)]])
    passage_ids = torch.tensor([[0, 0, -1, 1, 1], [0, 0, -1, -1, -1]])
    with torch.no_grad():
        found = model(ids, sentence_ids=sentence_ids, passage_ids=passage_ids)
        alone = model(ids, sentence_ids=sentence_ids).embeddings
        joined = torch.tensor([[*([0] * 6), *([-1] * 3), *([1] * 6)], [*([0] * 9), *([-1] * 6)]])
        passages = model(ids, sentence_ids=joined).embeddings
    torch.testing.assert_close(found.embeddings, torch.cat([alone, passages], dim=1))
    assert found.sentence_mask.tolist() == [[True] * 7, [True, True, False, False, False, True, False]]
    labels = torch.zeros(2, 6, 5)
    with pytest.raises(InputError, match="passage_ids counts 2 passages"):
        model(ids, sentence_ids=sentence_ids, passage_ids=passage_ids, labels=labels)


def test_a_document_in_pieces_is_the_document_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    ids = torch.randint(3, 37, (211,), generator=torch.Generator().manual_seed(1))
    sentence_ids = torch.arange(211) // 7
    with torch.no_grad():
        whole = model(ids[None], sentence_ids=sentence_ids[None]).embeddings[0]
    light = EmbeddingNetwork(model.config).eval()
    light.load_state_dict(model.state_dict())
    for segment in (16, 64, 1000):
        monkeypatch.setattr(sentence_network, "SEGMENT", segment)
        torch.testing.assert_close(light.embed_document(ids, sentence_ids), whole, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(model.embed_document(ids, sentence_ids), whole, atol=1e-5, rtol=1e-5)
        owners = torch.arange(31) // 4
        with torch.no_grad():
            both = model(ids[None], sentence_ids=sentence_ids[None], passage_ids=owners[None]).embeddings[0]
        torch.testing.assert_close(light.embed_document(ids, sentence_ids, owners), both, atol=1e-5, rtol=1e-5)
    assert light.embed_document(ids[:0], sentence_ids[:0]).shape == (0, 5)


def test_the_loss_by_hand() -> None:
    """Two vectors at right angles, taught to be 60 and 0 degrees from the first axis; a third that does not count."""
    vectors = torch.tensor([[[1.0, 0], [0, 1]], [[0, 1], [0, 0]]])
    taught = torch.tensor([[[0.5, math.sqrt(0.75)], [1, 0]], [[0, 0], [1, 0]]])
    exists = torch.tensor([[True, True], [True, False]])
    single = 1 - (0.5 + 0.0) / 2
    pairs = 2 * (0.0 - 0.5) ** 2 / 4
    assert float(distillation_loss(vectors, taught, exists)) == pytest.approx(single + 10 * pairs)
    assert float(distillation_loss(taught, taught, exists)) == pytest.approx(0, abs=1e-6)


def test_a_batch_without_teachers_has_no_loss() -> None:
    vectors = functional.normalize(torch.randn(2, 3, 5), dim=-1).requires_grad_()
    loss = distillation_loss(vectors, torch.zeros(2, 3, 5), torch.ones(2, 3, dtype=torch.bool))
    loss.backward()
    assert float(loss.detach()) == 0
    assert vectors.grad is not None
    assert not vectors.grad.any()
    with pytest.raises(InputError, match="one label each"):
        distillation_loss(vectors, torch.zeros(2, 2, 5), torch.ones(2, 3, dtype=torch.bool))
