"""The task of guessing the next token: chunks that score every token once, and bits that a hand can check."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan.data.corpus.stream import Stream
from longspan.errors import InputError
from longspan.tasks.language_modelling.language_model import LanguageModel, NextTokenChunks

from .conftest import TEXTS


@pytest.mark.parametrize("context", [0, 1, 5, 15])
@pytest.mark.parametrize("epoch", [None, 0, 3])
def test_every_token_is_scored_once(stream: Stream, context: int, epoch: int | None) -> None:
    whole = stream.read(0, len(stream)).tolist()
    chunks = NextTokenChunks(stream, max_tokens=17, context_tokens=context, seed=None if epoch is None else 1)
    if epoch is not None:
        chunks.set_epoch(epoch)
    place = 1
    for index in range(len(chunks)):
        ids, labels = chunks[index]["input_ids"].tolist(), chunks[index]["labels"].tolist()
        scored = [label for label in labels if label != -100]
        read = len(ids) - len(scored)
        assert len(ids) <= 17
        assert labels[:read] == [-100] * read
        assert labels[read:] == ids[read:]
        assert whole[place : place + len(scored)] == scored
        assert whole[place - read : place] == ids[:read]
        assert read == min(1 + context, place)
        place += len(scored)
    # In training, what the moved borders leave at the end comes in another epoch.
    assert 0 <= len(whole) - place <= chunks.shift


def test_borders_move_with_the_epoch_and_only_in_training(stream: Stream) -> None:
    chunks = NextTokenChunks(stream, max_tokens=17, context_tokens=0, seed=4)
    shifts = []
    for epoch in range(6):
        chunks.set_epoch(epoch)
        shifts.append(chunks.shift)
    assert len(set(shifts)) > 2
    assert all(0 <= shift < 16 for shift in shifts)
    fixed = NextTokenChunks(stream, max_tokens=17, context_tokens=0, seed=None)
    fixed.set_epoch(5)
    assert fixed.shift == 0


class Quarter(torch.nn.Module):
    """Gives the right next token the probability ¼, and spreads the rest over all the others."""

    device = torch.device("cpu")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        following = input_ids.roll(-1, 1)
        logits = torch.full((*input_ids.shape, 261), math.log(0.75 / 260))
        return SimpleNamespace(logits=logits.scatter(2, following[..., None], math.log(0.25)))


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("max_tokens", [7, 1000])
def test_bits_of_a_model_known_by_hand(corpus: list[Any], tokenizer: Any, batch_size: int, max_tokens: int) -> None:
    """2 bits for each byte and each separator but the first."""
    task = LanguageModel(max_tokens=max_tokens)
    outcome = task.evaluate(Quarter(), tokenizer, corpus, batch_size=batch_size)
    characters, size = sum(map(len, TEXTS)), sum(len(text.encode()) for text in TEXTS)
    assert size == characters + 3  # a dash of three bytes, an umlaut of two
    bits = 2 * (size + len(TEXTS) - 1)
    assert outcome.scores["bits_per_token"] == pytest.approx(2)
    assert outcome.scores["perplexity"] == pytest.approx(4)
    assert outcome.scores["bits_per_byte"] == pytest.approx(bits / size)
    assert outcome.scores["bits_per_character"] == pytest.approx(bits / characters)
    assert outcome.scores["accuracy"] == 100
    assert sum(line["tokens"] for line in outcome.lines) == bits // 2


def test_bad_options_are_one_sentence() -> None:
    with pytest.raises(InputError, match="context_tokens=63 leaves nothing of max_tokens=64 to score; give at most 62"):
        LanguageModel(max_tokens=64, context_tokens=63)
