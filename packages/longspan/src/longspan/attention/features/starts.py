"""Warm starts: initial values of weights that a published checkpoint, or another mechanism, lacks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import torch

from longspan.attention.base import Attention, ProjectedAttention

Start = Literal["from_local", "new"]
"""Initial value of a weight that a source lacks: a copy of another of the layer, or the mechanism's initialisation."""

PROJECTIONS = ("query", "key", "value", "output")
"""Parts of a `ProjectedAttention` that every source has."""


class FurtherWeights(Attention):
    """Base class of modules with linear parts that start as copies of others, or with weights that depend on what a
    source lacks.
    """

    @property
    def starts_from(self) -> Mapping[str, str]:
        """Returns linear part with weights of its own → the part that initialises it."""
        return {}

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Initialises the weights that are not the shared projections, from the configuration.

        Called at construction, and by a model after it has initialised or loaded those projections. Weights that
        transformers marked as loaded are not changed. By default, copies as in `starts_from`.
        """
        for name, source in self.starts_from.items():
            for kind in ("weight", "bias"):
                parameter = getattr(getattr(self, name), kind)
                if parameter is not None and not getattr(parameter, "_is_hf_initialized", False):
                    parameter.copy_(getattr(getattr(self, source), kind))

    def warm_start(self, missing: Collection[str], std: float = 0.02) -> dict[str, Start]:
        """Implements the function `warm_start` for this module; override to initialise some of these
        weights differently.
        """
        return _started(self, missing, std)


def warm_start(attention: Attention, missing: Collection[str], std: float = 0.02) -> dict[str, Start]:
    """Initialises the weights in `missing`, which a source lacks, with the least change of the outputs.

    Args:
        attention: the mechanism; one with random weights has a method `init_extra_weights(std)`.
        missing: names in its `state_dict`.
        std: standard deviation of new weights.

    Returns:
        The initialisation of each of them, without those that no source may lack, which are not changed.
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
