"""A model's part of rows that are divided between processes: places, global tokens and labels of whole rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.models.inputs import ModelInputs, tokens_among
from longspan.ops.shards import Shards, gathered_from


def part_of_rows(network: Any, inputs: ModelInputs) -> ModelInputs:
    """What an encoder is given of its part of the rows, with the places that it has in them.

    Raises:
        InputError: what only whole rows have is given.
    """
    _refuse(seq_idx=inputs.documents, importance=inputs.importance)
    config, given = network.config, inputs.input_ids if inputs.input_ids is not None else inputs.inputs_embeds
    if given is None:
        return inputs  # refused by the embeddings, as without shards
    shards = Shards.of(given, network.sequence_group)
    changes: dict[str, Any] = {"shards": shards, "first_position": shards.first}
    padding = network.embeddings.padding
    if padding is not None and inputs.input_ids is not None and inputs.position_ids is None:
        real = inputs.input_ids != padding
        before = _before(real.sum(1), shards)
        changes["position_ids"] = (real.cumsum(1) + before[:, None]) * real + (network.embeddings.offset - 1)
    elif network.embeddings.position is not None and inputs.position_ids is None and config.source_model_type is None:
        real = _real(shards, inputs.attention_mask, given)
        if real is not None:
            leading = real.cumsum(1) + _before(real.sum(1), shards)[:, None] == 0
            places = torch.arange(given.shape[1], device=given.device) + shards.first
            places = places - gathered_from(leading.sum(1), shards.group).sum(0)[:, None]
            changes["position_ids"] = places.clamp(min=0) + network.embeddings.offset
    if inputs.global_attention_mask is None and config.global_tokens != "none":
        changes["global_attention_mask"] = _globals_of_part(network, replace(inputs, **changes), given)
    return replace(inputs, **changes)


def _globals_of_part(network: Any, inputs: ModelInputs, given: Tensor) -> Tensor:
    """`(B, T_r)` bool, the global tokens of this part by the rule of the configuration."""
    config, shards = network.config, inputs.shards
    assert shards is not None
    if not isinstance(config.global_tokens, str):
        return tokens_among(config.global_tokens, inputs.input_ids, _real(shards, inputs.attention_mask, given))
    if config.global_tokens != "first":
        raise InputError(
            f"global_tokens={config.global_tokens!r} looks at whole rows, which are divided between processes here; "
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
    """How the rows of a language model are divided, and the places `(B, T_r)` of this part among the real tokens;
    `None` where those of the input are.

    Raises:
        InputError: something of `whole`, which only whole rows have, is given.
    """
    _refuse(**whole)
    shards = Shards.of(given, group)
    if position_ids is None and (real := _real(shards, mask, given)) is not None:
        position_ids = (real.cumsum(1) + _before(real.sum(1), shards)[:, None] - 1).clamp(min=0)
    return shards, position_ids


def check_all_real(mask: Tensor | None, given: Tensor, group: Any) -> None:
    """Raise `InputError` where the mask `(B, T_r)` of some process tells padding from tokens, since a memory of divided
    rows does not know of any."""
    here = mask is not None and not bool(mask.all())
    if any(gathered_from(torch.tensor([here], device=given.device), group).flatten().tolist()):
        raise InputError(
            "attention_mask tells padding from tokens, and rows that are divided between processes go on behind a "
            "memory, which keeps no padding; give segments without any, or use_cache=False to read each by itself"
        )


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} was given with rows that are divided between processes; leave it out")


def _real(shards: Shards, mask: Tensor | None, given: Tensor) -> Tensor | None:
    """Which tokens of this part are real, `(B, T_r)` bool; `None` where no process has a mask."""
    if not shards.any(mask is not None, given.device):
        return None
    return torch.ones(given.shape[:2], dtype=torch.bool, device=given.device) if mask is None else mask.bool()


def _before(counts: Tensor, shards: Shards) -> Tensor:
    """The sum of counts `(B,)` over the parts before this process's."""
    return gathered_from(counts, shards.group)[: shards.rank].sum(0)


def first_of_rows(hidden: Tensor, group: Any, mask: Tensor | None = None) -> Tensor:
    """The state `(B, E)` of the first real token of each row, of whose states this process has `(B, T_r, E)`, and of
    its mask `(B, T_r)`; 0 where none of a mask is real."""
    shards = Shards.of(hidden, group)
    real = _real(shards, mask, hidden)
    if real is not None:
        is_first = real & (real.cumsum(1) + _before(real.sum(1), shards)[:, None] == 1)
        return shards.summed((hidden * is_first[..., None]).sum(1), "first")
    first = hidden[:, 0]
    return shards.summed(first.masked_fill(torch.tensor(shards.rank > 0, device=hidden.device), 0), "first")


def check_same(name: str, ids: Tensor, group: Any) -> None:
    """Raise `InputError` unless every process was given the same ids `(B, T)`."""
    Shards.of(ids, group)
    lengths = gathered_from(torch.tensor(ids.shape[1], device=ids.device), group)
    if bool((lengths != lengths[0]).any()) or bool((gathered_from(ids, group) != ids).any()):
        raise InputError(
            f"{name} differ between the processes that read a part of each source; give all of them the whole targets"
        )


def share_of_labels(counted: Tensor, group: Any) -> Tensor:
    """What the mean loss of this process's labels is multiplied with, so that the mean over the processes is that of
    all labels: P times the share of these, `counted` `(B, T_r)` bool; a float64 scalar."""
    return counted.sum() / count_for_mean(counted, group)


def following_labels(labels: Tensor, tokens: int, group: Any) -> Tensor:
    """`(B, T_r)` labels of the tokens of this part → `(B, T_r + 1)`, with that of the token behind it, which another
    process has; the last part stays as it is.

    Raises:
        InputError: there are not as many labels as tokens.
    """
    if labels.shape[1] != tokens:
        raise InputError(
            f"labels cover {labels.shape[1]} tokens and this process's part of the rows has {tokens}; give one for each"
        )
    return Shards.of(labels, group).with_halo(labels, 0, 1)


def count_for_mean(counted: Tensor, group: Any) -> Tensor:
    """What the sum of this process's losses is divided by, so that the mean over the P processes is the mean over all
    labels: a P-th of the number of those that are `counted`, bool in each process; a float64 scalar."""
    counts = gathered_from(counted.sum(), group)
    return counts.sum().clamp(min=1).double() / len(counts)
