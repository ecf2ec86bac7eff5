"""Models of which no process holds all weights: built on `meta`, sharded, and then filled, each process by its slices.

The weights of a new model are drawn by the first process alone, as it does when it trains alone, so that they are the
same to the bit for any number of processes. It draws them into files that are mapped into its memory, writes them as
safetensors, and every process reads its slices from there.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from transformers import initialization

from longspan.checkpoints.folder import WEIGHTS
from longspan.training.distributed_checkpoints import read_weights, stored_weights, write_safetensors
from longspan.training.processes import is_main_process, on_main_process_first

INITIAL = "initial-weights"
"""The folder of the weights of a new model, which is removed once they are read."""
SMALL = 64 * 2**10
"""Bytes of the largest weight that is not in a file of its own."""
RESIDENT = 64 * 2**20
"""Bytes of such files that are used before their memory is given back, at a weight's end."""


@contextmanager
def without_weights() -> Iterator[None]:
    """Within the context, the parameters of new modules are on `meta` and nothing is initialised; buffers have their
    values. Tied weights have to be tied again.
    """

    def on_meta(module: nn.Module, name: str, weight: nn.Parameter | None) -> Any:
        if weight is None or weight.is_meta:  # a shared one stays the same object
            return None
        return nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=weight.requires_grad)

    handle = register_module_parameter_registration_hook(on_meta)
    try:
        with initialization.no_init_weights():
            yield
    finally:
        handle.remove()


class OnDisk(TorchFunctionMode):
    """Within the context, large parameters of new modules are in unnamed files in `folder`, mapped into memory.

    The memory is given back whenever functions have used `RESIDENT` bytes of them; the values stay in the files.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.maps: dict[int, mmap.mmap] = {}
        """Address → what is mapped there."""
        self.used = 0

    def __enter__(self) -> Any:
        self.handle = register_module_parameter_registration_hook(self._mapped)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.handle.remove()

    def _mapped(self, module: nn.Module, name: str, weight: nn.Parameter | None) -> Any:
        if weight is None or weight.nbytes <= SMALL or weight.untyped_storage().data_ptr() in self.maps:
            return None
        with tempfile.TemporaryFile(dir=self.folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, weight.nbytes)  # a full disk is an error here, no signal later
            else:  # macOS
                file.truncate(weight.nbytes)
            mapped = mmap.mmap(file.fileno(), weight.nbytes)
        values = torch.frombuffer(mapped, dtype=weight.dtype, count=weight.numel()).view(weight.shape)
        values.copy_(weight.detach())
        self.maps[values.untyped_storage().data_ptr()] = mapped
        self.use(values)
        return nn.Parameter(values, requires_grad=weight.requires_grad)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in (*args[:2], *(kwargs or {}).values()):  # functions of `torch.nn.init` pass it by name
            if isinstance(tensor, Tensor) and tensor.nbytes > SMALL:
                self.use(tensor)
        return result

    def use(self, tensor: Tensor) -> None:
        """Counts a use of a tensor."""
        if tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() in self.maps:
            self.used += tensor.nbytes
            if self.used >= RESIDENT:
                self.used = 0
                for mapped in self.maps.values():
                    mapped.madvise(mmap.MADV_DONTNEED)


def fill_new(model: nn.Module, build: Callable[[], nn.Module], folder: Path) -> None:
    """Fills a sharded model with the weights that `build` draws; every process must call this.

    Args:
        model: sharded, with memory but without values.
        build: builds and initialises the same model; called in the first process.
        folder: of the run, with room for twice the weights for as long as this takes.
    """
    place = folder / INITIAL
    with on_main_process_first():
        if is_main_process():
            shutil.rmtree(place, ignore_errors=True)  # of a process that was killed
            place.mkdir(parents=True)
            write_new(build, place)
    try:
        read_weights(model, place)
        torch.distributed.barrier()
    finally:
        if is_main_process():
            shutil.rmtree(place)


def write_new(build: Callable[[], nn.Module], folder: Path) -> None:
    """Writes the weights that `build` draws into a folder; in memory there are few of them at a time."""
    with OnDisk(folder) as disk:
        weights = stored_weights(build())
        with (folder / WEIGHTS).open("wb") as opened:

            def value(name: str) -> Tensor:
                disk.use(weights[name])
                return weights[name]

            write_safetensors(opened, weights, value)
