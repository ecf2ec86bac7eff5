"""Caches of transformers, filled with the states of the layers.

A cache is created without the model, so `states_in_cache` fills it with the states that the blocks create. In a static
cache (`cache_implementation="static"`) they have a fixed size (`attention.features.static_cache`), and one compiled
graph of a decoding step serves every length of the text: `buffered_step`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, StaticLayer

from longspan.attention.parts.state import GrowingLayer, SourceLayer, WindowLayer
from longspan.attention.support import supports
from longspan.errors import InputError
from longspan.stacks.block import BlockState
from longspan.stacks.sequential import Layers


def states_in_cache(cache: Cache, stack: Layers, *, source: bool) -> list[BlockState]:
    """Returns the state of every block in a cache of transformers, which stores them from now on; a block that runs
    several times has several states.

    A cache is created without the model. Its empty layers are replaced by the blocks' states, in a static cache with as
    many places as the cache has; other layers stay.

    Raises:
        InputError: not a cache, one for another kind of model, or one that moves its layers to the CPU.
    """
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    if not isinstance(cache, EncoderDecoderCache if source else Cache) or (own is not cache) != source:
        wanted = "EncoderDecoderCache" if source else "DynamicCache"
        raise InputError(f"cache is a {type(cache).__name__}; give a transformers {wanted}")
    if own.offloading:
        raise InputError("cache is offloaded, which Longspan's layers do not follow; leave offloading out")
    layers: list[Any] = own.layers  # no `cast`, after which a compiled graph loses mutations
    count = len(stack.applied)
    for index in range(count):
        layer = layers[index] if index < len(layers) else None
        if layer is None or (type(layer) is DynamicLayer and not layer.is_initialized):
            layers[index : index + 1] = [stack.new_state(index)]
        elif type(layer) is StaticLayer and (made := fixed_state(stack, index, layer)) is not None:
            layers[index] = made
    if not isinstance(cache, EncoderDecoderCache):
        return [BlockState(layer) for layer in layers[:count]]
    return [BlockState(*pair) for pair in zip(layers, _source_layers(cache, stack.applied), strict=False)]


def _source_layers(cache: EncoderDecoderCache, blocks: list[Any]) -> list[CacheLayerMixin]:
    """Returns the layers for the source, one for each block: a block that runs repeatedly uses the same."""
    layers: list[Any] = cache.cross_attention_cache.layers
    if not all(isinstance(layer, SourceLayer) for layer in layers) or len(layers) < len(blocks):
        cache.cross_attention_cache = DynamicCache()
        layers = cache.cross_attention_cache.layers
        static = cache.self_attention_cache.is_compileable
        made = {id(block): SourceLayer(static=static) for block in blocks}
        layers.extend(made[id(block)] for block in blocks)
    return layers


class BufferedStep(NamedTuple):
    """One new token in each row with states of a fixed size, which have S places."""

    mask: Tensor
    """`(B, S)` bool, as in `Tokens(in_buffer=True)`."""
    place: Tensor
    """`(1, 1)` int64, the position of the token in the input, from 0."""


def buffered_step(
    states: list[BlockState] | None, written: Tensor | None, mask: Tensor | None, mask_name: str
) -> BufferedStep | None:
    """Returns the inputs of a step that is compiled for every length, for ids `(B, 1)` or embeddings `(B, 1, E)`, if
    all states have a fixed size; `None` for any other call.

    Raises:
        InputError: the mask is longer than the cache. A full cache fails in the graph.
    """
    if not torch.compiler.is_compiling() or not states or written is None or written.shape[1] != 1:
        return None
    from longspan.attention.features.static_cache import FixedLayer, text_at_end

    if not all(isinstance(state.own, FixedLayer) for state in states):
        return None
    layer: Any = states[0].own
    # A constant message: in the graph of a second size the number of places is a symbol.
    full = "cache is full; give a StaticCache of a larger max_cache_len"
    torch._assert_async(layer.cumulative_length < layer.tokens, full)
    before, rows = layer.cumulative_length.clone(), written.shape[0]  # a clone, since the layer increments it in place
    if mask is not None:
        if mask.ndim != 2 or mask.shape[0] != rows or mask.shape[1] > layer.tokens:
            raise InputError(
                f"{mask_name} has shape {tuple(mask.shape)}; give one for each token, or for each that the cache has "
                f"room for, ({rows}, {layer.tokens})"
            )
        mask = functional.pad(mask.to(device=written.device, dtype=torch.bool), (0, layer.tokens - mask.shape[1]))
    return BufferedStep(text_at_end(before, mask, layer.tokens, rows), before.view(1, 1))


def fixed_state(stack: Layers, step: int, layer: StaticLayer) -> CacheLayerMixin | None:
    """Returns the state of one of the `applied` blocks, with as many places as an empty layer of a static cache; `None`
    if the layer is not empty, or the block does not support a state of a fixed size.
    """
    compiles = supports(stack.applied[step].attention.config, "static_cache", causal=True)
    if not compiles or (layer.is_initialized and int(layer.get_seq_length())):
        return None
    made = stack.new_state(step)
    if type(made) not in (GrowingLayer, WindowLayer):
        return None
    from longspan.attention.features.static_cache import FixedLayer

    return FixedLayer.like(made, layer.max_cache_len)


def room_of(cache: Cache | None) -> int | None:
    """Returns the number of places of a static cache; `None` for others."""
    if not isinstance(cache, Cache) or not cache.is_compileable:
        return None
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    return int(own.get_max_length())


def tokens_before(cache: Cache | None) -> int:
    """Returns the number of tokens in a cache; 1 for any number in the graph of a step with a static cache, which never
    processes the first token.
    """
    if cache is None:
        return 0
    if torch.compiler.is_compiling() and cache.is_compileable:
        return 1
    return int(cache.get_seq_length())
