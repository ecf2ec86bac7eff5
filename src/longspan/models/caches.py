"""transformers' caches and the layers in them: every mechanism keeps its own kind of state."""

from __future__ import annotations

from typing import Any

from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from longspan.attention.parts.state import SourceLayer
from longspan.errors import InputError
from longspan.stacks.base import Layers
from longspan.stacks.block import Kept


def kept_states(cache: Cache, blocks: Layers, *, source: bool) -> list[Kept]:
    """The state of every block in a cache of transformers, which holds them from now on.

    A cache is made without knowing the model. Layers of it that are still empty give way to what each block keeps,
    except where the cache was asked to be of a special kind, such as preallocated.

    Raises:
        InputError: no cache at all, one for another kind of model, or one that moves its layers to the CPU.
    """
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    if not isinstance(cache, EncoderDecoderCache if source else Cache) or (own is not cache) != source:
        wanted = "EncoderDecoderCache" if source else "DynamicCache"
        raise InputError(f"past_key_values is a {type(cache).__name__}; give a transformers {wanted}")
    if own.offloading:
        raise InputError("past_key_values is offloaded, which Longspan's layers do not follow; leave offloading out")
    layers: list[Any] = own.layers  # no `cast`, behind which a compiled graph forgets what changes
    count = len(blocks)
    for index in range(count):
        layer = layers[index] if index < len(layers) else None
        if layer is None or (type(layer) is DynamicLayer and not layer.is_initialized):
            layers[index : index + 1] = [blocks.new_state(index)]
    if not isinstance(cache, EncoderDecoderCache):
        return [Kept(layer) for layer in layers[:count]]
    return [Kept(*pair) for pair in zip(layers, _source_layers(cache, count), strict=False)]


def _source_layers(cache: EncoderDecoderCache, count: int) -> list[CacheLayerMixin]:
    """The `count` layers that keep the source."""
    layers: list[Any] = cache.cross_attention_cache.layers
    if not all(isinstance(layer, SourceLayer) for layer in layers) or len(layers) < count:
        cache.cross_attention_cache = DynamicCache()
        layers = cache.cross_attention_cache.layers
        layers.extend(SourceLayer() for _ in range(count))
    return layers
