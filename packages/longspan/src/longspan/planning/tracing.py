"""What a layer or a block launches on a GPU, followed on one that is not there, at any length.

Nothing is computed: `FakeCuda(values=False)` follows sizes, so that a million tokens take as long as a thousand. Only
weights have values, since some mechanisms ask theirs how far they look.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention import AttentionConfig, Tokens
from longspan.ops.runtime import one_pass
from longspan.planning.counting import Work
from longspan.planning.devices import Device
from longspan.planning.fake_cuda import FakeCuda, UnknownNumbers
from longspan.planning.prediction import Kernel, Kind, Launches

__all__ = ["Trace", "UnknownNumbers", "layer_launches", "layer_seconds", "module_launches", "traced"]

FUSED = ("flash_attention", "efficient_attention", "cudnn_attention", "varlen_attn")
"""Parts of the names of attention kernels."""
RATED = ("float32", "float16", "bfloat16")
"""Types of which a device says how fast it multiplies them."""


class Trace(Work):
    """Every kernel that is launched on the device, in order."""

    def __init__(self) -> None:
        super().__init__("cuda")
        self.launches: list[Kernel] = []

    def launched(self, func: Any, moved: int, flops: int, given: list[Tensor]) -> None:
        super().launched(func, moved, flops, given)
        name = func._schema.name
        kind: Kind = "flex" if "flex" in name else "attention" if any(each in name for each in FUSED) else "plain"
        dtypes = [str(each.dtype).removeprefix("torch.") for each in given if each.is_floating_point()]
        dtype = next((each for each in dtypes if each in RATED), "float32")
        self.launches.append(Kernel(name=name, bytes=moved, flops=flops, dtype=dtype, kind=kind))


def traced(run: Callable[[], Any]) -> Launches:
    """What a computation on the fake device asks for, once its layouts and masks are cached: the second of two."""
    run()
    with Trace() as trace:
        run()
    return Launches(kernels=tuple(trace.launches), synchronisations=trace.waits, peak=trace.peak)


def module_launches(
    module: nn.Module,
    *,
    tokens: int,
    width: int,
    batch: int = 1,
    training: bool = False,
    padded: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    autocast: bool = False,
    in_model: bool = False,
) -> Launches:
    """What a layer or a block launches, forward, or with the gradients of its weights.

    Args:
        module: takes hidden states `(B, T, E)` and `Tokens`.
        tokens: of each row, T.
        width: E.
        batch: rows, B.
        training: forward and backward, instead of forward alone.
        padded: a quarter of each row is padding.
        dtype: of weights and states.
        autocast: to bfloat16.
        in_model: as every layer of a model but the first, which finds what the first one derived of masks.

    Raises:
        UnknownNumbers: what it does depends on the numbers of the hidden states, so that sizes do not tell it.
    """
    with FakeCuda() as device:
        module = module.to(dtype).to(device).train(training)
    with FakeCuda(values=False) as device, torch.set_grad_enabled(training):
        hidden = torch.empty(batch, tokens, width, dtype=dtype, device=device).requires_grad_(training)
        mask = (torch.arange(tokens, device=device) < tokens - tokens // 4).expand(batch, -1) if padded else None

        def run() -> None:
            with torch.autocast("cuda", dtype=torch.bfloat16) if autocast else nullcontext():
                out = module(hidden, Tokens(mask=mask))
            if training:
                out.sum().backward()

        with one_pass() if in_model else nullcontext():
            return traced(run)


def layer_launches(
    config: AttentionConfig, *, tokens: int, width: int = 768, heads: int = 12, causal: bool = False, **options: Any
) -> Launches:
    """What one attention layer with its projections launches; `options` are those of `module_launches`."""
    layer = config.build(width=width, heads=heads, causal=causal)
    return module_launches(layer, tokens=tokens, width=width, **options)


def layer_seconds(config: AttentionConfig, device: Device, **options: Any) -> float:
    """How long one attention layer is predicted to take; `options` are those of `layer_launches`."""
    return layer_launches(config, **options).seconds(device)
