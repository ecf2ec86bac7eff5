"""Attention mechanisms, one per file: a frozen configuration and an `nn.Module`.

`MECHANISMS` lists them by name, `attention_config` reads a name or plain data, and `Tokens` says what is known of each
position:

    attention = MECHANISMS["poolingformer"]().build(width=768, heads=12)
    attention(hidden, Tokens(mask=real, is_global=globals))

with hidden `(B, T, E)`, real and globals `(B, T)` bool gives `(B, T, E)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longspan.attention.adaptive_span import AdaptiveSpanConfig
from longspan.attention.base import Attention, ProjectedAttention
from longspan.attention.bigbird import BigBirdConfig
from longspan.attention.blockwise import BlockwiseConfig
from longspan.attention.cluster import ClusterConfig
from longspan.attention.compressed import CompressedConfig
from longspan.attention.config import AttentionConfig
from longspan.attention.explicit_sparse import ExplicitSparseConfig
from longspan.attention.full import FullConfig
from longspan.attention.fusion import FusionConfig
from longspan.attention.linear import LinearConfig
from longspan.attention.linformer import LinformerConfig
from longspan.attention.longformer import LongformerConfig
from longspan.attention.parts.relative import RelativePositions, RelativeTables
from longspan.attention.parts.tokens import Tokens
from longspan.attention.performer import PerformerConfig
from longspan.attention.poolingformer import PoolingformerConfig
from longspan.attention.reformer import ReformerConfig
from longspan.attention.routing import RoutingConfig
from longspan.attention.sinkhorn import SinkhornConfig
from longspan.attention.sparse import SparseConfig
from longspan.attention.synthesizer import SynthesizerConfig
from longspan.settings import from_spec

__all__ = [
    "MECHANISMS",
    "AdaptiveSpanConfig",
    "Attention",
    "AttentionConfig",
    "BigBirdConfig",
    "BlockwiseConfig",
    "ClusterConfig",
    "CompressedConfig",
    "ExplicitSparseConfig",
    "FullConfig",
    "FusionConfig",
    "LinearConfig",
    "LinformerConfig",
    "LongformerConfig",
    "PerformerConfig",
    "PoolingformerConfig",
    "ProjectedAttention",
    "ReformerConfig",
    "RelativePositions",
    "RelativeTables",
    "RoutingConfig",
    "SinkhornConfig",
    "SparseConfig",
    "SynthesizerConfig",
    "Tokens",
    "attention_config",
]

MECHANISMS: dict[str, type[AttentionConfig]] = {
    "full": FullConfig,
    "longformer": LongformerConfig,
    "adaptive_span": AdaptiveSpanConfig,
    "poolingformer": PoolingformerConfig,
    "fusion": FusionConfig,
    "bigbird": BigBirdConfig,
    "sparse": SparseConfig,
    "blockwise": BlockwiseConfig,
    "explicit_sparse": ExplicitSparseConfig,
    "reformer": ReformerConfig,
    "sinkhorn": SinkhornConfig,
    "routing": RoutingConfig,
    "cluster": ClusterConfig,
    "linear": LinearConfig,
    "performer": PerformerConfig,
    "linformer": LinformerConfig,
    "compressed": CompressedConfig,
    "synthesizer": SynthesizerConfig,
}
"""Name → configuration, whose `build(width, heads)` makes the module."""


def attention_config(spec: str | Mapping[str, Any] | AttentionConfig, path: str = "attention") -> AttentionConfig:
    """Turn a mechanism's name, plain data with its name under `"mechanism"`, or a configuration into a configuration.

    `path` is where the spec stands, for error messages.

    Raises:
        InputError: an unknown mechanism or option, a value out of range, or something else altogether.
    """
    return spec if isinstance(spec, AttentionConfig) else from_spec(MECHANISMS, "mechanism", spec, path)
