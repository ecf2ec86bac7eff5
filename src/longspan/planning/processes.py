"""What several processes change in a plan: the part of the weights and of each row that one of them holds, and what it
sends in a step.

A process that computes gradients of whole weights (DistributedDataParallel) has them twice, once in the buckets that
it exchanges. One that divides them (FSDP2) fetches the weights of one block after the other, and those outside of
stacks for the whole step. One that reads a part of each row reads what its queries see of its neighbours too.
"""

from __future__ import annotations

import torch

from longspan.characters import duration
from longspan.errors import InputError
from longspan.models.sequence_parallel import check_divisible
from longspan.planning.memory import Choice, Weights, halo_of
from longspan.planning.source import Planned
from longspan.stacks import stack_config

LINK = 50e9
"""Bytes a second that a process sends at most: one link of 400 Gbit/s for each."""


def check_processes(planned: Planned, choice: Choice) -> None:
    """Raise `InputError` where processes cannot share the work as was chosen, and why."""
    if choice.processes % choice.sequence:
        raise InputError(
            f"--sequence is {choice.sequence}, and {choice.processes} processes are no multiple of it; give "
            f"--processes {choice.sequence * max(1, choice.processes // choice.sequence)}"
        )
    if choice.shard and choice.processes == 1:
        raise InputError("--shard divides weights between processes, and --processes is 1; give more, or leave it out")
    if choice.sequence == 1:
        return
    if choice.sequence > choice.tokens:
        raise InputError(
            f"--sequence is {choice.sequence}, more processes than the {choice.tokens} tokens of a row; give fewer"
        )
    if planned.config.is_encoder_decoder:
        raise InputError(
            f"--sequence is {choice.sequence}, and what a decoder gathers from divided sources is not counted; plan "
            "the encoder alone (LongspanModel), or leave --sequence out"
        )
    with torch.device("meta"):
        check_divisible(planned.model_class(planned.config))


def sent(planned: Planned, choice: Choice, weights: Weights) -> int:
    """Bytes that a process sends in a step or a forward pass.

    Gradients of whole weights go around a ring, `2 (P − 1) / P` of them; divided weights are fetched forward and
    backward, and their gradients brought together, each `(P − 1) / P` of all. States of a halo, or sums over keys, go
    forward, again where activations are computed twice, and backward.
    """
    ring = (choice.processes - 1) / choice.processes * 4 * weights.total
    passes = (3 if choice.train else 1) if choice.shard else 2 * choice.train
    rows = 0
    if choice.sequence > 1:
        config, number = planned.config, choice.number
        head_width, stack = config.hidden_size // config.num_attention_heads, stack_config(config.stack)
        sizes = {"width": config.hidden_size, "heads": config.num_attention_heads, "processes": choice.sequence}
        rows += config.num_hidden_layers * stack.sent(number=number, **sizes)
        for layer in range(0 if stack.brings_attention else config.num_hidden_layers):
            spec = config.layer_attention(layer)
            if (halo := halo_of(spec)) or not hasattr(spec, "feature_count"):
                rows += number * halo * config.hidden_size
            else:
                sums = config.num_attention_heads * spec.feature_count(head_width) * (head_width + 1)
                rows += 4 * (choice.sequence - 1) * sums
        rows *= choice.batch * ((3 if choice.checkpointing else 2) if choice.train else 1)
    return int(passes * ring) + rows


def said_of(planned: Planned, choice: Choice, weights: Weights) -> str:
    """What the processes do, and send, in a sentence."""
    size = sent(planned, choice, weights)
    together = f", {choice.sequence} of them each row" if choice.sequence > 1 else ""
    divided = "divide the weights" if choice.shard else "hold all weights"
    when = "step" if choice.train else "forward pass"
    return (
        f"{choice.processes} processes {divided}{together}; each sends {size / 2**20:,.1f} MiB in a {when}, which the "
        f"time leaves out: {duration(size / LINK)} at {LINK / 1e9:.0f} GB/s."
    )
