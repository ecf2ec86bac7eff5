"""Plans for several processes: the shares of weights and rows per process, and its communication in a step.

Under data parallelism with whole weights (DistributedDataParallel), gradients are stored twice, once in communication
buckets. Sharded processes (FSDP2) gather the weights of one block at a time, and those outside of stacks for the whole
step. Sequence-parallel processes also read the halo of their part of each row.
"""

from __future__ import annotations

from typing import Any

import torch

from longspan.attention.support import supports
from longspan.characters import duration
from longspan.errors import InputError
from longspan.models.language_model import DecoderOnly
from longspan.models.sequence_parallel import check_divisible
from longspan.models.work import Choice
from longspan.ops.shards import ring
from longspan.planning.memory import Weights, halo_of
from longspan.planning.source import Planned
from longspan.stacks import stack_config

LINK = 50e9
"""Maximum bytes per second that a process sends: one 400 Gbit/s link each."""


def check_processes(planned: Planned, choice: Choice) -> None:
    """Raises `InputError` if processes cannot share the work as chosen."""
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
    with torch.device("meta"):
        check_divisible(planned.model_class(planned.config))
    for spec in _mechanisms(planned):
        if not hasattr(spec, "feature_count") and spec.reach().left is None:
            raise InputError(
                f"--sequence is {choice.sequence}, and the work and the exchange of attention {spec.mechanism!r} "
                "between all parts of a row are not counted; plan a model with a window, or leave --sequence out"
            )


def sent(planned: Planned, choice: Choice, weights: Weights) -> int:
    """Returns the bytes that a process sends in a step or a forward pass.

    Gradients of whole weights are all-reduced in a ring, `2 (P − 1) / P` of their size; sharded weights are gathered
    forward and backward, and their gradients reduce-scattered, each `(P − 1) / P` of their size.
    """
    ring_of_weights = (choice.processes - 1) / choice.processes * 4 * weights.total
    passes = (3 if choice.train else 1) if choice.shard else 2 * choice.train
    return int(passes * ring_of_weights) + (sent_for_rows(planned, choice) if choice.sequence > 1 else 0)


def sent_for_rows(planned: Planned, choice: Choice) -> int:
    """Returns the bytes that a process in the middle sends for its part of rows.

    States of the halo and of a first global token, or sums over keys, are sent forward, again under checkpointing, and
    backward, and likewise the attention of few queries over all parts: those of global tokens, and of a decoder.
    """
    config, number, together = planned.config, choice.number, choice.sequence
    passes = {"forward": 2 if choice.train and choice.checkpointing else 1, "backward": int(choice.train)}
    width, heads, stack = config.hidden_size, config.num_attention_heads, stack_config(config.stack)
    sizes = {"width": width, "heads": heads, "processes": together}
    pass_count, causal = sum(passes.values()), issubclass(planned.model_class, DecoderOnly)
    of_stack = stack.sent(tokens=choice.tokens, number=number, passes=pass_count, **sizes)
    total = config.num_hidden_layers * choice.batch * of_stack
    for spec in _mechanisms(planned):
        if hasattr(spec, "feature_count"):
            sums = heads * spec.feature_count(width // heads) * (width // heads + 1)
            total += 4 * pass_count * choice.batch * (together - 1) * sums
            continue
        total += pass_count * number * choice.batch * halo_of(spec, causal=causal) * width
        if config.global_tokens == "first" and supports(spec, "globals"):
            total += sent_for_globals(choice.batch, number=number, **sizes, **passes)
    sizes["heads"] = config.decoder_attention_heads or heads
    written = choice.batch * choice.output_tokens
    return total + config.decoder_layers * sent_for_queries(written, **sizes, **passes)


def _mechanisms(planned: Planned) -> list[Any]:
    """Returns the mechanisms of the layers that process parts of rows."""
    config = planned.config
    brings = stack_config(config.stack).brings_attention
    return [] if brings else [config.layer_attention(layer) for layer in range(config.num_hidden_layers)]


def sent_for_globals(
    count: int, *, width: int, heads: int, processes: int, number: int, forward: int = 1, backward: int = 0
) -> int:
    """Returns the bytes that `count` global tokens add to a layer: their states, and their attention outputs."""
    states = (forward + backward) * ring(number * count * width, processes)
    sizes = {"width": width, "heads": heads, "processes": processes}
    return states + sent_for_queries(count, **sizes, forward=forward, backward=backward)


def sent_for_queries(count: int, *, width: int, heads: int, processes: int, forward: int = 1, backward: int = 0) -> int:
    """Returns the bytes for the attention of `count` replicated queries over all parts in a layer, in float32: sums of
    values and of weights, and in the forward pass the maximum scores."""
    sums, greatest = 4 * count * (width + heads), 4 * count * heads
    return (forward + backward) * ring(sums, processes) + forward * ring(greatest, processes)


def said_of(planned: Planned, choice: Choice, weights: Weights) -> str:
    """Returns a sentence on what the processes share and send."""
    size = sent(planned, choice, weights)
    together = f", {choice.sequence} of them each row" if choice.sequence > 1 else ""
    divided = "divide the weights" if choice.shard else "hold all weights"
    when = "step" if choice.train else "forward pass"
    return (
        f"{choice.processes} processes {divided}{together}; each sends {size / 2**20:,.1f} MiB in a {when}, which the "
        f"time leaves out: {duration(size / LINK)} at {LINK / 1e9:.0f} GB/s."
    )
