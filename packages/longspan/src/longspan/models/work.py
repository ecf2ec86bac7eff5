"""The cost model: the multiply-adds and FLOPs of a model, counted from its configuration.

Attention counts by `AttentionConfig.costs`, a stack by `StackConfig.costs`. Plans, predicted seconds and the MFU of a
running training all use these numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from longspan.errors import InputError
from longspan.settings import Count, check
from longspan.stacks import stack_config
from longspan.stacks.base import StackCost

Precision = Literal["float32", "bfloat16"]
STATES = {
    "adafactor": 0.0,  # sums over rows and columns
    **dict.fromkeys(("adagrad", "sgd", "rmsprop", "rmsprop_bnb", "rmsprop_bnb_32bit"), 1.0),
    **dict.fromkeys(("lion_32bit", "paged_lion_32bit"), 1.0),
    **dict.fromkeys(("lion_8bit", "paged_lion_8bit", "rmsprop_bnb_8bit", "adamw_torch_4bit"), 0.25),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit", "paged_adamw_8bit"), 0.5),
}
"""Name of an optimizer → its states for each weight, in numbers of 4 bytes; the others count as AdamW's."""


def states_of(optimizer: str) -> float:
    """Returns the states of an optimizer for each weight, in numbers of 4 bytes: two, as AdamW's, if not listed."""
    return STATES.get(optimizer, 2.0)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One way to run a model.

    Attributes:
        tokens: tokens per row, T.
        batch: number of rows, B.
        train: a training step instead of a forward pass.
        precision: bfloat16 in training means autocast: the weights are float32.
        checkpointing: gradient checkpointing per block.
        output_tokens: target tokens of an encoder-decoder.
        processes: number of processes; batch and memory are per process.
        shard: shard weights, gradients and optimizer states.
        sequence: number of processes that share each row (sequence parallel).
    """

    tokens: Count
    batch: Count = 1
    train: bool = False
    precision: Precision = "float32"
    checkpointing: bool = False
    output_tokens: Count = 256
    processes: Count = 1
    shard: bool = False
    sequence: Count = 1

    def __post_init__(self) -> None:
        check(self)

    @property
    def number(self) -> int:
        """Bytes per number of an activation."""
        return 2 if self.precision == "bfloat16" else 4

    def held(self, weights: int) -> int:
        """Returns the number of weights that a process stores."""
        return -(-weights // self.processes) if self.shard else weights

    @property
    def words(self) -> str:
        """Precision and checkpointing as the name of a plan's row."""
        return self.precision + (", checkpointing" if self.checkpointing else "")


def stack_cost(config: Any, tokens: int) -> StackCost:
    """Returns the cost of the stack of a model in addition to its blocks, for T tokens and the memory tokens.

    Raises:
        InputError: the memory of the stack is not counted by block.
    """
    sizes = {"layers": config.num_hidden_layers, "width": config.hidden_size}
    cost = stack_config(config.stack).costs(tokens=tokens + config.num_memory_tokens, **sizes)
    if cost is None:
        raise InputError(
            f"stack {config.stack['stack']!r} is not counted block by block, so there is no plan for it; measure a "
            "step with `longspan compare`, or plan the model with the stack 'sequential'"
        )
    return cost


def layers_of_model(config: Any, tokens: int) -> list[tuple[Any, int]]:
    """Returns the mechanism of each block and the number of its positions for T tokens: with the memory tokens, or
    these alone above `compress_after`; empty if the stack has its own layers."""
    if stack_config(config.stack).brings_attention:
        return []
    memory, lower = config.num_memory_tokens, config.compress_after
    return [
        (config.layer_attention(layer), memory + (tokens if lower is None or layer < lower else 0))
        for layer in range(config.num_hidden_layers)
    ]


def outputs_of(config: Any, choice: Choice) -> int:
    """Returns the number of tokens with logits over the vocabulary: all in language models, otherwise 0."""
    head = config.head
    predicts = head is not None and head["head"] == "masked_lm"
    return choice.batch * choice.tokens if predicts or is_causal(config) else 0


def is_causal(config: Any) -> bool:
    """Whether a model is a causal language model, by its architecture."""
    return any("CausalLM" in name for name in config.architectures or ())


def block_work(config: Any, spec: Any, length: int, memory: int = 0, *, causal: bool = False) -> float:
    """Returns the multiply-adds of a block on one row, forward; `memory` of its tokens are global memory tokens. Causal
    attention counts the pairs that are visible."""
    cost = spec.costs(length=length, width=config.hidden_size, heads=config.num_attention_heads, causal=causal)
    work = float(cost.multiply_adds + 2 * config.hidden_size * config.intermediate_size * length)
    if memory:
        scores = spec.scores_per_token(length, global_tokens=memory, causal=causal)
        scores -= spec.scores_per_token(length, causal=causal)
        work += 2 * config.hidden_size * scores * length
    return work


def works_of_blocks(config: Any, choice: Choice) -> Iterator[tuple[Any, int, float]]:
    """Yields the mechanism of each block, of the model and of its stack, the number of its positions, and its
    multiply-adds on all rows, forward.

    Raises:
        InputError: as `stack_cost`.
    """
    causal = is_causal(config)
    for spec, length in [*layers_of_model(config, choice.tokens), *stack_cost(config, choice.tokens).layers]:
        memory = min(config.num_memory_tokens, length)
        yield spec, length, choice.batch * block_work(config, spec, length, memory, causal=causal)


def work_beside_blocks(config: Any, choice: Choice) -> float:
    """Returns the multiply-adds outside the encoder's blocks, forward: of a stack, a decoder, and the logits."""
    cost = stack_cost(config, choice.tokens)
    of_stack = choice.batch * cost.readers * cost.multiply_adds
    width, written = config.hidden_size, choice.batch * choice.output_tokens
    if not config.decoder_layers:
        return float(of_stack + outputs_of(config, choice) * width * config.vocab_size)
    inner = config.decoder_intermediate_size or config.intermediate_size
    block = written * (6 * width**2 + 2 * width * inner) + choice.batch * choice.tokens * 2 * width**2
    block += 2 * width * choice.batch * choice.output_tokens * (choice.tokens + choice.output_tokens)
    return float(of_stack + config.decoder_layers * block + written * width * config.vocab_size)


def training_flops(config: Any, choice: Choice) -> float:
    """Returns the model FLOPs of a training step: two for each multiply-add of the forward pass, and twice as many in
    the backward pass, for the inputs and for the weights. Recomputed activations do not count, nor do norms,
    activation functions and the update (Chowdhery et al. 2022, PaLM, arXiv 2204.02311, appendix B, which counts all
    pairs of tokens; here those that attention computes).

    Raises:
        InputError: as `stack_cost`.
    """
    forward = sum(work for _, _, work in works_of_blocks(config, choice)) + work_beside_blocks(config, choice)
    return 3 * 2 * forward
