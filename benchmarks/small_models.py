"""What experiments with small models share: their sizes, equal numbers of weights, their rows and their training."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from longspan.compare.probes import Probe
from longspan.models import LongspanConfig

WIDTH, LAYERS, HEADS = 64, 2, 4
LEAST_FEED_FORWARD = 16
Model = TypeVar("Model", bound=nn.Module)


def small_config(vocabulary: int, padding: int, tokens: int, **fields: Any) -> LongspanConfig:
    """Returns the configuration of a small model; `fields` is what differs between arms."""
    return LongspanConfig(
        vocab_size=vocabulary,
        pad_token_id=padding,
        bos_token_id=None,
        eos_token_id=None,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=LAYERS,
        max_position_embeddings=tokens,
        scale_embedding=True,
        init_std=0.8 / WIDTH**0.5,
        dropout=0.0,
        **fields,
    )


def weights(model: nn.Module) -> int:
    """Returns the number of weights of a model."""
    return sum(weight.numel() for weight in model.parameters())


def with_weights(build: Callable[[int], Model], feed_forward: int, target: int) -> Model:
    """Returns a model with `target` weights within 1 %; `build` takes the width of its feed-forward layers, which makes
    up for the weights of everything else; `feed_forward` is a width to start from.
    """
    count, wider = (weights(build(feed_forward + more)) for more in (0, 1))
    width = feed_forward + round((target - count) / (wider - count))
    assert width >= LEAST_FEED_FORWARD, f"no feed-forward layer is left: {width} wide"
    model = build(width)
    assert abs(weights(model) - target) <= 0.01 * target
    return model


@cache
def prepared(kind: type[Probe], tokens: int) -> Probe:
    """Returns a probe with the documents that it needs."""
    folder = Path(tempfile.mkdtemp())
    kind.prepare(folder)
    return kind(tokens, folder)


def train(
    model: nn.Module,
    rate: float,
    updates: int,
    backward: Callable[[int], None],
    after: Callable[[int], None] = lambda _: None,
) -> None:
    """Train with AdamW; the rate rises over a sixth of the updates and falls over the last third.

    Args:
        model: in training mode.
        rate: the highest learning rate.
        updates: number of updates, which are counted from 1.
        backward: adds the gradients of an update.
        after: called after each update.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    for update in range(1, updates + 1):
        share = min(1.0, 6 * update / updates, 3 * (updates + 1 - update) / updates)
        optimizer.param_groups[0]["lr"] = rate * share
        optimizer.zero_grad()
        backward(update)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        after(update)
