"""The top-down stack: local layers over tokens, full attention over segments of them, and layers in which every token
attends to all segments.

Segments overlap, and each is a weighted mean of its tokens. Segment j covers the tokens `j·stride … j·stride + kernel −
1`. A text of n tokens has ⌈(n − kernel) / stride⌉ + 1 segments, at least one: the last may extend beyond the text, and
none begins inside the last. So a text has the same segments alone, padded or in a batch. Linear in the length: each
token is in about kernel / stride segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from longspan.attention import Tokens, attention_config
from longspan.attention.base import projected
from longspan.attention.layers import plain_spec
from longspan.attention.parts.tokens import StackTokens, in_order, inverse_order
from longspan.errors import InputError
from longspan.settings import Count, Range, Whole
from longspan.stacks.base import Sizes, StackConfig, StackCost, StackOutput, StackReads
from longspan.stacks.block import Block, BlockState, CrossAttention
from longspan.stacks.sequential import Sequential, SequentialConfig


@dataclass(frozen=True, kw_only=True)
class TopDownConfig(StackConfig):
    """Top-down and bottom-up inference (Pang et al. 2022, "Long Document Summarization with Top-down and Bottom-up
    Inference", arXiv 2203.07586, section 2).

    The last `top_down_layers` of the encoder's layers (the paper's N₃) are top-down, those before them bottom-up (N₁);
    all have the model's attention. A decoder with cross-attention to the encoder is a plain one.

    Attributes:
        top_down: how tokens use segments in the top-down layers: "cross_attention" (paper), "concatenate", a linear
            layer over the token and the mean of the segments that cover it (ablation), or "none": there are no
            segments, and all layers are bottom-up (ablation).
        top_down_layers: their number; None means a third of the layers (4 of 12).
        segment_layers: layers of attention over segments (N₂).
        segment_attention: the mechanism over segments, in the forms of a model's `attention`; full in the paper.
        kernel: tokens of a segment (k).
        stride: tokens from the beginning of a segment to that of the next (ρ); at most the kernel.
        pooling: a segment is the mean of its tokens, "average" (AvgPool), or weighted by their "importance", an input
            of the model (AdaPool, OracleAdaPool).
        cross_norm: the position of the LayerNorm of the cross-attention: "before_sum", `e + LN(read(e, s))`, as
            reported of the published model, or as in the "model", `LN(e + read(e, s))` if it is post-normalised.
        max_segments: rows of the table of segment positions; the paper has 512, for 12 296 tokens.
    """

    stack: ClassVar[str] = "top_down"
    causal: ClassVar[bool] = False
    plain_blocks: ClassVar[bool] = True

    top_down: Literal["cross_attention", "concatenate", "none"] = "cross_attention"
    top_down_layers: Whole | None = None
    segment_layers: Annotated[int, Range(0, 1000)] = 2
    segment_attention: Any = "full"
    kernel: Count = 32
    stride: Count = 24
    pooling: Literal["average", "importance"] = "average"
    cross_norm: Literal["before_sum", "model"] = "before_sum"
    max_segments: Count = 1024

    def __post_init__(self) -> None:
        """Raises `InputError` for values out of range, tokens that no segment covers, and importance without effect."""
        super().__post_init__()
        spec = plain_spec(self.segment_attention, "stack.segment_attention")
        object.__setattr__(self, "segment_attention", spec)
        if self.stride > self.kernel:
            raise InputError(
                f"stack.stride={self.stride} is more than stack.kernel={self.kernel}, so that no segment would hold "
                "the tokens between two; lower it"
            )
        if self.top_down == "none" and self.pooling == "importance":
            raise InputError("stack.pooling='importance' means nothing with top_down='none'; leave one of them out")

    def reads(self) -> StackReads:
        return StackReads(importance=self.pooling == "importance")

    def of_decoder(self) -> StackConfig:
        return SequentialConfig()

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for more top-down layers than layers, and inputs with more segments than positions."""
        if self.top_down_layers is not None and self.top_down_layers > config.num_hidden_layers:
            raise InputError(
                f"stack.top_down_layers={self.top_down_layers} is more than num_hidden_layers="
                f"{config.num_hidden_layers} of the model; give 0 to {config.num_hidden_layers}"
            )
        tokens = config.max_position_embeddings
        needed = segment_count(tokens, self.kernel, self.stride)
        if self.top_down != "none" and config.position_embedding in ("learned", "axial") and needed > self.max_segments:
            raise InputError(
                f"stack.max_segments={self.max_segments} is fewer than the {needed} segments of "
                f"max_position_embeddings={tokens} tokens; raise it, or lower that"
            )

    def lengthened(self, tokens: int) -> StackConfig:
        needed = segment_count(tokens, self.kernel, self.stride)
        return replace(self, max_segments=max(needed, self.max_segments))

    def upper(self, layers: int) -> int:
        """Returns how many of `layers` layers are top-down."""
        if self.top_down == "none":
            return 0
        return -(-layers // 3) if self.top_down_layers is None else min(self.top_down_layers, layers)

    def costs(self, *, layers: int, tokens: int, width: int) -> StackCost:
        """The layers over segments, and the cross-attention to them.

        A reader saves its input, its query and output, keys and values of the segments, and the input and output of its
        norm; one that concatenates saves both inputs and the input of its norm.
        """
        upper, count = self.upper(layers), segment_count(tokens, self.kernel, self.stride)
        if not upper:
            return StackCost()
        crosses = self.top_down == "cross_attention"
        over = attention_config(self.segment_attention)
        return StackCost(
            layers=((over, count),) * self.segment_layers,
            readers=upper,
            saved_activations=(3 * tokens + 2 * count if crosses else 3 * tokens) * width,
            states=2 * tokens * width if crosses else 0,
            multiply_adds=2 * width * ((tokens + count) * width + tokens * count if crosses else tokens * width),
            working=2 * (count * self.kernel + tokens) * width,
        )

    def build(self, block: Callable[..., Block], layers: int, sizes: Sizes) -> TopDown:
        if sizes.causal:
            raise InputError(
                "stack 'top_down' cannot generate text without an encoder, since its segments contain later "
                "tokens; choose another stack, or an encoder-decoder"
            )
        lower = layers - self.upper(layers)
        blocks = [block(layer) for layer in range(lower)]
        for layer in range(lower, layers):
            reader = self._reader(sizes)
            blocks.append(block(layer, cross_attention=reader, norm_before_sum=self.cross_norm == "before_sum"))
        over = attention_config({"dropout": sizes.attention_dropout, **self.segment_attention})
        above = [block(layers - 1, mechanism=over) for _ in range(self.segment_layers if lower < layers else 0)]
        return TopDown(blocks, lower, Segments(above, self, sizes, pre=blocks[-1].pre) if lower < layers else None)

    def _reader(self, sizes: Sizes) -> nn.Module:
        if self.top_down == "concatenate":
            return Beside(sizes.width)
        return CrossAttention(width=sizes.width, heads=sizes.heads, dropout=sizes.attention_dropout)


# From tokens to segments, and back.


def segment_count(tokens: int, kernel: int, stride: int) -> int:
    """Returns the number of segments of a text of `tokens` tokens; 0 for an empty text."""
    return 0 if tokens == 0 else max(-(-(tokens - kernel) // stride), 0) + 1


def starts_of(tokens: int, stride: int, device: torch.device) -> Tensor:
    """Returns the positions of possible segments, `(M,)` int64, M = ⌊T / stride⌋ + 2. At least two, since
    `torch.export` specialises on one.
    """
    return torch.arange(0, tokens + stride + 1, stride, device=device)


def windows_of(values: Tensor, kernel: int, stride: int) -> Tensor:
    """Returns `(B, M, κ)` or `(B, M, κ, E)` of `(B, T)` or `(B, T, E)`, with zeros after the end."""
    length = values.shape[1]
    places = starts_of(length, stride, values.device)[:, None] + torch.arange(kernel, device=values.device)
    behind = (0, 1) if values.dim() == 2 else (0, 0, 0, 1)
    return functional.pad(values, behind)[:, places.clamp(max=length)]


def segment_weights(
    real: Tensor, kernel: int, stride: int, importance: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Returns the weights of the tokens of each segment, `(B, M, κ)`, and the mask of segments, `(B, M)` bool.

    Args:
        real: `(B, T)` bool.
        kernel: tokens of a segment.
        stride: tokens from the beginning of one to that of the next.
        importance: `(B, T)`, non-negative: weights are proportional to it, and uniform if all of a segment are 0.
            `None` means uniform. They sum to 1 over the real tokens of a segment, and are 0 for others.
        dtype: dtype of the tokens; weights are float32 at least.
    """
    inside = windows_of(real, kernel, stride)
    places = torch.arange(1, real.shape[1] + 1, device=real.device)
    length = functional.pad(real * places, (0, 1)).amax(1, keepdim=True)
    starts = starts_of(real.shape[1], stride, real.device)
    present = inside.any(2) & ((starts == 0) | (starts + kernel - stride < length))
    exact = torch.promote_types(dtype, torch.float32)
    if importance is None:
        weights = inside.to(exact)
    else:
        weights = windows_of(importance.to(exact) * real, kernel, stride)
        weights = torch.where(weights.sum(2, keepdim=True) > 0, weights, inside.to(weights.dtype))
    # Computed so that the largest weight of a segment can be arbitrarily small.
    weights = weights / weights.amax(2, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return weights / weights.sum(2, keepdim=True).clamp(min=1.0), present


def pool_segments(hidden: Tensor, weights: Tensor, stride: int) -> Tensor:
    """Pools tokens `(B, T, E)` to segments `(B, M, E)`, with `segment_weights`."""
    windows = windows_of(hidden, weights.shape[2], stride)
    return (weights[:, :, None].to(hidden.dtype) @ windows)[:, :, 0]


def covering(segments: Tensor, present: Tensor, tokens: int, kernel: int, stride: int) -> Tensor:
    """Returns for each of `tokens` tokens the mean of the segments that cover it, `(B, T, E)`; 0 if there are none."""
    places = torch.arange(tokens, device=segments.device)
    total, count = segments.new_zeros(len(segments), tokens, segments.shape[2]), 0
    for back in range(-(-kernel // stride)):
        number = torch.div(places, stride, rounding_mode="floor") - back
        reached = (number >= 0) & (places < number * stride + kernel)
        number = number.clamp(min=0)
        covers = (present.index_select(1, number) & reached)[..., None]
        total = total + segments.index_select(1, number) * covers
        count = covers.to(segments.dtype) + count
    return total / torch.as_tensor(count).clamp(min=1)


class Beside(nn.Module):
    """`W [e; s]` of each token and the segments that cover it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(2 * width, width)

    def forward(self, hidden: Tensor, source: Tensor, source_mask: Tensor | None = None, state: None = None) -> Tensor:
        """Maps tokens `(B, T, E)` and the means of their segments, `(B, T, E)`, to `(B, T, E)`."""
        return projected(self.dense, torch.cat([hidden, source], dim=-1))


class Segments(nn.Module):
    """From tokens to the input of the top-down layers: pooled segments, their positions and full attention over them.

    A pre-normalised model has a LayerNorm after the last of these layers.
    """

    def __init__(self, blocks: list[Block], config: TopDownConfig, sizes: Sizes, *, pre: bool) -> None:
        super().__init__()
        self.config = config
        self.position = nn.Embedding(config.max_segments, sizes.width)
        self.layers = Sequential(blocks)
        self.norm = nn.LayerNorm(sizes.width, eps=sizes.eps) if pre else None

    def forward(self, hidden: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """Maps tokens `(B, T, E)` to segments `(B, M, E)` and their mask, `(B, M)` bool; or, for concatenation, to the
        means of each token's segments, `(B, T, E)`, and `None`.

        Segments begin at the first real token of each row.
        """
        config, order = self.config, tokens.places_from_the_first()
        shape, device = hidden.shape[:2], hidden.device
        real = torch.ones(shape, dtype=torch.bool, device=device) if tokens.mask is None else tokens.mask
        self._check_length(shape[1])
        hidden, real = in_order(hidden, order), in_order(real, order)
        importance = StackTokens.of(tokens).importance
        importance = None if importance is None else in_order(importance, order)
        weights, present = segment_weights(real, config.kernel, config.stride, importance, hidden.dtype)
        segments = pool_segments(hidden, weights, config.stride)
        places = torch.arange(segments.shape[1], device=device)
        segments = segments + self.position(torch.where(present, places, 0)).to(segments.dtype)
        segments = self.layers(segments, Tokens(mask=present)).states
        if self.norm is not None:
            segments = self.norm(segments)
        if config.top_down == "cross_attention":
            return segments, present
        covered = covering(segments, present, shape[1], config.kernel, config.stride)
        return in_order(covered, None if order is None else inverse_order(order)), None

    def _check_length(self, tokens: int) -> None:
        """Raises `InputError` for more segments than positions; a compiled program fails at its table instead."""
        if torch.compiler.is_compiling():
            return
        count = segment_count(tokens, self.config.kernel, self.config.stride)
        if count > self.config.max_segments:
            raise InputError(
                f"{tokens} tokens are {count} segments, more than max_segments={self.config.max_segments} of this "
                "model's stack; shorten them, or train it with more"
            )


class TopDown(Sequential):
    """The module of `TopDownConfig`: a list of its blocks, bottom-up ones first.

    Args:
        blocks: all of them.
        lower: how many of them are bottom-up.
        segments: the module between; `None` if all blocks are bottom-up.
    """

    def __init__(self, blocks: list[Block], lower: int, segments: Segments | None) -> None:
        super().__init__(blocks)
        self.lower, self.segments = lower, segments

    def forward(
        self,
        hidden: Tensor,
        tokens: Tokens,
        *given: Tensor | None,
        layers: range | None = None,
        block_states: Sequence[BlockState] | None = None,
        output_hidden_states: bool = False,
    ) -> StackOutput:
        """As `Sequential.forward`, with the segments as the source of the upper blocks; with `layers`,
        there are none.
        """
        options: Any = {"output_hidden_states": output_hidden_states}
        if self.segments is None or layers is not None:
            return super().forward(hidden, tokens, *given, layers=layers, **options)
        below = super().forward(hidden, tokens, *given, layers=range(self.lower), **options)
        source, upper = self.segments(below.states, tokens), range(self.lower, len(self))
        output = super().forward(below.states, tokens, *source, *given[2:], layers=upper, **options)
        if below.all_hidden_states is None or output.all_hidden_states is None:
            return output
        return output._replace(all_hidden_states=(*below.all_hidden_states, *output.all_hidden_states[1:]))
