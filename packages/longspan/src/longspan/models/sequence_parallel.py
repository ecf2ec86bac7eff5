"""Sequence parallel models: each of P processes computes a contiguous part of every row, for encoders and language
models with local, kernel or full attention.

Attention exchanges what its queries need (`longspan.attention.features.sharded`), so a document may be P
times as long as the memory of one process allows. Weights are whole in every process; their gradients are averaged over
the processes, as in DistributedDataParallel. The first half of this file sets a model up and splits batches; the
`forward` of the models calls the second, for positions, global tokens and labels that depend on whole rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from longspan.attention import Attention
from longspan.attention.support import check_support
from longspan.errors import InputError
from longspan.models.inputs import EncoderInputs, tokens_among
from longspan.ops.runtime import is_distributed
from longspan.ops.shards import Processes, Shards, gathered_from
from longspan.stacks.block import CrossAttention

if TYPE_CHECKING:
    from longspan.models.fields import ModelFields


def divide_sequence(model: nn.Module, group: Any = None) -> None:
    """Makes a model sequence parallel: each process passes its own part of each row, `part_of`, and gets the states
    of that part.

    Positions and the first global token are those of the whole row. The mean over the processes of a head's loss is the
    loss of the whole rows, and so are the gradients.

    A language model with segments and a memory gets its part of each segment, and the cache of the one before, which
    has the memory of whole segments in every process.

    An encoder-decoder shards its sources only: every process gets the same targets, decodes all of them, and
    returns all logits.

    Args:
        model: an encoder, alone or below a head with an output for each token or a class for a row, a language model,
            or a `LongspanForConditionalGeneration`; every process has the same.
        group: the processes of `torch.distributed`, in the order of the parts; `None` means all.

    Raises:
        InputError: torch.distributed is not initialised; the model, its stack, its head or a mechanism does not support
            it, and why.
    """
    from longspan.attention.features import sharded  # noqa: F401  # registers attention of sharded rows

    if not is_distributed():
        raise InputError(
            "sequence parallelism needs torch.distributed, which is not initialised; start the processes "
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
    """Raises `InputError` with the reason if a model does not support sequence parallelism."""
    networks, name, config = _networks(model), type(model).__name__, getattr(model, "config", None)
    with_decoder = bool(config is not None and config.is_encoder_decoder)
    if len(networks) != 1 + with_decoder or (with_decoder and not hasattr(model, "lm_head")):
        raise InputError(
            f"{name} is neither an encoder, a LongspanForConditionalGeneration nor a language model; rows are sharded "
            "between processes for these only"
        )
    network = networks[0]
    if with_decoder and network.returns.source:
        raise InputError(
            f"the decoder of a model with the stack {network.stack.stack!r} reads more than the states of tokens, "
            "and whole rows; choose the stack 'sequential' to shard rows between processes"
        )
    if hasattr(model, "spec") and not (
        getattr(model, "reads_each_token", False) or getattr(model, "reads_first_token", False)
    ):
        raise InputError(
            f"{name} derives its output from a whole row, which no process has; choose a head with an output for "
            "each token, such as LongspanForTokenClassification or LongspanForMaskedLM, or "
            "LongspanForSequenceClassification"
        )
    if "sharded" not in network.stack.supports:
        raise InputError(
            f"the stack {network.stack.stack!r} does more with tokens than attention does, and reads whole rows; "
            "choose the stack 'sequential', 'star' or 'recurrent' to shard rows between processes"
        )
    if count := network.config.num_memory_tokens:
        raise InputError(
            f"num_memory_tokens={count} come before each row, which no process has as a whole; leave "
            "them out to shard rows between processes"
        )
    for attention in (module for module in network.modules() if isinstance(module, Attention)):
        check_support(attention.config, "sharded", causal=attention.causal)


def _networks(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "sequence_group")]


def part_of(batch: dict[str, Tensor], group: Any = None, *, whole: Collection[str] = ()) -> dict[str, Tensor]:
    """Returns this process's part of every tensor `(B, T, …)` of a batch, T being the length of `input_ids` or
    `inputs_embeds`; parts have equal lengths, or the first ones are longer by one. Tensors of other shapes are
    unchanged, and so are the inputs of a decoder after an encoder (`decoder_input_ids`, …) and those named in `whole`,
    such as its `labels`. The last of more processes than tokens have parts without tokens.
    """
    given = batch["input_ids"] if "input_ids" in batch else batch["inputs_embeds"]
    length, count, rank = given.shape[1], dist.get_world_size(group), dist.get_rank(group)
    first = rank * (length // count) + min(rank, length % count)
    end = first + length // count + (rank < length % count)

    def part(name: str, each: Any) -> Any:  # a batch of a Trainer can contain other types
        divided = isinstance(each, Tensor) and each.dim() > 1 and each.shape[1] == length
        return each[:, first:end] if divided and name not in whole and not name.startswith("decoder_") else each

    return {name: part(name, each) for name, each in batch.items()}


def whole_rows(states: Tensor, group: Any = None) -> Tensor:
    """Concatenates the parts `(B, T_r, …)` of processes to rows `(B, T, …)`, in every process; without gradients."""
    shards = Shards.of(states, group)
    return shards.with_halo(states.detach(), shards.total, shards.total)


def part_of_rows(encoder: Any, inputs: EncoderInputs) -> tuple[EncoderInputs, Shards | None]:
    """Returns the inputs of an encoder for this process's part of the rows, with their positions, and how the
    rows are sharded.

    Raises:
        InputError: arguments that require whole rows.
    """
    _refuse(seq_idx=inputs.seq_idx, importance=inputs.importance)
    config, given = encoder.config, inputs.input_ids if inputs.input_ids is not None else inputs.inputs_embeds
    if given is None:
        return inputs, None  # the embeddings raise, as without shards
    shards = Shards.of(given, encoder.sequence_group)
    padding, offset = encoder.embeddings.padding, encoder.embeddings.offset
    changes: dict[str, Any] = {}
    if padding is not None and inputs.input_ids is not None and inputs.position_ids is None:
        real = inputs.input_ids != padding
        before = _before(real.sum(1), shards)
        changes["position_ids"] = (real.cumsum(1) + before[:, None]) * real + (offset - 1)
    elif encoder.embeddings.position is not None and inputs.position_ids is None and config.source_model_type is None:
        real = _real(shards, inputs.attention_mask, given)
        if real is not None:
            leading = real.cumsum(1) + _before(real.sum(1), shards)[:, None] == 0
            places = torch.arange(given.shape[1], device=given.device) + shards.first
            places = places - gathered_from(leading.sum(1), shards.group).sum(0)[:, None]
            changes["position_ids"] = places.clamp(min=0) + offset
    if inputs.global_attention_mask is None and config.global_tokens != "none":
        changes["global_attention_mask"] = _globals_of_part(config, inputs, given, shards)
    return replace(inputs, **changes), shards


def _globals_of_part(config: ModelFields, inputs: EncoderInputs, given: Tensor, shards: Shards) -> Tensor:
    """Returns the global tokens of this part by the configuration's rule, `(B, T_r)` bool."""
    if not isinstance(config.global_tokens, str):
        return tokens_among(config.global_tokens, inputs.input_ids, _real(shards, inputs.attention_mask, given))
    if config.global_tokens != "first":
        raise InputError(
            f"global_tokens={config.global_tokens!r} needs whole rows, which are sharded between processes here; "
            "pass a global_attention_mask"
        )
    shape = given.shape[:2]
    if (real := _real(shards, inputs.attention_mask, given)) is not None:
        return real & (real.cumsum(1) + _before(real.sum(1), shards)[:, None] == 1)
    return torch.arange(shape[1], device=given.device).expand(shape) + shards.first == 0


def part_of_text(
    given: Tensor,
    group: Any,
    mask: Tensor | None,
    position_ids: Tensor | None,
    **whole: Any,
) -> tuple[Shards, Tensor | None]:
    """Returns how the rows of a language model are sharded, and the positions `(B, T_r)` of this part among the real
    tokens; `None` for those of the input.

    Raises:
        InputError: an argument in `whole`, which requires whole rows, is given.
    """
    _refuse(**whole)
    shards = Shards.of(given, group)
    if position_ids is None and (real := _real(shards, mask, given)) is not None:
        position_ids = (real.cumsum(1) + _before(real.sum(1), shards)[:, None] - 1).clamp(min=0)
    return shards, position_ids


def check_all_real(mask: Tensor | None, given: Tensor, group: Any) -> None:
    """Raises `InputError` if the mask `(B, T_r)` of any process has padding, which a memory of sharded rows
    does not support.
    """
    here = mask is not None and not bool(mask.all())
    if any(gathered_from(torch.tensor([here], device=given.device), group).flatten().tolist()):
        raise InputError(
            "attention_mask contains padding, and rows that are sharded between processes continue a "
            "memory, which has no padding; give segments without any, or use_cache=False to process each separately"
        )


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} was given with rows that are sharded between processes; leave it out")


def _real(shards: Shards, mask: Tensor | None, given: Tensor) -> Tensor | None:
    """Returns the mask of this part, `(B, T_r)` bool; `None` if no process has a mask."""
    if not shards.any(mask is not None, given.device):
        return None
    return torch.ones(given.shape[:2], dtype=torch.bool, device=given.device) if mask is None else mask.bool()


def _before(counts: Tensor, shards: Shards) -> Tensor:
    """Returns the sum of counts `(B,)` over the parts before this process's."""
    return gathered_from(counts, shards.group)[: shards.rank].sum(0)


def first_of_rows(hidden: Tensor, group: Any, mask: Tensor | None = None) -> Tensor:
    """Returns the state `(B, E)` of the first real token of each row, from this process's `(B, T_r, E)` and mask `(B,
    T_r)`; that of the first token for a row without real tokens.
    """
    shards = Shards.of(hidden, group)
    real, place = _real(shards, mask, hidden), torch.arange(hidden.shape[1], device=hidden.device) + shards.first
    is_first = (place == 0).expand(hidden.shape[:2])
    if real is not None:
        counts = gathered_from(real.sum(1), shards.group)
        number = real.cumsum(1) + counts[: shards.rank].sum(0)[:, None]
        is_first = torch.where(counts.sum(0)[:, None] > 0, real & (number == 1), is_first)
    return shards.summed(hidden.masked_fill(~is_first[..., None], 0).sum(1), "first")


def check_same(name: str, ids: Tensor, group: Any) -> None:
    """Raises `InputError` unless every process was given the same ids `(B, T)`."""
    Shards.of(ids, group)
    lengths = gathered_from(torch.tensor(ids.shape[1], device=ids.device), group)
    if bool((lengths != lengths[0]).any()) or bool((gathered_from(ids, group) != ids).any()):
        raise InputError(
            f"{name} differ between the processes that read a part of each source; give all of them the whole targets"
        )


def share_of_labels(counted: Tensor, group: Any) -> Tensor:
    """Returns the factor of this process's mean loss with which the mean over the processes is that of all labels: P
    times its share of the labels, `counted` `(B, T_r)` bool; a float64 scalar.
    """
    return counted.sum() / count_for_mean(counted, group)


def following_labels(labels: Tensor, tokens: int, group: Any) -> Tensor:
    """Appends to the labels `(B, T_r)` of this part that of the next token, which another process has, `(B, T_r + 1)`;
    the last part is unchanged.

    Raises:
        InputError: the numbers of labels and tokens differ.
    """
    if labels.shape[1] != tokens:
        raise InputError(
            f"labels cover {labels.shape[1]} tokens and this process's part of the rows has {tokens}; give one for each"
        )
    return Shards.of(labels, group).with_halo(labels, 0, 1)


def count_for_mean(counted: Tensor, group: Any) -> Tensor:
    """Returns the divisor of this process's sum of losses with which the mean over the P processes is the mean over all
    labels: a P-th of the number of `counted` labels, bool in each process; a float64 scalar.
    """
    counts = gathered_from(counted.sum(), group)
    return counts.sum().clamp(min=1).double() / len(counts)
