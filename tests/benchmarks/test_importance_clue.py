"""The tagger's clue: what a sentence's mean is of, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import importance_clue
from importance_clue import Tokens, separation, tokens_of, train_tagger
from longspan_documents.inference.embed import load_encoder


def test_tokens_are_those_that_the_encoder_reads() -> None:
    pytest.importorskip("simplemma")
    texts = ["The marmots sleep.", "A bridge was built."]
    found = tokens_of(texts, ["Marmots slept near the bridge."], load_encoder())
    assert found.owners.diff().tolist().count(1) == 1  # two sentences, one after the other
    assert found.states.shape == (len(found.labels), 256)
    chances = found.means(lambda states: torch.where(found.labels, 100.0, -100.0))
    # "marmots" and "sleep" are named, of the other sentence "bridge".
    assert chances[0] > chances[1] > 0


def test_a_tagger_learns_a_state_that_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importance_clue, "STEPS", 100)
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(400, 8, generator=draw)
    documents = [
        Tokens(part.half(), torch.arange(len(part)) // 10, len(part) // 10, part[:, 0] > 0)
        for part in states.split(200)
    ]
    tagger = train_tagger(documents[:1], [1.0], 0)
    assert separation(tagger, documents[1:]) > 90
    assert separation(lambda hidden: -hidden[:, 0], documents) == pytest.approx(0)
    assert documents[0].means(lambda hidden: torch.zeros(len(hidden))) == pytest.approx(np.full(20, 0.5))
