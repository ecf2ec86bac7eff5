"""Checkpoints of sharded weights: every process writes its shards and reads its own (`torch.distributed.checkpoint`).

A checkpoint with a folder `parts` was written in this way. It has weights and the optimizer's states, in the
safetensors form of PyTorch (`HuggingFaceStorageWriter`), whose headers say which part of which tensor a file holds: no
pickle is read, and any number of processes, sharded or not, can read it. A weight has its name in the model, a state
the name of its weight and its own (`encoder.layer.0.query.weight/exp_avg`). What is no tensor is in `groups.pt`.
"""

from __future__ import annotations

import json
import math
import struct
import warnings
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.checkpoint import HuggingFaceStorageReader, TensorStorageMetadata, load

from longspan.checkpoints.folder import INDEX
from longspan.errors import InputError, last_line
from longspan.files import whole_file, write_whole
from longspan.training.checkpoints import PARTS, Saving, plain_errors

GROUPS = "groups.pt"
"""The file of the optimizer's groups and of states that are no tensors."""
OF = "/"
"""Between the name of a weight and that of its state."""
SMALLEST_PART, MOST_PARTS = 64 * 2**20, 16
"""Bytes of one process's shards in a file, which PyTorch composes in memory before it is written, or more for fewer
files: a larger process has about so many.
"""
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Dtype → its name in safetensors."""


def stored_weights(model: Any) -> dict[str, Tensor]:
    """Returns what `save_pretrained` stores of a model, without its copies: a tied weight has one name."""
    states = model.state_dict()
    tied = getattr(model, "all_tied_weights_keys", {})
    names: dict[int, list[str]] = {}
    parameters = {name: id(weight) for name, weight in model.named_parameters(remove_duplicate=False)}
    for name, value in states.items():
        names.setdefault(parameters.get(name, id(value)), []).append(name)
    kept = {next((name for name in group if name not in tied), group[0]) for group in names.values()}
    return {name: value for name, value in states.items() if name in kept}


def write_parts(
    model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Path, saving: Saving, *, weights: bool = True
) -> None:
    """Writes the weights of a model, unless they are stored elsewhere, and the states of its optimizer; every process
    must call this.

    Raises:
        OSError: they cannot be written, in the background at `Saving.wait`.
    """
    tensors: dict[str, Any] = dict(stored_weights(model)) if weights else {}
    names = {id(weight): name for name, weight in model.named_parameters()}
    others: dict[str, dict[str, Any]] = {}
    for weight, states in optimizer.state.items():
        for key, value in states.items():
            if isinstance(value, Tensor):
                tensors[f"{names[id(weight)]}{OF}{key}"] = value
            else:
                others.setdefault(names[id(weight)], {})[key] = value
    groups = [
        {**group, "params": [names[id(weight)] for weight in group["params"]]} for group in optimizer.param_groups
    ]
    checkpoint.mkdir(parents=True, exist_ok=True)
    if torch.distributed.get_rank() == 0:
        torch.save({"groups": groups, "states": others}, checkpoint / GROUPS)
    saving.write(tensors, checkpoint / PARTS, _file_numbers(tensors))


def _file_numbers(tensors: Mapping[str, Any]) -> dict[str, int]:
    """Returns the number of the file of each tensor, in every process the same."""
    everything = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    largest = max(SMALLEST_PART * torch.distributed.get_world_size(), everything // MOST_PARTS)
    numbers: dict[str, int] = {}
    number, size = 1, 0
    for name, tensor in tensors.items():
        bytes_of = tensor.numel() * tensor.element_size()
        if size and size + bytes_of > largest:
            number, size = number + 1, 0
        numbers[name] = number
        size += bytes_of
    return numbers


def read_weights(model: nn.Module, files: Path) -> None:
    """Reads the weights of a model, in place, from a folder of safetensors: of a sharded weight only the own slices.

    Raises:
        InputError: a part is missing; the weights are those of another model.
    """
    _read(dict(stored_weights(model)), files)


def read_states(model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Path, *, groups: bool = True) -> None:
    """Reads the states of an optimizer: of sharded weights only those of the own slices.

    PyTorch's `set_optimizer_state_dict` first creates all states by a step with gradients of zero, for which a process
    may lack the memory, and which gives states to weights that never had a gradient.

    Args:
        groups: read the settings of its groups too, such as the learning rates.

    Raises:
        InputError: a part is missing; they are those of other weights.
    """
    saved = torch.load(checkpoint / GROUPS, map_location="cpu", weights_only=True)
    weights = dict(model.named_parameters())
    names = {id(weight): name for name, weight in weights.items()}
    order = [[names[id(weight)] for weight in group["params"]] for group in optimizer.param_groups]
    if (before := [group["params"] for group in saved["groups"]]) != order:
        different = sorted(set(chain(*before)) ^ set(chain(*order))) or ["their order"]
        raise InputError(
            f"the optimizer's states in {str(checkpoint)!r} are those of other weights ({different[0]}); resume with "
            "the recipe that wrote them"
        )
    tensors: dict[str, Any] = {}
    for key, stored in _parts_of(checkpoint / PARTS).items():
        name, is_state, _ = key.rpartition(OF)
        if is_state:
            weight = weights[name].detach()
            like = weight if stored.size == weight.shape else torch.empty(stored.size, device="cpu")
            tensors[key] = torch.empty_like(like, dtype=stored.properties.dtype)
    _read(tensors, checkpoint / PARTS)
    states: dict[str, dict[str, Any]] = {name: dict(others) for name, others in saved["states"].items()}
    for key, value in tensors.items():
        name, _, state = key.rpartition(OF)
        states.setdefault(name, {})[state] = value
    numbered = optimizer.state_dict()["param_groups"]
    numbers = dict(zip(chain(*order), chain(*(group["params"] for group in numbered)), strict=True))
    if groups:
        pairs = zip(saved["groups"], numbered, strict=True)
        numbered = [{**settings, "params": group["params"]} for settings, group in pairs]
    optimizer.load_state_dict(
        {"state": {numbers[name]: state for name, state in states.items()}, "param_groups": numbered}
    )


def _read(tensors: dict[str, Any], files: Path) -> None:
    stored = _parts_of(files)
    for name, tensor in tensors.items():
        if name not in stored:
            raise InputError(
                f"{str(files)!r} has no part of {name!r}; put its missing file back, or resume from another checkpoint"
            )
        if stored[name].size != tensor.shape:
            raise InputError(
                f"{name!r} has the shape {tuple(stored[name].size)} in {str(files)!r} and {tuple(tensor.shape)} in the "
                "model; a part of it is missing, or the files are those of another model"
            )
    with plain_errors(), warnings.catch_warnings():
        # Each process reads what it needs, and they need not agree about it; PyTorch warns that it cannot know that.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        load(tensors, storage_reader=HuggingFaceStorageReader(str(files)), no_dist=True)


def _parts_of(files: Path) -> dict[str, Any]:
    """Returns name → PyTorch's description of each tensor in a folder of safetensors."""
    return _described(files).state_dict_metadata


def _described(files: Path) -> Any:
    """Returns PyTorch's description of a folder of safetensors, from the headers.

    Raises:
        InputError: a file cannot be read; not all parts of a tensor are there.
    """
    try:
        described = HuggingFaceStorageReader(str(files)).read_metadata()
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{str(files)!r} cannot be read ({last_line(error)}); put its files back, or resume from another checkpoint"
        ) from error
    for name, tensor in described.state_dict_metadata.items():
        assert isinstance(tensor, TensorStorageMetadata)
        # Parts of one tensor do not overlap.
        there, whole = sum(math.prod(part.sizes) for part in tensor.chunks), math.prod(tensor.size)
        if there != whole:
            raise InputError(
                f"{str(files)!r} has {there:,} of the {whole:,} numbers of {name!r}; put its missing file back, or "
                "resume from another checkpoint"
            )
    return described


def write_joined(checkpoint: Path, folder: Path, max_shard_size: str) -> set[str]:
    """Writes the weights of a checkpoint in parts into `folder`, in the files of `save_pretrained`; in memory there is
    one tensor at a time. Returns the names of the files.
    """
    described = _described(checkpoint / PARTS)
    empty = {
        name: torch.empty(tensor.size, dtype=tensor.properties.dtype, device="meta")
        for name, tensor in described.state_dict_metadata.items()
        if OF not in name
    }
    places: dict[str, list[tuple[Any, str]]] = {}
    for index, stored in described.storage_data.items():
        places.setdefault(index.fqn, []).append((index.offset, stored.relative_path))

    def whole(name: str) -> Tensor:
        tensor = torch.empty_like(empty[name], device="cpu")
        for offsets, file in places[name]:
            with safe_open(file, framework="pt") as stored:
                part = stored.get_tensor(name)
            tensor[tuple(slice(begin, begin + size) for begin, size in zip(offsets, part.shape, strict=True))] = part
        return tensor

    split = split_torch_state_dict_into_shards(empty, max_shard_size=max_shard_size)
    for file, names in split.filename_to_tensors.items():
        with whole_file(folder / file) as part, part.open("wb") as opened:
            write_safetensors(opened, {name: empty[name] for name in names}, whole)
    files = set(split.filename_to_tensors)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_whole({folder / INDEX: json.dumps(index, indent=2, sort_keys=True) + "\n"})
        files.add(INDEX)
    return files


def write_safetensors(opened: Any, tensors: Mapping[str, Tensor], value: Callable[[str], Tensor]) -> None:
    """Writes a file of safetensors one tensor after the other; the function of that package copies all of them first.

    Args:
        opened: a file, for bytes.
        tensors: name → a tensor of the shape and dtype, perhaps on `meta`.
        value: returns the tensor of a name, in CPU memory.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    # The widest numbers first, so that each is aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    end = 0
    for name in names:
        begin, end = end, end + tensors[name].nbytes
        shape, dtype = list(tensors[name].shape), TYPES[tensors[name].dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    # The length of the header, the header in JSON, and the numbers.
    opened.write(struct.pack("<Q", len(text)) + text)
    for name in names:
        opened.write(value(name).detach().reshape(-1).view(torch.uint8).numpy().data)
