"""What causal mechanisms keep between steps: layers of transformers' caches, which `generate()`, beams, streaming and
assisted decoding know how to handle.

Keys and values that grow with the sequence are transformers' own `DynamicLayer`. Those of a window are a `WindowLayer`,
and tensors that sum up the past a `RecurrentLayer`. Importing this module imports transformers, so mechanisms do it
where they make a state, and networks that never make one do without.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from longspan.errors import InputError

SLACK = 64
"""How many positions a window can be rolled back at least: assisted decoding proposes 20 tokens by default."""


class WindowLayer(DynamicLayer):
    """The last keys and values of a window, in constant memory however long the sequence becomes.

    They stand one behind the other in a buffer with room for twice as many. Where the buffer is full, what can still be
    seen moves to its front, so that a step costs the same on average at any length, and what attention reads is one
    piece, without a copy.

    Args:
        reach: how many past positions a later token can still see.

    Attributes:
        positions: projected distances `(H, R, D)`, of mechanisms that have some.
    """

    positions: Tensor | None = None
    is_sliding = True
    is_croppable = True

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.held = 0
        self.cumulative_length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append new `(B, H, T, D)` keys and values; return those of the reach, followed by these."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        past, new = self.held, key_states.shape[-2]
        first = max(0, past - self.reach)
        self.cumulative_length += new
        # Writing in place would spoil what an earlier step keeps for its backward pass.
        if past + new <= self.keys.shape[-2] and not torch.is_grad_enabled():
            self.held = past + new
            self.keys[:, :, past : self.held] = key_states
            self.values[:, :, past : self.held] = value_states
            return self.keys[:, :, first : self.held], self.values[:, :, first : self.held]
        self.held = min(past + new, self.reach + SLACK)
        keys = torch.cat([self.keys[:, :, :past], key_states], dim=-2)
        values = torch.cat([self.values[:, :, :past], value_states], dim=-2)
        self.keys, self.values = self._with_room(keys), self._with_room(values)
        return keys[:, :, first:], values[:, :, first:]

    def _with_room(self, hidden: Tensor) -> Tensor:
        """The last `held` of `(B, H, S, D)` at the front of a new buffer."""
        room = 2 * (self.reach + SLACK) - self.held
        return functional.pad(hidden[:, :, hidden.shape[-2] - self.held :], (0, 0, 0, room))

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of keys that the next `query_length` queries get, and the position of the first."""
        past = min(self.held, self.reach)
        return past + query_length, self.cumulative_length - past

    def get_max_length(self) -> int:
        """The longest stretch of a sequence that a query sees, itself included."""
        return self.reach + 1

    def reset(self) -> None:
        super().reset()
        self.held = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Go back by `-tokens_to_remove` positions (transformers counts them below 0).

        Raises:
            InputError: further back than the buffer holds.
        """
        back = -int(tokens_to_remove)  # transformers 5.17 has a tensor of one number
        left = self.cumulative_length - back
        if back < 0 or self.held - back < min(self.reach, left):
            raise InputError(
                f"tokens_to_remove={tokens_to_remove} cannot be taken back: a window keeps what it needs for "
                f"{-SLACK} to 0; propose fewer tokens at a time, with num_assistant_tokens or prompt_lookup_num_tokens"
            )
        self.held -= back
        self.cumulative_length = left


class TreeLayer(DynamicLayer):
    """Keys and values of the tokens of a text and of the spans of a binary tree over it, which come as they fill.

    Node m of level j, which covers the tokens from `m·2^j` on, stands at place `(2m + 1)·2^j − 1`, between its
    children: so no node moves as the text grows, and a text of n tokens takes 2n places. Where the buffer is full it is
    doubled. Positions of padding are counted, and have no node.
    """

    is_croppable = True

    def __init__(self) -> None:
        super().__init__()
        self.cumulative_length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.is_initialized = True

    def store(self, tokens: int, length: int, places: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add `tokens` positions and the nodes that come with them; return all keys and values.

        Args:
            tokens: how many positions, padding included.
            length: real tokens of the longest row, with these.
            places: `(1 or B, M)` int64 places of the nodes, below 0 for one that is not to be stored.
            keys, values: of them, `(B, H, M, D)`.
        """
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        self.cumulative_length += tokens
        assert self.keys is not None
        assert self.values is not None
        missing = 2 * length + 1 - self.keys.shape[2]
        if missing > 0:
            room = max(missing, self.keys.shape[2])
            self.keys, self.values = (functional.pad(each, (0, 0, 0, room)) for each in (self.keys, self.values))
        # The last place belongs to no token, and to no span that is full: what is not there goes to it.
        places = torch.where(places < 0, self.keys.shape[2] - 1, places)[:, None, :, None].expand_as(keys)
        if torch.is_grad_enabled():  # writing in place would spoil what an earlier step keeps for its backward pass
            self.keys, self.values = self.keys.scatter(2, places, keys), self.values.scatter(2, places, values)
        else:
            self.keys.scatter_(2, places, keys)
            self.values.scatter_(2, places, values)
        return self.keys, self.values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Refused: which nodes these are is not said."""
        raise InputError("state is a TreeLayer, which keeps tokens and spans of a stack; give stack.new_state(step)")

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def reset(self) -> None:
        super().reset()
        self.cumulative_length = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Go back by `-tokens_to_remove` positions (transformers counts them below 0): spans that were full before are
        as they were, and the others come again.

        Raises:
            InputError: more than there are, or a number above 0.
        """
        tokens_to_remove = int(tokens_to_remove)
        if not -self.cumulative_length <= tokens_to_remove <= 0:
            raise InputError(
                f"tokens_to_remove={tokens_to_remove} is not among {-self.cumulative_length} to 0; give how many to "
                "take back, below 0"
            )
        self.cumulative_length += tokens_to_remove


class RecurrentLayer(CacheLayerMixin):
    """Tensors `(B, …)` that sum up the past, under names of the mechanism's choice: of constant size, or blocks of it.

    Attributes:
        tensors: what the last `advance` left; empty at the start of a sequence.
    """

    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[str, Tensor] = {}
        self.cumulative_length = 0

    def advance(self, tokens: int, **tensors: Tensor) -> None:
        """Replace the tensors by those after `tokens` more positions."""
        self.cumulative_length += tokens
        self.tensors = tensors
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the first `advance` brings the tensors."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Refused: there are no keys and values in here."""
        raise InputError("state is a RecurrentLayer, which keeps no keys and values; give attention.new_state()")

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of positions up to the next `query_length` queries, and 0, the first of them."""
        return self.cumulative_length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.tensors, self.cumulative_length, self.is_initialized = {}, 0, False

    def crop(self, tokens_to_remove: int) -> None:
        """Refused for anything but 0, since no token can be taken out of a sum; `is_croppable` is False."""
        if tokens_to_remove:
            raise InputError(
                f"tokens_to_remove={tokens_to_remove} cannot be taken back from a sum; keep a copy of the state"
            )

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the batch to the rows `(B',)` int64, one of which may come twice: for beams."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch: `(B',)` int64 numbers or a `(B,)` bool mask."""
        self.tensors = {name: tensor[indices.to(tensor.device)] for name, tensor in self.tensors.items()}

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the batch so many times in place: `(B, …)` → `(B · repeats, …)`."""
        self.tensors = {name: tensor.repeat_interleave(repeats, dim=0) for name, tensor in self.tensors.items()}


class HiddenLayer(RecurrentLayer):
    """The last states that went into a layer: its keys and values are made of them again, and learn from that.

    Args:
        limit: how many of them are kept.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    @property
    def hidden(self) -> Tensor | None:
        """`(B, M, E)`, without gradient; `None` before the first and where none are kept."""
        hidden = self.tensors.get("hidden")
        return None if hidden is None or not hidden.shape[1] else hidden

    def remember(self, hidden: Tensor, tokens: int | None = None) -> None:
        """Append `(B, T, E)`, and forget what is further back than the limit; where these are only the last of so many
        tokens, there are as many of them as the limit, or all."""
        past, new = self.hidden, hidden.detach()
        both = new if past is None else torch.cat([past, new], dim=1)
        # A copy, or a short memory would hold on to all of a long segment.
        kept = both[:, max(0, both.shape[1] - self.limit) :].clone()
        self.advance(hidden.shape[1] if tokens is None else tokens, hidden=kept)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of positions that the next `query_length` queries read, and the first of them."""
        past = 0 if self.hidden is None else self.hidden.shape[1]
        return past + query_length, self.cumulative_length - past


class PastLayer(WindowLayer):
    """Keys and values of what one call reads behind a memory, and `positions` for the next call.

    Args:
        keys, values: `(B, H, S, D)` of the memory; `None` where it is still empty.
        positions: as in `WindowLayer`, of an earlier call.
    """

    def __init__(self, keys: Tensor | None, values: Tensor | None, positions: Tensor | None) -> None:
        super().__init__(reach=0)
        self.keys, self.values, self.positions = keys, values, positions
        self.is_initialized = keys is not None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append `(B, H, T, D)` keys and values; return all."""
        self.keys = key_states if self.keys is None else torch.cat([self.keys, key_states], dim=-2)
        self.values = value_states if self.values is None else torch.cat([self.values, value_states], dim=-2)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[-2]


class CompressedLayer(RecurrentLayer):
    """The last states that went into a layer, behind them older ones, `rate` of which have become one.

    The `tensors`: `hidden` `(B, S, E)`, in each row compressed states, then those that are not, at the end where it has
    fewer than others; `count` `(B,)` real positions so far, only where rows differ in it; `key` and `value`
    `(B, H, S, D)`, made of `hidden`, of mechanisms that read these again. `MemoryStep` says what joins and what leaves.

    Args:
        has_keys: keys and values are kept too.
    """

    positions: Tensor | None = None
    """As in `WindowLayer`."""

    def __init__(self, *, has_keys: bool) -> None:
        super().__init__()
        self.has_keys = has_keys

    @property
    def hidden(self) -> Tensor | None:
        """`(B, S, E)`, without gradient; `None` before the first."""
        hidden = self.tensors.get("hidden")
        return None if hidden is None or not hidden.shape[1] else hidden

    @property
    def read_tokens(self) -> int:
        """S, how many states the next tokens read."""
        return 0 if self.hidden is None else self.hidden.shape[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of states that the next `query_length` queries read, and the place of the first, as if each were one
        position."""
        return self.read_tokens + query_length, self.cumulative_length - self.read_tokens

    def forget_keys(self) -> None:
        """Hold states alone from now on: of keys and values nothing can learn."""
        self.has_keys, self.positions = False, None
        self.tensors = {name: tensor for name, tensor in self.tensors.items() if name in ("hidden", "count")}

    def past(self) -> PastLayer:
        """The keys and values for one call."""
        return PastLayer(self.tensors.get("key"), self.tensors.get("value"), self.positions)


def recurrent(state: CacheLayerMixin, what: str) -> RecurrentLayer:
    """The state, if it is a `RecurrentLayer`, which holds `what`.

    Raises:
        InputError: it is another one.
    """
    if not isinstance(state, RecurrentLayer):
        raise InputError(f"state is a {type(state).__name__}, which keeps no {what}; give attention.new_state()")
    return state


class SourceLayer(DynamicLayer):
    """Keys and values of a source, kept once per document however many beams read them.

    Beam search only ever exchanges the beams of one document, and all of these share one source, so reordering,
    repeating and choosing among them leaves the source as it is.

    Args:
        static: whether it stands beside a static cache: its tensors are then read where they lie, where a CUDA graph
            would copy them in every step.
    """

    def __init__(self, *, static: bool = False) -> None:
        super().__init__()
        self.static = static

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        key, value = super().update(key_states, value_states, *args, **kwargs)
        if self.static and not torch.compiler.is_compiling():
            for each in (key, value):
                torch._dynamo.mark_static_address(each)
        return key, value

    def reorder_cache(self, *_: Any, **__: Any) -> None:
        """Nothing to do: beams never leave their document, and the rows of one all read the same source."""

    batch_repeat_interleave = batch_select_indices = reorder_cache
