"""Warm starts: how weights of a mechanism start that a published checkpoint, or another mechanism, lacks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import torch

from longspan.attention.base import Attention, ProjectedAttention

Start = Literal["from_local", "new"]
"""How a weight that a source lacks starts: as a copy of another of the layer, or as the mechanism draws it."""

PROJECTIONS = ("query", "key", "value", "output")
"""Parts of a `ProjectedAttention` that every source has."""


class FurtherWeights(Attention):
    """Base of modules with linear parts that start as copies of others, or whose weights follow what a source lacks."""

    @property
    def starts_from(self) -> Mapping[str, str]:
        """Linear part with weights of its own → the part of which it starts as a copy."""
        return {}

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Set the weights beyond the projections that every mechanism shares, as the configuration says.

        Called at construction, and by a model after it has initialised or loaded those projections. Weights that
        transformers marked as loaded are left alone. Here: the copies of `starts_from`.
        """
        for name, source in self.starts_from.items():
            for kind in ("weight", "bias"):
                parameter = getattr(getattr(self, name), kind)
                if parameter is not None and not getattr(parameter, "_is_hf_initialized", False):
                    parameter.copy_(getattr(getattr(self, source), kind))

    def warm_start(self, missing: Collection[str], std: float = 0.02) -> dict[str, Start]:
        """What the function `warm_start` does with this module; for those that set some of these weights otherwise."""
        return _started(self, missing, std)


def warm_start(attention: Attention, missing: Collection[str], std: float = 0.02) -> dict[str, Start]:
    """Start the weights of `missing` names, which a source lacks, so that it is disturbed as little as can be.

    Args:
        attention: the mechanism; one that draws weights has a method `init_extra_weights(std)`.
        missing: names in its `state_dict`.
        std: standard deviation of new weights.

    Returns:
        How each of them starts; what no source may lack is left out, and left as it is.
    """
    if isinstance(attention, FurtherWeights):
        return attention.warm_start(missing, std)
    return _started(attention, missing, std)


@torch.no_grad()
def _started(attention: Attention, missing: Collection[str], std: float) -> dict[str, Start]:
    inherited = PROJECTIONS if isinstance(attention, ProjectedAttention) else ()
    new = [name for name in missing if name.partition(".")[0] not in inherited]
    if not new:
        return {}
    present = {name: tensor.clone() for name, tensor in attention.state_dict().items() if name not in new}
    init: Any = getattr(attention, "init_extra_weights", None)
    if init is not None:
        init(std)
    attention.load_state_dict(present, strict=False)
    copies = attention.starts_from if isinstance(attention, FurtherWeights) else {}
    return {name: "from_local" if name.partition(".")[0] in copies else "new" for name in new}
