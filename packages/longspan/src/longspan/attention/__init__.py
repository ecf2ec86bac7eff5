"""Attention mechanisms, one per file: a frozen configuration and an `nn.Module`.

`MECHANISMS` lists them by name, `attention_config` builds a configuration from a name or plain data, and `Tokens` holds
the properties of the positions:

    attention = MECHANISMS["poolingformer"]().build(width=768, heads=12)
    attention(hidden, Tokens(mask=real, is_global=globals))

with hidden `(B, T, E)`, real and globals `(B, T)` bool gives `(B, T, E)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from longspan.attention.base import Attention, ProjectedAttention
from longspan.attention.config import AttentionConfig
from longspan.attention.parts.tokens import Tokens
from longspan.imports import Table, late_names
from longspan.settings import from_spec

if TYPE_CHECKING:
    from longspan.attention.adaptive_span import AdaptiveSpanConfig
    from longspan.attention.bigbird import BigBirdConfig
    from longspan.attention.blockwise import BlockwiseConfig
    from longspan.attention.cluster import ClusterConfig
    from longspan.attention.compressed import CompressedConfig
    from longspan.attention.etc import EtcConfig
    from longspan.attention.explicit_sparse import ExplicitSparseConfig
    from longspan.attention.full import FullConfig
    from longspan.attention.fusion import FusionConfig
    from longspan.attention.linear import LinearConfig
    from longspan.attention.linformer import LinformerConfig
    from longspan.attention.longformer import LongformerConfig
    from longspan.attention.parts.relative import RelativePositions, RelativeTables
    from longspan.attention.patterned import PatternConfig
    from longspan.attention.performer import PerformerConfig
    from longspan.attention.poolingformer import PoolingformerConfig
    from longspan.attention.reformer import ReformerConfig
    from longspan.attention.routing import RoutingConfig
    from longspan.attention.sinkhorn import SinkhornConfig
    from longspan.attention.sparse import SparseConfig
    from longspan.attention.synthesizer import SynthesizerConfig

__all__ = [
    "MECHANISMS",
    "AdaptiveSpanConfig",
    "Attention",
    "AttentionConfig",
    "BigBirdConfig",
    "BlockwiseConfig",
    "ClusterConfig",
    "CompressedConfig",
    "EtcConfig",
    "ExplicitSparseConfig",
    "FullConfig",
    "FusionConfig",
    "LinearConfig",
    "LinformerConfig",
    "LongformerConfig",
    "PatternConfig",
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

_PLACES = {
    "full": "longspan.attention.full:FullConfig",
    "longformer": "longspan.attention.longformer:LongformerConfig",
    "adaptive_span": "longspan.attention.adaptive_span:AdaptiveSpanConfig",
    "poolingformer": "longspan.attention.poolingformer:PoolingformerConfig",
    "fusion": "longspan.attention.fusion:FusionConfig",
    "bigbird": "longspan.attention.bigbird:BigBirdConfig",
    "etc": "longspan.attention.etc:EtcConfig",
    "sparse": "longspan.attention.sparse:SparseConfig",
    "blockwise": "longspan.attention.blockwise:BlockwiseConfig",
    "explicit_sparse": "longspan.attention.explicit_sparse:ExplicitSparseConfig",
    "reformer": "longspan.attention.reformer:ReformerConfig",
    "sinkhorn": "longspan.attention.sinkhorn:SinkhornConfig",
    "routing": "longspan.attention.routing:RoutingConfig",
    "cluster": "longspan.attention.cluster:ClusterConfig",
    "linear": "longspan.attention.linear:LinearConfig",
    "performer": "longspan.attention.performer:PerformerConfig",
    "linformer": "longspan.attention.linformer:LinformerConfig",
    "compressed": "longspan.attention.compressed:CompressedConfig",
    "synthesizer": "longspan.attention.synthesizer:SynthesizerConfig",
}
MECHANISMS: Table[type[AttentionConfig]] = Table("mechanisms", _PLACES)
"""Name → configuration, whose `build(width, heads)` creates the module; each is imported on first access."""

_OTHERS = (
    "longspan.attention.parts.relative:RelativePositions",
    "longspan.attention.parts.relative:RelativeTables",
    "longspan.attention.patterned:PatternConfig",
)
__getattr__ = late_names(__name__, (*_PLACES.values(), *_OTHERS))


def attention_config(spec: str | Mapping[str, Any] | AttentionConfig, path: str = "attention") -> AttentionConfig:
    """Converts a mechanism's name, plain data with its name under `"mechanism"`, or a configuration to a configuration.

    `path` is the location of the spec, for error messages.

    Raises:
        InputError: an unknown mechanism or option, a value out of range, or a value of another type.
    """
    return spec if isinstance(spec, AttentionConfig) else from_spec(MECHANISMS, "mechanism", spec, path)
