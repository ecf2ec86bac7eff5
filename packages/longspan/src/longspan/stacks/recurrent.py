"""The segment-recurrent stack: every layer also attends to its inputs from earlier segments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from longspan.attention import Tokens
from longspan.attention.base import LayerState
from longspan.attention.features.memory import keys_and_values, limit_keys, needed_states, new_memory
from longspan.attention.parts.tokens import in_order, inverse_order
from longspan.attention.support import supports
from longspan.errors import InputError
from longspan.ops.shards import Shards, ring
from longspan.settings import Range, Whole
from longspan.stacks.base import AuxOutput, Sizes, StackConfig, StackCost, StackOutput, StackReads, StackReturns
from longspan.stacks.block import Block, BlockState, total_loss
from longspan.stacks.compression import (
    LEARNED,
    Compression,
    CompressionLoss,
    Compressor,
    MemorySizes,
    MemoryStep,
    further_tokens,
)
from longspan.stacks.sequential import Sequential

if TYPE_CHECKING:
    from longspan.attention.parts.state import CompressedLayer, PastLayer


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(StackConfig):
    """Consecutive segments: layer n of segment τ computes `h_n = Block(h_{n-1}, [SG(m_{n-1}) ∘ h_{n-1}])` (Dai et al.
    2019, "Transformer-XL", arXiv 1901.02860, section 3.2).

    Letters: h_{n-1} the layer's input, whose T positions are queries, keys and values; m_{n-1} its memory, the last M
    inputs of this layer, which are keys and values only; SG no gradient; ∘ concatenation.

    With `compressed_tokens` it is the Compressive Transformer (Rae et al. 2019, arXiv 1911.05507): states that leave
    the memory are compressed, and distances count the positions of `[compressed ∘ memory ∘ segment]`.

    Attributes:
        memory_tokens: number of positions in the memory of every layer (code: `mem_len`); it can be
            changed after training.
        same_length: every query attends to the same number of keys: the last `memory_tokens`, including itself, instead
            of more for later positions of a segment. For mechanisms whose pattern depends on distance. Compressed
            states are additional and count as one each.
        compressed_tokens: number of compressed states of every layer (paper: n_cm); 0 for none. The following options
            are for these.
        rate: how many states that left the memory are compressed to one (paper: c); `None` is 3.
        compression: the compression: "mean" or "max" of each element, a learned "convolution", or a "dilated" one,
            which also uses newer states; `None` is "convolution", the paper's best.
        compression_loss: the loss that trains only a learned compression: "attention", the squared difference of the
            layer's attention by content before and after it; or "auto_encoding", that of the states and those decoded
            from the compressed one; `None` is "attention", the paper's best.
    """

    stack: ClassVar[str] = "recurrent"
    supports: ClassVar[frozenset[str]] = frozenset({"losses", "sharded"})
    bidirectional: ClassVar[bool] = False
    unused: ClassVar[Mapping[str, str]] = {
        "decoder_layers": "which continues one text, and has no encoder",
    }

    memory_tokens: Whole = 512
    same_length: bool = False
    compressed_tokens: Whole = 0
    rate: Annotated[int, Range(1, 4096)] | None = None
    compression: Compression | None = None
    compression_loss: CompressionLoss | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.same_length and not self.memory_tokens + self.compressed_tokens:
            raise InputError("same_length=True with memory_tokens=0 leaves no key to see; give a memory, or False")
        for name in ("rate", "compression", "compression_loss"):
            if not self.compressed_tokens and getattr(self, name) is not None:
                raise InputError(
                    f"{name}={getattr(self, name)!r} with compressed_tokens=0 compresses nothing; give "
                    "compressed_tokens, or leave it out"
                )
        if not self.compressed_tokens:
            return
        kind, sizes = self.compression or "convolution", self.memory_sizes
        if kind not in LEARNED and self.compression_loss is not None:
            raise InputError(
                f"compression_loss={self.compression_loss!r} with compression={kind!r} has nothing to teach, since "
                f"it has no weights; leave it out, or choose one of {', '.join(LEARNED)}"
            )
        if sizes.further > self.memory_tokens:
            raise InputError(
                f"memory_tokens={self.memory_tokens} is too few for compression='dilated' with rate={sizes.rate}, "
                f"which reads {sizes.further} states of the memory; give at least so many, or a lower rate"
            )

    @property
    def memory_sizes(self) -> MemorySizes:
        """The sizes of the memories, and the compression rate."""
        rate, kind = self.rate or 3, self.compression or "convolution"
        return MemorySizes(self.memory_tokens, self.compressed_tokens, rate, further_tokens(kind, rate))

    @property
    def learns_to_compress(self) -> bool:
        """Whether there is a compression with weights."""
        return self.compressed_tokens > 0 and (self.compression or "convolution") in LEARNED

    def reads(self) -> StackReads:
        return StackReads(unbounded=True)

    def returns(self) -> StackReturns:
        """With dropout, since the published code has it after its last layer, before the output layer."""
        return StackReturns(
            dropout=True, aux=self.learns_to_compress, keeps_memory=self.memory_tokens + self.compressed_tokens > 0
        )

    def costs(self, *, layers: int, tokens: int, width: int) -> StackCost:
        """The full memory: every layer stores it, concatenated with the segment, and its keys and values.

        A learned compression processes as many states as the segment has, and compares the attention to them.
        """
        memory = self.memory_tokens + self.compressed_tokens
        saved, work = 0, 2 * memory * width * (width + tokens)
        if self.learns_to_compress:
            made = tokens // self.memory_sizes.rate
            saved = (4 * tokens + 4 * made) * width
            work += tokens * width**2 * (4 if self.compression == "dilated" else 1)
            work += width * ((3 * tokens + 2 * made) * width + 2 * tokens * (tokens + made))
        return StackCost(
            readers=layers,
            saved_activations=(tokens + 3 * memory) * width + saved if memory else 0,
            states=memory * width,
            multiply_adds=work,
        )

    def sent(self, *, width: int, heads: int, processes: int, number: int, tokens: int = 0, passes: int = 1) -> int:
        """The memory, once (less for a narrower window), or the states of a whole segment to compress."""
        if self.compressed_tokens:
            return number * width * (processes - 1) * -(-tokens // processes)
        return ring(number * width * self.memory_tokens, processes)

    def build(self, block: Callable[[int], Block], layers: int, sizes: Sizes) -> Recurrent:
        if not sizes.causal:
            raise InputError(
                "stack 'recurrent' cannot encode: it processes a text segment by segment, whose later part an "
                "encoder would need; use LongspanForCausalLM, or another stack"
            )
        return Recurrent([block(layer) for layer in range(layers)], self, sizes.width)


class Recurrent(Sequential):
    """The module of `RecurrentConfig`: a list of its blocks, whose segment follows the memory in the states. Without
    states it is `Sequential`.

    In training, a state holds the inputs of its layer, so that the memory trains the projections of keys and values
    but gets no gradient itself; so it does with sequence parallelism, where each process has the whole memory before
    the rows. Otherwise it holds keys and values, if the mechanism supports this (`new_memory`), which gives the same
    result without projecting the memory again for every segment. If states are compressed, it holds both, since the
    inputs are compressed.

    Attributes:
        compressors: one for each block, if states are compressed.
    """

    def __init__(self, blocks: list[Block], config: RecurrentConfig, width: int) -> None:
        super().__init__(blocks)
        self.config = config
        for block in blocks if config.same_length else ():
            limit_keys(block.attention, config.memory_tokens + config.compressed_tokens)
        self.compressors = None
        if config.compressed_tokens:
            self.compressors = nn.ModuleList(self._compressor(block, width) for block in blocks)

    def _compressor(self, block: Block, width: int) -> Compressor:
        config, loss = self.config, self.config.compression_loss or "attention"
        if (
            config.learns_to_compress
            and loss == "attention"
            and not supports(block.attention.config, "same_length", causal=True)
        ):
            raise InputError(
                f"compression_loss='attention' does not go with attention {block.attention.config.mechanism!r}, whose "
                "queries do not gather by content and distance alone; set it to 'auto_encoding'"
            )
        return Compressor(width, config.memory_sizes.rate, config.compression or "convolution", loss)

    @property
    def keeps_state(self) -> bool:
        """True: for any mechanism, a state can hold its inputs."""
        return True

    def new_state(self, step: int) -> LayerState:
        from longspan.attention.parts.state import CompressedLayer, HiddenLayer

        block: Any = self[step]
        hidden = self.divided or torch.is_grad_enabled() or self.training
        state = None if hidden else new_memory(block.attention, self.config.memory_tokens)
        if self.compressors is not None:
            return CompressedLayer(has_keys=state is not None)
        return HiddenLayer(self.config.memory_tokens) if state is None else state

    def forward(
        self,
        hidden: Tensor,
        tokens: Tokens,
        *given: Tensor | None,
        layers: range | None = None,
        block_states: Sequence[BlockState] | None = None,
        output_hidden_states: bool = False,
    ) -> StackOutput:
        """As `Sequential.forward`; every layer attends to its memory too, to which its input is appended.

        In training, `aux` has the loss of a learned compression, summed over layers.

        Raises:
            InputError: training with a state of keys and values; a state of another kind of memory.
        """
        if block_states is None:
            return super().forward(hidden, tokens, *given, layers=layers, output_hidden_states=output_hidden_states)
        chosen = range(len(self)) if layers is None else layers
        if self.compressors is not None and len(chosen):
            states = {layer: block_states[layer] for layer in chosen}
            return self._compressed(hidden, tokens, given, states, output_hidden_states)
        from longspan.attention.parts.state import HiddenLayer

        all_hidden_states, losses = [hidden], []
        for layer in chosen:
            block: Any = self[layer]
            state = block_states[layer]
            memory: Any = state.own
            if self.training:
                losses.append(block.attention_loss(hidden, tokens))
            if isinstance(memory, HiddenLayer):
                past, shards, visible = 0 if memory.hidden is None else memory.hidden.shape[1], tokens.shards, tokens
                if shards is None:
                    visible = replace(tokens, mask=tokens.last_mask(past + hidden.shape[1]))
                written = block(hidden, visible, *given, memory=memory.hidden)
                memory.limit = needed_states(block.attention, self.config.memory_tokens)
                if shards is None:
                    memory.remember(hidden)
                else:
                    memory.remember(shards.last(hidden, memory.limit, "memory"), shards.total)
                hidden = written
            elif tokens.shards is not None:
                raise InputError(
                    "cache contains keys and values, and rows that are sharded between processes continue "
                    "hidden states; begin the text with a new cache"
                )
            elif hidden.requires_grad and memory.get_seq_length():
                raise InputError(
                    "cache contains keys and values, which have no gradients; begin the text with a new "
                    "cache, or continue under torch.no_grad()"
                )
            else:
                hidden = block(hidden, tokens, *given, layer_past=state)
            if output_hidden_states:
                all_hidden_states.append(hidden)
        states = tuple(all_hidden_states) if output_hidden_states else None
        return StackOutput(hidden, states, aux=AuxOutput(loss=total_loss(losses) if losses else None))

    def _compressed(
        self,
        hidden: Tensor,
        tokens: Tokens,
        given: tuple[Tensor | None, ...],
        states: Mapping[int, BlockState],
        output_hidden_states: bool,
    ) -> StackOutput:
        """Computes layers with these states over `[compressed ∘ memory ∘ segment]`, with the real tokens of each row
        contiguous for any padding; arguments as in `forward`. With sequence parallelism, without padding, each process
        compresses the states that leave the memory before whole rows.
        """
        memories = {layer: _compressed_layer(state.own) for layer, state in states.items()}
        shards = tokens.shards
        new, known = (hidden.shape[1], tokens) if shards is None else (shards.total, Tokens())
        step = MemoryStep.of(self.config.memory_sizes, next(iter(memories.values())), new, known)
        tokens, back = replace(tokens, mask=step.mask), None
        if step.order is not None:
            hidden, back = in_order(hidden, step.order), inverse_order(step.order)
        learns = self.training and torch.is_grad_enabled() and self.config.learns_to_compress
        all_hidden_states, losses = [hidden], []
        for layer, memory in memories.items():
            block: Any = self[layer]
            past = None
            if self.training:
                losses.append(block.attention_loss(hidden, tokens))
            if torch.is_grad_enabled() or shards is not None:
                memory.forget_keys()
            if memory.has_keys:
                past = memory.past()
                written = block(hidden, tokens, *given, layer_past=BlockState(past))
            else:
                written = block(hidden, tokens, *given, memory=memory.hidden)
            losses.append(self._remember(layer, memory, hidden.detach(), step, past, shards, learns=learns))
            hidden = written
            if output_hidden_states:
                all_hidden_states.append(hidden)
        return StackOutput(
            states=in_order(hidden, back),
            all_hidden_states=tuple(in_order(states_of_layer, back) for states_of_layer in all_hidden_states)
            if output_hidden_states
            else None,
            aux=AuxOutput(loss=total_loss(losses)),
        )

    def _remember(
        self,
        layer: int,
        memory: CompressedLayer,
        new: Tensor,
        step: MemoryStep,
        past: PastLayer | None,
        shards: Shards | None,
        *,
        learns: bool,
    ) -> Tensor | None:
        """Appends the input of a layer, `(B, T, E)` in the step's order, to its memory and compresses the states that
        leave it; `past` has the keys and values of all. Returns the loss of the compression in training.

        With sequence parallelism the input is a part, and every process stores the whole memory.
        """
        assert self.compressors is not None
        block: Any = self[layer]
        compressor: Any = self.compressors[layer]
        made, whole = None, new if shards is None else shards.with_halo(new, shards.total, shards.total)
        both = whole if memory.hidden is None else torch.cat([memory.hidden.to(new.dtype), whole], dim=1)
        loss = compressor.nothing() if learns else None
        if step.groups:
            old = step.oldest(both)
            with torch.set_grad_enabled(learns):
                made = compressor(old)
            if learns:
                loss = compressor.missed(
                    old[:, : step.groups * compressor.rate],
                    made,
                    new,
                    block.attention,
                    block.attention_norm if block.pre else None,
                    step.made_mask(),
                    None if step.mask is None else step.mask[:, step.held :],
                )
                if shards is not None and compressor.loss == "attention":  # a mean over the queries of this part
                    loss = shards.summed(loss * (new.shape[1] / shards.total), "compression")
            made = made.detach().to(both.dtype)
        tensors = {"hidden": step.joined(both, made)}
        if past is not None:
            assert past.keys is not None
            assert past.values is not None
            made_keys: Any = (None, None)
            if made is not None:
                made_keys = keys_and_values(block.attention, block.attention_norm(made) if block.pre else made)
            tensors["key"] = step.joined(past.keys, made_keys[0], dim=2)
            tensors["value"] = step.joined(past.values, made_keys[1], dim=2)
            memory.positions = past.positions
        if not isinstance(step.after, int):
            tensors["count"] = step.after
        memory.advance(step.new, **tensors)
        return loss


def _compressed_layer(state: Any) -> CompressedLayer:
    from longspan.attention.parts.state import CompressedLayer

    if not isinstance(state, CompressedLayer):
        raise InputError(
            f"cache holds a {type(state).__name__}, which has no compressed memory; begin the text with a new cache"
        )
    return state
