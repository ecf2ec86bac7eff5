"""One document divided between processes: sequence parallelism for encoders and language models whose attention is
local, a kernel, or looks back alone.

Each of P processes holds a run of every row, computes what is said of single tokens for it, and attention exchanges
what its queries see (`longspan.attention.features.sharded`). So a document may be P times as long as one process has
memory for. Weights are whole in every process; their gradients are averaged over the processes, as
DistributedDataParallel does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from longspan.attention import Attention
from longspan.attention.features import sharded  # noqa: F401  # from now on attention reads parts of rows
from longspan.attention.support import check_support
from longspan.errors import InputError
from longspan.models.decoder import Decoder
from longspan.models.encoder_decoder import LongspanForConditionalGeneration
from longspan.models.network import EncoderNetwork
from longspan.ops.runtime import is_distributed
from longspan.ops.shards import Processes, Shards
from longspan.stacks.block import CrossAttention


def divide_sequence(model: nn.Module, group: Any = None) -> None:
    """From now on every process gives a model its own part of each row, `part_of`, and gets the states of that part.

    Positions and the first global token are those of the whole row, and the loss of a head is such that its mean over
    the processes is the loss of the whole rows, as are the gradients.

    A language model that reads segments behind a memory is given its part of each, and the cache of the one before,
    which holds the memory of whole segments in every process.

    A model with an encoder and a decoder divides its sources alone: every process is given the same targets, decodes
    all of them, and gets all logits.

    Args:
        model: an encoder, alone or below a head with an output for each token or a class for a row, a language model,
            or a `LongspanForConditionalGeneration`; every process has the same.
        group: the processes of `torch.distributed`, in the order of the parts; `None` means all.

    Raises:
        InputError: torch.distributed is not initialised; the model, its stack, its head or a mechanism cannot read a
            part of a row, and why.
    """
    if not is_distributed():
        raise InputError(
            "rows are divided between processes that torch.distributed knows, and it is not initialised; start them "
            "with torchrun and call torch.distributed.init_process_group() first"
        )
    check_divisible(model)
    group = dist.group.WORLD if group is None else group
    network = _networks(model)[0]
    network.divide(group)
    for module in model.modules():
        if isinstance(module, CrossAttention):
            module.processes = Processes(group)


def check_divisible(model: nn.Module) -> None:
    """Raise `InputError` where processes cannot read the rows of a model together, and why."""
    networks, name = _networks(model), type(model).__name__
    writes = isinstance(model, LongspanForConditionalGeneration)
    if len(networks) != 1 + writes or (model.config.is_encoder_decoder and not writes):  # pyright: ignore
        raise InputError(
            f"{name} is no encoder alone, no LongspanForConditionalGeneration and no language model; rows are divided "
            "between processes for these only"
        )
    network = networks[0]
    if writes and network.returns.source:
        raise InputError(
            f"the decoder beside the stack {network.stack.stack!r} reads more than the states of tokens, and whole "
            "rows; choose the stack 'sequential' to divide rows between processes"
        )
    if hasattr(model, "spec") and not (
        getattr(model, "reads_each_token", False) or getattr(model, "reads_first_token", False)
    ):
        raise InputError(
            f"{name} looks for its output in a whole row, which no process holds; choose a head with an output for "
            "each token, such as LongspanForTokenClassification or LongspanForMaskedLM, or "
            "LongspanForSequenceClassification"
        )
    if "sharded" not in network.stack.supports:
        raise InputError(
            f"the stack {network.stack.stack!r} does more with tokens than attention does, and reads whole rows; "
            "choose the stack 'sequential', 'star' or 'recurrent' to divide rows between processes"
        )
    config = network.config
    if config.num_memory_tokens:
        raise InputError(
            f"num_memory_tokens={config.num_memory_tokens} stand before each row, which no process holds whole; leave "
            "them out to divide rows between processes"
        )
    for attention in (module for module in network.modules() if isinstance(module, Attention)):
        check_support(attention.config, "sharded", causal=attention.causal)


def _networks(model: nn.Module) -> list[EncoderNetwork | Decoder]:
    return [module for module in model.modules() if isinstance(module, EncoderNetwork | Decoder)]


def part_of(batch: dict[str, Tensor], group: Any = None, *, whole: Collection[str] = ()) -> dict[str, Tensor]:
    """This process's part of every tensor `(B, T, …)` of a batch, T being the length of `input_ids` or `inputs_embeds`:
    parts are of one length, or the first ones longer by one. What has another shape stays as it is, and so do the
    inputs of a decoder beside an encoder (`decoder_input_ids`, …) and what `whole` names: its `labels`.

    Raises:
        InputError: there are more processes than tokens.
    """
    given = batch["input_ids"] if "input_ids" in batch else batch["inputs_embeds"]
    length, count, rank = given.shape[1], dist.get_world_size(group), dist.get_rank(group)
    if length < count:
        raise InputError(
            f"{count} processes are more than the {length} tokens of a row; start fewer, or give longer rows"
        )
    first = rank * (length // count) + min(rank, length % count)
    end = first + length // count + (rank < length % count)

    def part(name: str, each: Any) -> Any:  # a batch of a Trainer may hold what is no tensor
        divided = isinstance(each, Tensor) and each.dim() > 1 and each.shape[1] == length
        return each[:, first:end] if divided and name not in whole and not name.startswith("decoder_") else each

    return {name: part(name, each) for name, each in batch.items()}


def whole_rows(states: Tensor, group: Any = None) -> Tensor:
    """The parts `(B, T_r, …)` of all processes as rows `(B, T, …)`, in every process; without gradients."""
    shards = Shards.of(states, group)
    return shards.with_halo(states.detach(), shards.total, shards.total)
