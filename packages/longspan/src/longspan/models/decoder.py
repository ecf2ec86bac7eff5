"""The decoder: causal attention over the output, attention over the source where there is one, in steps or at once.

What it keeps between steps lies in transformers' caches, whose layers every mechanism makes for itself; what it keeps
between the segments of a text that is read batch by batch is `StreamMemory`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, StaticLayer

from longspan.attention import Tokens
from longspan.attention.parts.state import SourceLayer
from longspan.errors import InputError
from longspan.models.configuration import LongspanConfig
from longspan.models.inputs import check_packed
from longspan.models.network import Network, bool_mask, check_mask
from longspan.models.outputs import DecoderOutput
from longspan.models.pretrained import CheckpointedBlock
from longspan.models.static_cache import buffered_step, fixed_state, room_of
from longspan.models.transformers_names import cache_field
from longspan.patterns import Prefix
from longspan.stacks import stack_config
from longspan.stacks.block import BlockState
from longspan.stacks.sequential import Layers

PLAIN = (bool, int, float, str, type(None))
SKIPPED = ("dtype", "device")
"""What a layer of a cache says of its tensors, which say it themselves."""


class Decoder(Network):
    """The blocks that write: those of `decoder_layers` beside an encoder, or the encoder's own in their causal form.

    Args:
        config: of the model.
        source: whether there is an encoder whose states are read.
    """

    config: LongspanConfig
    main_input_name = "input_ids"
    block = CheckpointedBlock

    def __init__(self, config: LongspanConfig, *, source: bool) -> None:
        super().__init__(config, decoder=source, causal=not source)
        self.has_source = source
        self.mask_name = "decoder_attention_mask" if source else "attention_mask"

    def forward(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        prefix: Prefix | None = None,
        documents: Tensor | None = None,
    ) -> DecoderOutput:
        """Decode T output tokens that follow those in the cache.

        Args:
            input_ids: `(B·beams, T)`; `beams` consecutive rows read the same source.
            attention_mask: `(B·beams, past + T)` bool or int over output tokens; `None` means all real.
            cache: cache of earlier steps; changed in place.
            use_cache: make a cache when none is passed; `None` means as configured, where every layer keeps a state.
            output_hidden_states: also return the states of every layer; `None` means as configured.
            inputs_embeds: `(B·beams, T, E)` instead of `input_ids`.
            position_ids: `(1 or B·beams, T)` places of the tokens, counted from 0.
            source: `(B, S, E)` encoder states.
            source_mask: `(B, S)` bool or int, 1/True = real.
            prefix: what of the input is read both ways; `None` for nothing.
            documents: `(B, T)` int64, several documents in one row, as in `Tokens`; these go without a cache.

        Raises:
            InputError: documents with a cache, or in a stack that does not read them apart.
        """
        config = self.config
        if documents is not None:
            check_packed(config, self.stack)
            if use_cache or cache is not None:
                raise InputError(
                    "use_cache=True was given with several documents in one row, which no step can continue; leave it "
                    "out, or give each document a row of its own"
                )
            use_cache, position_ids = False, None
        given = input_ids if inputs_embeds is None else inputs_embeds
        shards, places = None, position_ids
        if self.sequence_group is not None and given is not None:
            from longspan.models.divided_rows import check_all_real, part_of_text

            whole = {"prefix": prefix, "seq_idx": documents}
            if not self.returns.keeps_memory:
                whole |= {"cache": cache, "use_cache": use_cache or None}
                use_cache = False
            elif cache is not None or (config.use_cache if use_cache is None else use_cache):
                attention_mask = check_all_real(attention_mask, given, self.sequence_group)
            shards, position_ids = part_of_text(given, self.sequence_group, attention_mask, position_ids, **whole)
            places = None
        wanted = config.use_cache and self.keeps_state if use_cache is None else use_cache
        if cache is None and wanted:
            cache = DynamicCache()
            if self.has_source:
                cache = EncoderDecoderCache(cache, DynamicCache())
        block_states = None
        if cache is not None:
            block_states = states_in_cache(cache, self.layers, source=self.has_source)
        step = buffered_step(block_states, given, attention_mask, self.mask_name)
        if step is not None:
            first, mask = 0, step.mask
            rows = self._rows(mask, mask.shape[1] - 1, position_ids, step.place)
        else:
            first = 0 if cache is None else int(cache.get_seq_length())
            mask = self._mask(attention_mask, first, given, room_of(cache))
            rows = None if documents is not None else self._rows(mask, first, position_ids)
        first = first if shards is None else first + shards.first
        hidden = self.embeddings(input_ids, None, inputs_embeds, first, rows, documents=documents)
        if source is not None:
            source_mask = _source_mask(hidden, source, source_mask, check=first == 0 and step is None)
        keep = bool(config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        mask = mask if documents is None else documents >= 0
        tokens = Tokens(
            mask=mask, places=places, prefix=prefix, documents=documents, shards=shards, in_buffer=step is not None
        )
        decoded = self.run(hidden, tokens, source, source_mask, block_states=block_states, output_hidden_states=keep)
        return DecoderOutput(
            last_hidden_state=decoded.states,  # pyright: ignore[reportArgumentType]
            **cache_field(cache),
            hidden_states=decoded.all_hidden_states,
            ponder_times=decoded.aux.ponder_times,
            stack_loss=decoded.aux.loss if self.training else None,
        )

    def source_of(self, encoded: Any, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What this decoder reads of the output of its encoder, and the mask of it: the states of tokens with their
        `mask` `(B, S)`, or what the stack gives instead.

        Raises:
            InputError: the stack gives something instead, and it is not there.
        """
        compressed = self.config.compress_after is not None
        if not (self.returns.source or compressed):
            return encoded[0], mask
        if getattr(encoded, "source_states", None) is None:
            what = (
                "beside compress_after reads memory"
                if compressed
                else f"in the stack {self.stack.stack!r} reads its spans too"
            )
            raise InputError(
                f"encoder_outputs holds states of tokens alone, and a decoder {what}; give what get_encoder() returned"
            )
        return encoded.source_states, encoded.source_mask

    @property
    def keeps_state(self) -> bool:
        """Whether every layer has a state that decoding step by step continues."""
        return self.layers.keeps_state

    def _mask(self, mask: Tensor | None, first: int, written: Tensor | None, room: int | None) -> Tensor | None:
        """`(B, first + T)` bool, or `None` where all tokens are real; what is given may cover as many tokens as a
        static cache has `room` for."""
        if mask is None or written is None:
            return None
        total = first + written.shape[1]
        if mask.ndim == 2 and mask.shape[1] == room:
            mask = mask[:, :total]
        if tuple(mask.shape) != (written.shape[0], total):
            covers = f"covers {mask.shape[1]} of {total} tokens" if mask.ndim == 2 else f"has shape {tuple(mask.shape)}"
            raise InputError(f"{self.mask_name} {covers}; give one for each, ({written.shape[0]}, {total})")
        if first == 0:
            check_mask(self.mask_name, mask)
        return mask.to(device=written.device, dtype=torch.bool)

    def _rows(
        self, mask: Tensor | None, first: int, position_ids: Tensor | None, place: Tensor | None = None
    ) -> Tensor | None:
        """Rows of the position table, `None` for those of the places in the input.

        Beside an encoder, the place in the output counts, padding included, as in BART: the `place` `(1, 1)` of a
        buffered step. A model that only decodes counts real tokens, so that padding on the left changes nothing.
        """
        if self.embeddings.position is None:
            return None
        if self.has_source:
            position_ids = place
        elif position_ids is None and mask is not None:
            position_ids = (mask.cumsum(1) - 1).clamp(min=0)[:, first:]
        return None if position_ids is None else position_ids + self.embeddings.offset


def _source_mask(hidden: Tensor, source: Tensor, mask: Tensor | None, *, check: bool) -> Tensor | None:
    """`(B, S)` bool, after making sure that rows and source fit together."""
    rows, documents = hidden.shape[0], source.shape[0]
    if rows != documents and (documents == 0 or rows % documents):
        raise InputError(
            f"decoder_input_ids has {rows} rows but the encoder states have {documents}; give a multiple of them"
        )
    return bool_mask("attention_mask", mask, source, of="source", check=check)


def states_in_cache(cache: Cache, stack: Layers, *, source: bool) -> list[BlockState]:
    """The state of every block in a cache of transformers, which holds them from now on; a block that runs several
    times is there as often.

    A cache is made without knowing the model. Layers of it that are still empty give way to what each block keeps, in a
    static cache with room for as many tokens as it was made for; layers of another kind stay.

    Raises:
        InputError: no cache at all, one for another kind of model, or one that moves its layers to the CPU.
    """
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    if not isinstance(cache, EncoderDecoderCache if source else Cache) or (own is not cache) != source:
        wanted = "EncoderDecoderCache" if source else "DynamicCache"
        raise InputError(f"cache is a {type(cache).__name__}; give a transformers {wanted}")
    if own.offloading:
        raise InputError("cache is offloaded, which Longspan's layers do not follow; leave offloading out")
    layers: list[Any] = own.layers  # no `cast`, behind which a compiled graph forgets what changes
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
    """The layers that keep the source, one for each block: what a block keeps of it is the same whenever it runs."""
    layers: list[Any] = cache.cross_attention_cache.layers
    if not all(isinstance(layer, SourceLayer) for layer in layers) or len(layers) < len(blocks):
        cache.cross_attention_cache = DynamicCache()
        layers = cache.cross_attention_cache.layers
        static = cache.self_attention_cache.is_compileable
        made = {id(block): SourceLayer(static=static) for block in blocks}
        layers.extend(made[id(block)] for block in blocks)
    return layers


class StreamMemory:
    """What every layer keeps of texts that are read batch by batch, each under the number of its first column.

    A memory is transformers' `Cache`, which a stack that keeps a memory fills and shortens by itself. Every tensor in
    it is cut off from the graph after each batch, so that back-propagation ends at the segment.

    Args:
        config: of the model; where its stack carries nothing, segments are read one by one.
    """

    def __init__(self, config: Any) -> None:
        self.is_used = stack_config(config.stack).returns().keeps_memory
        self.caches: dict[int, Cache] = {}
        self.next: dict[int, int] = {}
        self.read: set[int] = set()
        """The columns that were read since a memory was loaded: those that are kept from then on."""

    def before(self, segment: int, column: int) -> dict[str, Any]:
        """What the model gets beside the tokens of a segment; the first segment forgets everything.

        Raises:
            InputError: segments come in another order than they stand in the text.
        """
        if segment and self.next.get(column, 0) != segment:
            raise InputError(
                f"segment {segment} of column {column} came where {self.next.get(column, 0)} was next; segments of a "
                "stream must come in their order, so use no sampler of another order"
            )
        if not self.is_used:
            return {}
        return {"cache": self.caches.get(column) if segment else None, "use_cache": True}

    def after(self, segment: int, column: int, cache: Cache | None) -> None:
        """Keep what the model has returned for a segment, without its graph."""
        self.next[column] = segment + 1
        self.read.add(column)
        if cache is not None and self.is_used:
            for layer in cache.layers:
                _detach(layer)
            self.caches[column] = cache

    def reset(self) -> None:
        """Forget all streams."""
        self.caches, self.next, self.read = {}, {}, set()

    def tensors(self) -> dict[str, Tensor]:
        """All of it as tensors by name; plain values become tensors without dimensions.

        Of a memory that was loaded, with columns that other processes read now, only what is read here.
        """
        columns = self.read or set(self.next)
        tensors = {f"{column}.next": torch.tensor(self.next[column]) for column in sorted(columns)}
        for column in sorted(columns & set(self.caches)):
            for number, layer in enumerate(self.caches[column].layers):
                tensors |= {f"{column}.{number}.{name}": value for name, value in _values(layer)}
        return tensors

    def load(self, tensors: dict[str, Tensor], model: Any) -> None:
        """Go on with what `tensors` gave, in layers as `model` makes them.

        Raises:
            InputError: they belong to another model.
        """
        self.reset()
        for key, value in tensors.items():
            column, _, rest = key.partition(".")
            if rest == "next":
                self.next[int(column)] = int(value)
                continue
            cache = self.caches.setdefault(int(column), DynamicCache())
            if not cache.layers:
                states_in_cache(cache, model.decoder.layers, source=False)
            number, _, name = rest.partition(".")
            if int(number) >= len(cache.layers):
                raise InputError("the memory in the checkpoint belongs to a model with more layers; resume that one")
            # A copy, since a tensor of a file begins anywhere in memory, which on some processors changes the rounding.
            _set(cache.layers[int(number)], name, value.to(model.device, copy=True))


def _values(layer: Any) -> Iterator[tuple[str, Tensor]]:
    """What a cache layer holds, by attribute; entries of a dictionary behind a dot."""
    for name, value in vars(layer).items():
        entries = {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, dict) else {name: value}
        for key, entry in entries.items():
            if isinstance(entry, Tensor):
                yield key, entry.contiguous()
            elif isinstance(entry, bool | int | float):
                yield key, torch.tensor(entry)
            elif name not in SKIPPED and not isinstance(entry, PLAIN):
                raise TypeError(f"{type(layer).__name__}.{key} is a {type(entry).__name__}, which no file can hold")


def _set(layer: Any, name: str, value: Tensor) -> None:
    name, _, key = name.partition(".")
    if key:
        getattr(layer, name)[key] = value
        return
    before = getattr(layer, name, None)
    setattr(layer, name, type(before)(value.item()) if isinstance(before, bool | int | float) else value)
    if not isinstance(before, bool | int | float):
        layer.dtype, layer.device = value.dtype, value.device


def _detach(layer: Any) -> None:
    """Cut every tensor that a cache layer holds off from the graph."""
    for name, value in vars(layer).items():
        if isinstance(value, Tensor):
            setattr(layer, name, value.detach())
        elif isinstance(value, dict):
            value.update({key: entry.detach() for key, entry in value.items() if isinstance(entry, Tensor)})
