"""Memory tokens before every text, which attend to all of it and are attended to by all of it.

Gupta & Berant 2020, "GMAT: Global Memory Augmentation for Transformers", arXiv 2006.03274: M memory tokens come before
the T tokens of a text as global tokens. The projections and blocks are those of the text, so that only the memory
tokens are new weights, and T tokens of a mechanism with windows cost M·(T + M) more scores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from longspan.attention import Tokens
from longspan.attention.parts.tokens import StackTokens, in_order, permuted
from longspan.stacks import StackOutput
from longspan.stacks.block import total_loss


@dataclass(frozen=True)
class MemoryFirst:
    """A batch whose rows begin with their memory tokens, directly followed by the first token of each text.

    Attributes:
        hidden: `(B, M + T, E)`.
        tokens: properties of these positions.
        count: M.
        back: `(B, T)`, the inverse order to the original positions, if rows began with padding; padding is moved after
            the text, since padding between memory and text would shift the blocks and pools of the text.
    """

    hidden: Tensor
    tokens: StackTokens
    count: int
    back: Tensor | None = None

    @classmethod
    def of(cls, hidden: Tensor, tokens: StackTokens, count: int, *, places: bool = False) -> MemoryFirst:
        """Creates it from `(B, M + T, E)` and the properties of the T tokens; `places` adds the positions, counted for
        the text as without a memory, and for the memory from −M to −1.
        """
        rows, device = hidden.shape[0], hidden.device
        memory, hidden = hidden[:, :count], hidden[:, count:]
        stands = tokens.text_places(hidden.shape[1], device) if places else None
        order, back = tokens.places_from_the_first(), None
        if order is not None:
            hidden, tokens, back = permuted(hidden, tokens, order)
            stands = None if stands is None else in_order(stands.expand(rows, -1), order)
        slots = torch.arange(count, device=device).expand(rows, count)
        if tokens.global_slots is not None:
            others = torch.where(tokens.global_slots < 0, -1, tokens.global_slots + count)
            slots = torch.cat([slots, others], 1)
        mask = tokens.mask
        if mask is not None:
            mask = torch.cat([mask.new_ones(rows, count), mask], 1)
        if stands is not None:
            own = torch.arange(-count, 0, device=device)[None]
            stands = torch.cat([own.expand(stands.shape[0], -1), stands], 1)
        belongs = tokens.belongs_to
        if belongs is not None:  # the memory has the first numbers
            belongs = torch.where(belongs < 0, belongs, belongs + count)
            belongs = torch.cat([belongs.new_full((rows, count), -1), belongs], 1)
        tokens = replace(tokens, mask=mask, is_global=None, global_slots=slots, places=stands, belongs_to=belongs)
        return cls(torch.cat([memory, hidden], 1), tokens, count, back)

    def apart(self, output: StackOutput) -> StackOutput:
        """Splits the stack's output for `hidden` into the memory, and all other fields for the text, in
        its original positions.
        """
        hidden, times = output.all_hidden_states, output.aux.ponder_times
        return output._replace(
            states=self._text(output.states),
            all_hidden_states=None if hidden is None else tuple(self._text(states) for states in hidden),
            aux=output.aux._replace(ponder_times=None if times is None else self._text(times)),
            memory=output.states[:, : self.count],
        )

    def alone(self, memory: Tensor) -> tuple[Tensor, Tokens]:
        """Returns the memory `(B, M, E)` without a text, in which all tokens attend to each other."""
        slots = torch.arange(self.count, device=memory.device).expand(memory.shape[:2])
        return memory, Tokens(global_slots=slots)

    def compressed(
        self, layers: Any, lower: int, hidden: Tensor, tokens: Tokens, *given: Any, **options: Any
    ) -> StackOutput:
        """Applies the first `lower` layers to memory and text, and the others to the memory alone: states `(B, M, E)`.

        Args:
            layers: the stack, called like `Sequential`.
            lower: the number of these layers.
            hidden, tokens: `hidden` and `tokens` of this batch.
            *given, **options: further arguments of the stack.
        """
        options["layers"] = range(lower)
        first = self.apart(layers(hidden, tokens, *given, **options))
        options["layers"] = range(lower, len(layers))
        assert first.memory is not None
        second = layers(*self.alone(first.memory), *given, **options)
        states = second.all_hidden_states
        if states is not None and first.all_hidden_states is not None:
            states = (*first.all_hidden_states[:-1], *states)
        loss = total_loss([first.aux.loss, second.aux.loss])
        return second._replace(all_hidden_states=states, aux=second.aux._replace(loss=loss))

    def _text(self, values: Tensor) -> Tensor:
        """Returns the text's part, `(B, M + T, …)` → `(B, T, …)`."""
        return in_order(values[:, self.count :], self.back)
