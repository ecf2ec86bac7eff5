"""The decomposed stack: lower layers process a question and a passage separately, upper layers both together.

The states of a passage below the upper layers depend on the passage alone, so they can be cached and reused for
any question (`longspan.inference.index`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from longspan.attention import Tokens
from longspan.attention.parts.tokens import StackTokens
from longspan.errors import InputError
from longspan.settings import Whole
from longspan.stacks.base import Sizes, StackConfig, StackOutput, StackReads
from longspan.stacks.block import Block, BlockState
from longspan.stacks.sequential import Sequential


@dataclass(frozen=True, kw_only=True)
class DecomposedConfig(StackConfig):
    """Lower layers process each part alone (Cao et al. 2020, "DeFormer", arXiv 2005.00697, section 3).

    The first part of a row is the question with its separator, `[CLS] q [SEP]`, the second is the rest, `ctx [SEP]`. A
    row without a second part is processed as by the plain stack.

    Attributes:
        lower_layers: the paper's k, of n layers; None means three quarters of them (9 of 12).
        positions: "restart" counts the passage's positions from 0 again, as published, so that its states do not
            depend on the length of the question; "joint" counts through. With "joint" and no lower layer it is
            the plain stack.
    """

    stack: ClassVar[str] = "decomposed"
    causal: ClassVar[bool] = False
    plain_blocks: ClassVar[bool] = True
    unused: ClassVar = {
        "decoder_layers": "which has no causal form, since its parts are a question and a passage that are both known"
    }

    lower_layers: Whole | None = None
    positions: Literal["restart", "joint"] = "restart"

    def reads(self) -> StackReads:
        restarts = self.positions == "restart"
        return StackReads(parts=restarts or self.lower_layers != 0, restarts_positions=restarts)

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for more lower layers than the model has layers."""
        if self.lower_layers is not None and self.lower_layers > config.num_hidden_layers:
            raise InputError(
                f"lower_layers={self.lower_layers} is more than num_hidden_layers={config.num_hidden_layers} of the "
                f"model; give 0 to {config.num_hidden_layers}"
            )

    def build(self, block: Callable[[int], Block], layers: int, sizes: Sizes) -> Decomposed:
        if sizes.causal:
            raise InputError(
                f"stack 'decomposed' cannot write text: it is one {self.unused['decoder_layers']}; choose another stack"
            )
        return Decomposed((block(layer) for layer in range(layers)), self.first_joint(layers))

    def first_joint(self, layers: int) -> int:
        return layers * 3 // 4 if self.lower_layers is None else min(self.lower_layers, layers)


class Part(NamedTuple):
    """One part of every row: states `(B, W, E)` from its first position on, and the properties of its tokens."""

    hidden: Tensor
    tokens: Tokens


class Decomposed(Sequential):
    """The module of `DecomposedConfig`: a list of its blocks.

    Args:
        blocks: all of them.
        lower: how many of them process the parts separately.
    """

    def __init__(self, blocks: Any, lower: int) -> None:
        super().__init__(blocks)
        self.lower = lower

    def forward(
        self,
        hidden: Tensor,
        tokens: Tokens,
        *given: Tensor | None,
        layers: range | None = None,
        block_states: Sequence[BlockState] | None = None,
        output_hidden_states: bool = False,
    ) -> StackOutput:
        """As `Sequential.forward`; without a `border` of `StackTokens`, or with `layers`, every row is one part."""
        border, length = StackTokens.of(tokens).border, hidden.shape[1]
        if border is None or layers is not None or self.lower == 0 or length == 0:
            return super().forward(hidden, tokens, *given, layers=layers, output_hidden_states=output_hidden_states)
        tokens = tokens.with_slots()
        parts = [question_of(hidden, tokens, border), passage_of(hidden, tokens, border)]
        all_hidden_states: list[Tensor] = []
        for layer in range(self.lower):
            if output_hidden_states:
                all_hidden_states.append(joined(parts, border, length))
            parts = [part._replace(hidden=self[layer](part.hidden, part.tokens, *given)) for part in parts]
        hidden, upper = joined(parts, border, length), range(self.lower, len(self))
        output = super().forward(hidden, tokens, *given, layers=upper, output_hidden_states=output_hidden_states)
        if output.all_hidden_states is None:
            return output
        return output._replace(all_hidden_states=(*all_hidden_states, *output.all_hidden_states))


def question_of(hidden: Tensor, tokens: Tokens, border: Tensor) -> Part:
    """Returns the part before the border `(B,)`, with W the longest."""
    width = _width(border, hidden.shape[1])
    inside = torch.arange(width, device=hidden.device) < border[:, None]
    mask = inside if tokens.mask is None else inside & tokens.mask[:, :width]
    slots = tokens.global_slots
    if slots is not None:
        slots = torch.where(slots < border[:, None], slots, -1)
    return Part(hidden[:, :width], replace(tokens, mask=mask, is_global=None, global_slots=slots))


def passage_of(hidden: Tensor, tokens: Tokens, border: Tensor) -> Part:
    """Returns the part from the border `(B,)` on, moved to position 0, with W the longest."""
    length = hidden.shape[1]
    places = torch.arange(_width(length - border, length), device=hidden.device) + border[:, None]
    mask, places = places < length, places.clamp(max=length - 1)
    if tokens.mask is not None:
        mask = mask & tokens.mask.gather(1, places)
    slots = tokens.global_slots
    if slots is not None:
        slots = (slots - border[:, None]).clamp(min=-1)
    moved = hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[2]))
    return Part(moved, replace(tokens, mask=mask, is_global=None, global_slots=slots))


def joined(parts: Sequence[Part], border: Tensor, length: int) -> Tensor:
    """Concatenates both parts' states at their positions, `(B, T, E)`."""
    question, passage = (part.hidden for part in parts)
    places = torch.arange(length, device=question.device).expand(border.shape[0], length)
    first = functional.pad(question, (0, 0, 0, length - question.shape[1]))
    if passage.shape[1] == 0:
        return first
    back = (places - border[:, None]).clamp(0, passage.shape[1] - 1)
    second = passage.gather(1, back[..., None].expand(-1, -1, passage.shape[2]))
    return torch.where((places < border[:, None])[..., None], first, second)


def _width(widths: Tensor, length: int) -> int:
    """Returns the largest width; a compiled or exported program, which cannot read it, uses the width of the rows."""
    if torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return length
    return int(widths.max()) if len(widths) else 0
