"""Launches of a layer or a block on a GPU, traced on a fake device, at any length.

Nothing is computed: `FakeCuda(values=False)` tracks sizes, so that a million tokens take as long as a thousand. Only
weights have values, since the reach of some mechanisms depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from counted import Work
from fake_cuda import FakeCuda, UnknownNumbers
from longspan.attention import AttentionConfig, Tokens
from longspan.hardware import Device
from longspan.ops.runtime import one_pass
from longspan.planning.prediction import Kernel, Kind, Launches

__all__ = ["Trace", "UnknownNumbers", "layer_launches", "layer_seconds", "module_launches", "traced"]

KINDS: dict[str, Kind] = {
    "flex": "flex",
    "varlen_attn": "window",
    **dict.fromkeys(("flash_attention", "efficient_attention", "cudnn_attention"), "attention"),
}
"""Substring of the name of an attention kernel → its kind."""
RATED = ("float32", "float16", "bfloat16")
"""Dtypes with published rates."""


class Trace(Work):
    """Records every kernel launched on the device, in order."""

    def __init__(self) -> None:
        super().__init__("cuda")
        self.launches: list[Kernel] = []

    def launched(self, func: Any, moved: int, flops: int, given: list[Tensor]) -> None:
        super().launched(func, moved, flops, given)
        name = func._schema.name
        kind = next((KINDS[part] for part in KINDS if part in name), "plain")
        dtypes = [
            str(dtype_name.dtype).removeprefix("torch.") for dtype_name in given if dtype_name.is_floating_point()
        ]
        dtype = next((dtype_name for dtype_name in dtypes if dtype_name in RATED), "float32")
        self.launches.append(Kernel(name=name, bytes=moved, flops=flops, dtype=dtype, kind=kind))


def traced(run: Callable[[], Any]) -> Launches:
    """Returns the launches of a computation on the fake device with warm caches: those of its second run."""
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
    """Returns the launches of a layer or a block, forward, or with the gradients of its weights.

    Args:
        module: takes hidden states `(B, T, E)` and `Tokens`.
        tokens: tokens per row, T.
        width: E.
        batch: number of rows, B.
        training: forward and backward, instead of forward alone.
        padded: a quarter of each row is padding.
        dtype: dtype of weights and states.
        autocast: autocast to bfloat16.
        in_model: as every layer of a model but the first, which reuses what the first one derived from masks.

    Raises:
        UnknownNumbers: the work depends on the values of the hidden states, not on sizes alone.
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
    """Returns the launches of one attention layer with its projections; `options` are those of `module_launches`."""
    layer = config.build(width=width, heads=heads, causal=causal)
    return module_launches(layer, tokens=tokens, width=width, **options)


def layer_seconds(config: AttentionConfig, device: Device, **options: Any) -> float:
    """Returns the predicted seconds of one attention layer; `options` are those of `layer_launches`."""
    return layer_launches(config, **options).seconds(device)
