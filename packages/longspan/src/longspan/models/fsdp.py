"""Sharded weights (FSDP2; Zhao et al. 2023, arXiv 2304.11277): each of P processes stores the P-th part of every
weight, of its gradient and of the optimizer's states, and gathers the rest of a layer to compute it.

Weights can be on `meta` when they are sharded, and filled by `longspan.training.distributed_checkpoints`, by part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from longspan.ops.runtime import is_distributed
from longspan.stacks.sequential import Layers

BESIDE_FORWARD = ("attention_loss", "weights_loss", "score", "generate")
"""Methods of layers and models that use weights outside of `forward` of the same module."""


def shard(
    model: nn.Module,
    device: torch.device,
    *,
    offload: bool = False,
    replicas: int = 1,
    reshard_after_forward: bool = True,
    gather_dtype: torch.dtype | None = None,
) -> None:
    """Shards the weights of a model, in place, between the processes that torchrun started.

    Each unit of a stack is gathered when it is called; other weights are gathered at the start of `forward` and stay.
    The initial weights are those of the first process. Weights on `meta` get memory for the shards and no values.

    Args:
        model: unsharded, with the same layers in every process, on any device; all of its weights are on `meta`, or
            none.
        device: the device of this process, on which its shards are afterwards, unless they are offloaded.
        offload: store the shards in CPU memory, and update them there.
        replicas: number of groups of consecutive processes that have all weights (hybrid sharding); a divisor of the
            number of processes.
        reshard_after_forward: free the weights of a unit after its forward pass, and gather them again for the
            backward pass.
        gather_dtype: dtype of gathered weights, such as `torch.bfloat16` below `torch.autocast`; None is their own.
            Shards, and the sum of gradients, stay float32.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    empty = any(weight.is_meta for weight in model.parameters())
    for tensor in () if empty else (*model.parameters(), *model.buffers()):
        value = tensor.detach()
        sent = value.to(device)  # NCCL sends from GPUs only
        torch.distributed.broadcast(sent, 0)
        if sent is not value:
            value.copy_(sent)
    world = torch.distributed.get_world_size()
    sizes, names = ((world,), ("shard",)) if replicas == 1 else ((replicas, world // replicas), ("replicate", "shard"))
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    pins = device.type != "cpu"  # CPU memory that a device can access directly
    policy = CPUOffloadPolicy(pin_memory=pins) if offload else OffloadPolicy()
    # Activations have the dtypes of autocast, as in one process.
    reduce_dtype = None if gather_dtype is None else torch.float32
    precision = MixedPrecisionPolicy(param_dtype=gather_dtype, reduce_dtype=reduce_dtype, cast_forward_inputs=False)
    options: dict[str, Any] = {"mesh": mesh, "offload_policy": policy, "mp_policy": precision}
    for unit in (*units(model), model):
        # Weights outside of the units are needed from the beginning to the end.
        fully_shard(unit, reshard_after_forward=reshard_after_forward and unit is not model, **options)
        for method in BESIDE_FORWARD:
            if hasattr(type(unit), method):  # some heads have a layer of that name
                register_fsdp_forward_method(unit, method)
    for module in model.modules():
        if isinstance(module, Layers):
            module.in_step = True
    if empty:
        _allocate(model, device, torch.device("cpu") if offload else device)


def _allocate(model: nn.Module, device: torch.device, shards: torch.device) -> None:
    """Gives shards on `meta` memory on a device; buffers keep their values, and tied weights stay tied."""
    tied: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        tied.setdefault(id(weight), []).append(name)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers(remove_duplicate=False)}
    model.to_empty(device=shards)
    for first, *others in tied.values():
        for name in others:
            place, _, kind = name.rpartition(".")
            setattr(model.get_submodule(place), kind, model.get_parameter(first))
    for name, buffer in buffers.items():
        place, _, kind = name.rpartition(".")
        setattr(model.get_submodule(place), kind, buffer.to(device))


def units(model: nn.Module) -> Iterator[nn.Module]:
    """Yields the modules whose weights are gathered together, innermost first, as defined by each stack."""
    stacks = [module for module in model.modules() if isinstance(module, Layers)]
    for stack in reversed(stacks):
        yield from stack.units()


def is_sharded(model: nn.Module) -> bool:
    """Whether any weight of the model is sharded."""
    if not is_distributed():
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(weight, DTensor) for weight in model.parameters())


def whole_weights(model: nn.Module, *, keep: bool = True, only_trained: bool = False) -> dict[str, Tensor]:
    """Returns the state dict of a model with every sharded weight gathered in CPU memory.

    Every process must call this. Weights that the model has under two names are one tensor here, too.

    Args:
        model: sharded or not.
        keep: False returns an empty dictionary, for processes that do not write.
        only_trained: leave out the weights that are not trained, such as those below adapters.
    """
    trained = {name for name, weight in model.named_parameters(remove_duplicate=False) if weight.requires_grad}
    states = {name: value for name, value in model.state_dict().items() if not only_trained or name in trained}
    names = {name: id(weight) for name, weight in model.named_parameters(remove_duplicate=False)}
    whole: dict[int, Any] = {}
    for name, value in states.items():
        number = names.get(name, id(value))
        if number not in whole:
            whole[number] = gathered(value, keep=keep)
    return {name: whole[names.get(name, id(value))] for name, value in states.items()} if keep else {}


def gathered(values: Any, *, keep: bool = True) -> Any:
    """Returns plain data with every sharded tensor gathered in CPU memory; every process must call this.

    Args:
        values: a tensor, or the state dict of an optimizer.
        keep: False returns None instead of each sharded tensor, for processes that do not write.
    """
    from torch.distributed.tensor import DTensor

    def whole(value: Any) -> Any:
        if not isinstance(value, DTensor):
            return value
        divided: Any = value.detach()
        together = divided.full_tensor()
        return together.cpu() if keep else None

    return tree_map(whole, values)


def divide_loaded_states(optimizer: torch.optim.Optimizer) -> None:
    """Makes an optimizer of sharded weights accept the state dicts of one of whole weights."""
    optimizer.register_load_state_dict_pre_hook(_divided)


def _divided(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Returns a state dict whose tensors are sharded like their weights."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    states = dict(state_dict["state"])
    for number, weight in zip(numbers, weights, strict=True):
        if number not in states or not isinstance(weight, DTensor):
            continue

        def as_weight(value: Any, weight: Any = weight) -> Any:
            if not isinstance(value, Tensor) or isinstance(value, DTensor) or value.shape != weight.shape:
                return value
            mesh = weight.device_mesh
            whole = value.to(mesh.device_type)  # an offloaded shard is on another device
            return distribute_tensor(whole, mesh, weight.placements, src_data_rank=None).to(weight.device)

        states[number] = tree_map(as_weight, states[number])
    return {**state_dict, "state": states}
