"""Compressed memory: states that leave the memory of a layer are compressed to fewer, to which it still attends.

Rae et al. 2019, "Compressive Transformers for Long-Range Sequence Modelling", arXiv 1911.05507, sections 3.1 and 3.2.
Letters: M the memory's positions, C the compressed ones, c the rate, f_c the compression of c states to one.

The same rule holds for segments, rows of different lengths and single tokens: states that are further back than M wait
until there are c of them, which are then compressed to one; until then the layer attends to them. So the number of
states of a layer depends on how many real tokens a row has had: `⌊max(n - M, 0) / c⌋` groups have been compressed, of
which the last C are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from longspan.attention.base import projected, without_weight_gradient
from longspan.attention.features.memory import content_context
from longspan.attention.parts.sinusoidal_relative import OffsetAttention
from longspan.attention.parts.tokens import Tokens, in_order, real_first

if TYPE_CHECKING:
    from longspan.attention.parts.state import CompressedLayer

Compression = Literal["mean", "max", "convolution", "dilated"]
CompressionLoss = Literal["attention", "auto_encoding"]
LEARNED = ("convolution", "dilated")
"""The compressions that have weights, and so a loss."""


def further_tokens(compression: Compression, rate: int) -> int:
    """Returns how many states after the c compressed ones are needed too: those of the memory, which are newer."""
    return rate * (rate - 1) if compression == "dilated" else 0


@dataclass(frozen=True)
class MemorySizes:
    """The sizes of a layer's memories.

    Attributes:
        memory: M, uncompressed states.
        compressed: C, states each compressed from `rate` ones.
        rate: c.
        further: `further_tokens`.
    """

    memory: int
    compressed: int
    rate: int
    further: int

    @property
    def most(self) -> int:
        """The most states of a layer."""
        return self.memory + self.compressed + self.rate - 1

    @property
    def covered(self) -> int:
        """The number of tokens of a text that full memories cover."""
        return self.memory + self.compressed * self.rate


@dataclass(frozen=True, eq=False)
class MemoryStep:
    """The states that enter and leave the memory with new tokens: the same in every layer of a stack.

    Attributes:
        sizes: those of the memories.
        before, after: n, the real tokens of a row before and after this step: `(B,)` int64, or a number if all
            rows are equal.
        new: T.
        held: S, the states of every layer before this step.
        order: `(B, T)`, real tokens first; `None` if all are real.
        mask: `(B, S + T)` bool, True for valid states, the stored ones before the new ones; `None` for all.
    """

    sizes: MemorySizes
    before: int | Tensor
    after: int | Tensor
    new: int
    held: int
    order: Tensor | None
    mask: Tensor | None

    @classmethod
    def of(cls, sizes: MemorySizes, state: CompressedLayer, new: int, tokens: Tokens) -> MemoryStep:
        """Returns the step for T new tokens, with the mask of `tokens`."""
        counts, held = state.tensors.get("count"), state.read_tokens
        mask = tokens.last_mask(new)
        if counts is None and (mask is None or (not torch.compiler.is_compiling() and bool(mask.all()))):
            past = state.cumulative_length
            return cls(sizes, past, past + new, new, held, None, None)
        if mask is None:
            assert counts is not None
            mask = counts.new_ones(len(counts), new, dtype=torch.bool)
        if counts is None:
            counts = mask.new_full((len(mask),), state.cumulative_length, dtype=torch.int64)
        order = real_first(mask)
        compressed, recent = _held(sizes, counts)
        places = torch.arange(held, device=mask.device)
        visible = torch.cat([places >= held - (compressed + recent)[:, None], in_order(mask, order)], dim=1)
        return cls(sizes, counts, counts + mask.sum(1), new, held, order, visible)

    @property
    def groups(self) -> int:
        """The number G of groups to compress: the most of any row."""
        if isinstance(self.before, int) and isinstance(self.after, int):
            return _made(self.sizes, self.after) - _made(self.sizes, self.before)
        return (self.new + self.sizes.rate - 1) // self.sizes.rate

    def made_mask(self) -> Tensor | None:
        """The mask of a row's groups, `(B, G)` bool; `None` for all."""
        if isinstance(self.before, int) or isinstance(self.after, int):
            return None
        count = _made(self.sizes, self.after) - _made(self.sizes, self.before)
        return torch.arange(self.groups, device=count.device) < count[:, None]

    def oldest(self, both: Tensor) -> Tensor:
        """Returns the states to compress, and the `further` ones after them, of the stored and the new ones `(B, S + T,
        E)`: `(B, G·c + further, E)`.
        """
        count = self.groups * self.sizes.rate + self.sizes.further
        _, recent = _held(self.sizes, self.before)
        if isinstance(recent, int):
            return both[:, self.held - recent : self.held - recent + count]
        places = (self.held - recent)[:, None] + torch.arange(count, device=both.device)
        return in_order(both, places.clamp(max=both.shape[1] - 1))

    def joined(self, both: Tensor, made: Tensor | None, dim: int = 1) -> Tensor:
        """Returns the states stored after the step, from the stored and the new ones, S + T along `dim`, and the
        G compressed ones.
        """
        if isinstance(self.before, int) and isinstance(self.after, int):
            if made is None:
                return both
            compressed, recent = _held(self.sizes, self.after)
            fresh = min(compressed, self.groups)
            first = self.held - _held(self.sizes, self.before)[1]  # start of the uncompressed states
            parts = [
                both.narrow(dim, first - (compressed - fresh), compressed - fresh),
                made.narrow(dim, self.groups - fresh, fresh),
                both.narrow(dim, both.shape[dim] - recent, recent),
            ]
            return torch.cat(parts, dim=dim)
        everything = both if made is None else torch.cat([both, made], dim=dim)
        if not everything.shape[dim]:
            return everything
        return in_order(everything, self._places(), dim)

    def _places(self) -> Tensor:
        """Returns the index of each state stored after the step in the concatenation of stored, new and compressed
        ones, `(B, S')`; each row is aligned at the end.
        """
        assert not isinstance(self.before, int)
        assert not isinstance(self.after, int)
        before, after = self.before[:, None], self.after[:, None]
        width = min(self.held + self.new, self.sizes.most)
        slots = torch.arange(width, device=before.device)
        recent_before, (compressed, recent) = _held(self.sizes, before)[1], _held(self.sizes, after)
        tokens = self.held - before + after - width + slots
        number = _made(self.sizes, after) - (width - recent - slots)  # of the compressed state, from the first
        fresh = number - _made(self.sizes, before)
        older = torch.where(fresh < 0, self.held - recent_before + fresh, self.held + self.new + fresh)
        places = torch.where(slots >= width - recent, tokens, older)
        return torch.where(slots >= width - recent - compressed, places, 0)


def _made(sizes: MemorySizes, count: Any) -> Any:
    """Returns how many groups of `count` tokens have been compressed."""
    if isinstance(count, int):
        return max(count - sizes.memory, 0) // sizes.rate
    return (count - sizes.memory).clamp(min=0) // sizes.rate


def _held(sizes: MemorySizes, count: Any) -> tuple[Any, Any]:
    """Returns the numbers of compressed and other states of `count` tokens."""
    made = _made(sizes, count)
    compressed = min(made, sizes.compressed) if isinstance(made, int) else made.clamp(max=sizes.compressed)
    return compressed, count - made * sizes.rate


class Compressor(nn.Module):
    """The compression f_c of one layer.

    Args:
        width: E.
        rate: c, how many states are compressed to one.
        compression: "mean" or "max" of each element; "convolution", learned, with kernel and stride c; "dilated",
            a learned convolution with kernel and dilation c, added to its input, before it. Both are initialised
            as a mean.
        loss: the loss of a learned compression.
    """

    def __init__(self, width: int, rate: int, compression: Compression, loss: CompressionLoss) -> None:
        super().__init__()
        self.rate, self.compression, self.loss = rate, compression, loss
        self.further = further_tokens(compression, rate)
        if compression in LEARNED:
            self.convolution = nn.Conv1d(width, width, rate, stride=rate)
            if compression == "dilated":
                self.dilated = nn.Conv1d(width, width, rate, dilation=rate)
            if loss == "auto_encoding":
                self.decoder = nn.Linear(width, rate * width)
            self.init_extra_weights()

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Initialises convolutions as a mean of c states."""
        if self.compression not in LEARNED:
            return
        nn.init.zeros_(self.convolution.bias)  # pyright: ignore[reportArgumentType]
        if self.compression == "dilated":
            nn.init.zeros_(self.dilated.weight)
            nn.init.zeros_(self.dilated.bias)  # pyright: ignore[reportArgumentType]
        weight = self.convolution.weight
        if not getattr(weight, "_is_hf_initialized", False):
            weight.copy_(torch.eye(len(weight), device=weight.device)[..., None] / self.rate)

    def forward(self, states: Tensor) -> Tensor:
        """`(B, G·c + further, E)` → `(B, G, E)`."""
        if self.compression not in LEARNED:
            grouped = states.unflatten(1, (-1, self.rate))
            return grouped.mean(2) if self.compression == "mean" else grouped.amax(2)
        states = states.transpose(1, 2)
        if self.compression == "dilated":
            states = states[..., : states.shape[2] - self.further] + self.dilated(states)
        return self.convolution(states).transpose(1, 2)

    def missed(
        self,
        old: Tensor,
        made: Tensor,
        hidden: Tensor,
        attention: OffsetAttention,
        norm: nn.Module | None,
        made_mask: Tensor | None,
        mask: Tensor | None,
    ) -> Tensor:
        """Returns the reconstruction loss, a scalar: the mean squared difference between the attention of the layer's
        queries by content to the old states and to the compressed ones; or between the old states and those decoded
        from the compressed ones.

        Gradients reach f_c and the decoder only.

        Args:
            old: `(B, G·c, E)`, without gradient.
            made: `(B, G, E)`.
            hidden: `(B, T, E)`, the input of the layer.
            attention: the layer's.
            norm: the norm of attention's input, if the layer has one.
            made_mask: `(B, G)` bool; `None` for all.
            mask: `(B, T)` bool; `None` for all.
        """
        if self.loss == "auto_encoding":
            difference = projected(self.decoder, made).unflatten(-1, (self.rate, -1)) - old.unflatten(
                1, (-1, self.rate)
            )
            return _mean_square(difference, None if made_mask is None else made_mask[..., None, None])
        hidden, read = hidden.detach(), made
        if norm is not None:
            read = without_weight_gradient(norm, made)
            with torch.no_grad():
                old, hidden = norm(old), norm(hidden)
        old_mask = None if made_mask is None else made_mask.repeat_interleave(self.rate, dim=1)
        with torch.no_grad():
            whole = content_context(attention, hidden, old, old_mask)
        difference = content_context(attention, hidden, read, made_mask) - whole
        counts = None
        if made_mask is not None:
            rows = made_mask.any(1)[:, None]
            counts = (rows if mask is None else rows & mask)[:, None, :, None]
        return _mean_square(difference, counts)

    def nothing(self) -> Tensor:
        """Returns a loss of 0 with a gradient for each weight, since all processes of a distributed
        training need one.
        """
        return sum((weight.flatten()[0] * 0 for weight in self.parameters()), torch.zeros(()))


def _mean_square(difference: Tensor, counts: Tensor | None) -> Tensor:
    """Returns the mean of squares, in float32 at least, of the elements that count; 0 if there are none."""
    squares = difference.to(torch.promote_types(difference.dtype, torch.float32)).square()
    if counts is None:
        return squares.mean()
    counts = counts.expand_as(squares)
    return squares.masked_fill(~counts, 0).sum() / counts.sum().clamp(min=1)
