"""Attention mechanisms, one per file: a frozen configuration and an `nn.Module`.

`MECHANISMS` lists them by name, `attention_config` reads a name or plain data, and `Tokens` says what is known of each
position:

    attention = MECHANISMS["poolingformer"]().build(width=768, heads=12)
    attention(hidden, Tokens(mask=real, is_global=globals))

with hidden `(B, T, E)`, real and globals `(B, T)` bool gives `(B, T, E)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from longspan.attention.base import Attention, AttentionConfig
from longspan.attention.bigbird import BigBirdConfig
from longspan.attention.full import FullConfig
from longspan.attention.fusion import FusionConfig
from longspan.attention.longformer import LongformerConfig
from longspan.attention.parts.projected import ProjectedAttention
from longspan.attention.parts.relative import RelativePositions, RelativeTables
from longspan.attention.parts.tokens import Tokens
from longspan.attention.poolingformer import PoolingformerConfig
from longspan.errors import InputError
from longspan.plugins import find

__all__ = [
    "MECHANISMS",
    "Attention",
    "AttentionConfig",
    "BigBirdConfig",
    "FullConfig",
    "FusionConfig",
    "LongformerConfig",
    "PoolingformerConfig",
    "ProjectedAttention",
    "RelativePositions",
    "RelativeTables",
    "Tokens",
    "attention_config",
]

MECHANISMS: dict[str, type[AttentionConfig]] = {
    "full": FullConfig,
    "longformer": LongformerConfig,
    "poolingformer": PoolingformerConfig,
    "fusion": FusionConfig,
    "bigbird": BigBirdConfig,
}
"""Name → configuration, whose `build(width, heads)` makes the module."""


def attention_config(spec: str | Mapping[str, Any] | AttentionConfig) -> AttentionConfig:
    """Turn a mechanism's name, plain data with its name under `"mechanism"`, or a configuration into a configuration.

    Raises:
        InputError: an unknown mechanism or option, a value out of range, or something else altogether.
    """
    if isinstance(spec, AttentionConfig):
        return spec
    if isinstance(spec, str):
        spec = {"mechanism": spec}
    if not isinstance(spec, Mapping) or not isinstance(spec.get("mechanism"), str):
        raise InputError(
            f"attention={spec!r} is no mechanism; give a name such as 'longformer', or "
            "{'mechanism': 'longformer', …} with its options"
        )
    name = spec["mechanism"]
    found = find(MECHANISMS, name)
    if found is None:
        close = get_close_matches(name, MECHANISMS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(MECHANISMS)}"
        raise InputError(f"attention mechanism {name!r} is unknown; {hint}")
    return found.from_dict(dict(spec))
