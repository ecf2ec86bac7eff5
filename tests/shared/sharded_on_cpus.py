"""accelerate shards weights (FSDP2) in processes on CPUs too.

accelerate's `launch` starts such processes, and its state then leaves FSDP out, which works there all the same: the
real sharding by PyTorch, over gloo. Run as a script it runs another one so, and prints which modules were sharded.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch import nn
from torch.distributed.fsdp import FSDPModule


def shard_on_cpus() -> None:
    """Let every `Accelerator` with a plugin of FSDP use it."""
    made = AcceleratorState.__init__

    def init(self: Any, *arguments: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        made(self, *arguments, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None:
            self.fsdp_plugin = fsdp_plugin
            self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = init


def sharded_modules(model: nn.Module) -> list[str]:
    """The classes of the modules whose weights are gathered together."""
    return [type(module).__name__.removeprefix("FSDP") for module in model.modules() if isinstance(module, FSDPModule)]


if __name__ == "__main__":
    shard_on_cpus()
    sys.argv.pop(0)
    print("sharded", *sharded_modules(runpy.run_path(sys.argv[0], run_name="__main__")["model"]))
