"""Tiny random models and batches, in sizes that are prime or at least distinct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan.models import LongspanConfig

VOCABULARY = 61
WINDOW = {"mechanism": "longformer", "left_tokens": 3, "right_tokens": 5}
POOLING = {"mechanism": "poolingformer", "left_tokens": 3, "right_tokens": 2, "kernel": 3, "stride": 2}
POOLING |= {"pooled_left_tokens": 7, "pooled_right_tokens": 7}


@pytest.fixture
def make_config() -> Callable[..., LongspanConfig]:
    """A configuration of a tiny model; keywords replace its fields."""

    def make(**changes: Any) -> LongspanConfig:
        sizes: dict[str, Any] = {
            "vocab_size": VOCABULARY,
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 40,
            "max_position_embeddings": 97,
            "attention": WINDOW,
            "init_std": 0.2,
        }
        return LongspanConfig(**(sizes | changes))

    return make


@pytest.fixture
def make_batch() -> Callable[..., tuple[Tensor, Tensor]]:
    """Random ids `(B, T)` and their mask; row b has `lengths[b]` real tokens, then padding."""

    def make(*lengths: int) -> tuple[Tensor, Tensor]:
        ids = torch.randint(3, VOCABULARY, (len(lengths), max(lengths)))
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        return ids.masked_fill(~mask, 1), mask.long()

    return make
