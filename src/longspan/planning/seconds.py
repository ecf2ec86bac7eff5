"""How long a step will take on this machine: one block of each mechanism is measured on a short text, the rest counted.

What a multiply-add costs depends on the machine, the precision and the mechanism, and nothing in a configuration tells
it. So the block is run on at most `SAMPLE` tokens, and its time grows with the multiply-adds that `costs` counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from longspan.attention import Tokens
from longspan.planning.memory import Choice, Weights, layers_of_model, outputs_of, stack_cost
from longspan.planning.source import Planned
from longspan.stacks.block import Block

SAMPLE = 2048
"""Tokens of the measured text; where attention takes tiles, as on longer ones."""
ADAM_SAMPLE = 1 << 20
"""Weights whose update is measured."""


class Stopwatch:
    """What was measured on this machine: seconds per multiply-add of a block, and per weight of an update.

    Args:
        clock: tells seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.rates: dict[tuple[Any, ...], float] = {}
        self.update: float | None = None

    def seconds(self, planned: Planned, choice: Choice, weights: Weights) -> float:
        """Seconds of a step, or of a forward pass, on this machine.

        Raises:
            InputError: as `longspan.planning.memory.besides_of`.
        """
        config, total, work = planned.config, 0.0, 0.0
        cost = stack_cost(config, choice.tokens)
        own = ((spec, choice.tokens) for spec in layers_of_model(config))
        for spec, length in [*own, *cost.layers]:
            each = choice.batch * block_work(config, spec, length)
            one = replace(choice, tokens=max(length, 1))
            total += each * self.rate(config, spec, one, train=choice.train)
            if choice.train and choice.checkpointing:
                total += each * self.rate(config, spec, one, train=False)
            work += each
        rate = total / max(work, 1.0)
        total += rate * (work_beside_blocks(config, choice) + choice.batch * cost.readers * cost.multiply_adds)
        return total + (weights.total * self.per_weight() if choice.train else 0.0)

    def rate(self, config: Any, spec: Any, choice: Choice, *, train: bool) -> float:
        """Seconds per multiply-add of a block, measured once for each kind of block."""
        key = (spec, config.hidden_size, config.intermediate_size, choice.precision, train)
        if key not in self.rates:
            length = min(choice.tokens, SAMPLE, spec.reach().longest or SAMPLE)
            self.rates[key] = self._block(config, spec, choice, length, train) / block_work(config, spec, length)
        return self.rates[key]

    def _block(self, config: Any, spec: Any, choice: Choice, length: int, train: bool) -> float:
        """Seconds of one block on a text; the better of two, after one to warm up."""
        block = Block(
            spec.build(width=config.hidden_size, heads=config.num_attention_heads, causal=not spec.bidirectional),
            inner=config.intermediate_size,
            activation_function=config.activation_function,
            eps=config.layer_norm_eps,
            dropout=config.dropout if train else 0.0,
            activation_dropout=0.0,
            pre=config.normalization == "pre",
        ).train(train)
        half = choice.precision == "bfloat16"
        if half and not train:
            block = block.bfloat16()
        hidden = torch.randn(1, length, config.hidden_size, dtype=torch.bfloat16 if half and not train else None)
        narrow = torch.autocast("cpu", dtype=torch.bfloat16) if half and train else nullcontext()
        best = float("inf")
        for _ in range(3):
            begin = self.clock()
            with torch.set_grad_enabled(train), narrow:
                out = block(hidden.requires_grad_(train), Tokens())
            if train:
                out.float().sum().backward()
            best = min(best, self.clock() - begin)
        return best

    def per_weight(self) -> float:
        """Seconds of an update by AdamW per weight, the best of three, measured once."""
        if self.update is not None:
            return self.update
        weight = torch.nn.Parameter(torch.randn(ADAM_SAMPLE))
        weight.grad = torch.randn(ADAM_SAMPLE)
        optimizer = torch.optim.AdamW([weight])
        times: list[float] = []
        for _ in range(3):
            begin = self.clock()
            optimizer.step()
            times.append(self.clock() - begin)
        self.update = min(times) / ADAM_SAMPLE
        return self.update


def block_work(config: Any, spec: Any, length: int) -> float:
    """Multiply-adds of a block on one row, forward."""
    cost = spec.costs(length=length, width=config.hidden_size, heads=config.num_attention_heads)
    return float(cost.multiply_adds + 2 * config.hidden_size * config.intermediate_size * length)


def work_beside_blocks(config: Any, choice: Choice) -> float:
    """Multiply-adds beside the encoder's blocks: a decoder, and the logits."""
    width, written = config.hidden_size, choice.batch * choice.output_tokens
    if not config.decoder_layers:
        return float(outputs_of(config, choice) * width * config.vocab_size)
    inner = config.decoder_intermediate_size or config.intermediate_size
    block = written * (6 * width**2 + 2 * width * inner) + choice.batch * choice.tokens * 2 * width**2
    block += 2 * width * choice.batch * choice.output_tokens * (choice.tokens + choice.output_tokens)
    return float(config.decoder_layers * block + written * width * config.vocab_size)
