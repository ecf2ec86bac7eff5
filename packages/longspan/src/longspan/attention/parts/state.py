"""States of causal mechanisms between steps: layers of transformers' caches, which `generate()`, beam search, streaming
and assisted decoding support.

A growing KV cache is a `GrowingLayer`, that of a window a `WindowLayer`, and sums over the past a `RecurrentLayer`.
Importing this module imports transformers, so mechanisms import it when they create a state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from longspan.errors import InputError

SLACK = 64
"""The least number of positions that a window can be rolled back: assisted decoding proposes 20 tokens by default."""


ROOM = 256
"""The least number of positions by which a full buffer grows."""


class GrowingLayer(DynamicLayer):
    """All keys and values of the past, as transformers' `DynamicLayer`, which copies all of them in every step.

    Here `keys` and `values` are the front of buffers with room for an eighth more, to which a step appends in place.
    With gradients the tensors are concatenated, because an earlier step saved them for its backward pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffers: dict[str, tuple[Tensor, Tensor]] = {}
        """Name → the buffer, and the front of it that was returned last. Whoever crops or reorders the tensors replaces
        the latter, and the next step copies them to a new buffer."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Appends new `(B, H, T, D)` keys and values; returns all."""
        past = self.keys if self.is_initialized else None
        alike = past is not None and past.shape[:2] == key_states.shape[:2] and past.dtype == key_states.dtype
        if not alike or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().update(key_states, value_states, *args, **kwargs)
        self.keys = self._appended("keys", key_states)
        self.values = self._appended("values", value_states)
        return self.keys, self.values

    def _appended(self, name: str, states: Tensor) -> Tensor:
        past: Tensor = getattr(self, name)
        buffer, front = self._buffers.get(name, (None, None))
        start, end = past.shape[2], past.shape[2] + states.shape[2]
        writable = buffer is not None and (torch.is_inference_mode_enabled() or not buffer.is_inference())
        if buffer is None or front is not past or buffer.shape[2] < end or not writable:
            buffer = past.new_empty(*past.shape[:2], end + max(ROOM, end // 8), past.shape[3])
            buffer[:, :, :start] = past
        buffer[:, :, start:end] = states
        self._buffers[name] = buffer, buffer[:, :, :end]
        return self._buffers[name][1]

    def reset(self) -> None:
        with torch.inference_mode(self.keys is not None and self.keys.is_inference()):
            super().reset()  # which transformers writes in place up to 5.17
        self._buffers = {}


class WindowLayer(DynamicLayer):
    """The last keys and values of a window, in constant memory for any length of the sequence.

    They are contiguous in a buffer of twice their size. When the buffer is full, the visible ones are moved to
    its front, so that the average cost of a step does not depend on the length, and attention reads one slice
    without a copy.

    Args:
        reach: how many past positions a later token can attend to.

    Attributes:
        positions: projected distances `(H, R, D)`, for mechanisms with relative positions.
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
        """Appends new `(B, H, T, D)` keys and values; returns those within reach, followed by the new ones."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        past, new = self.held, key_states.shape[-2]
        first = max(0, past - self.reach)
        self.cumulative_length += new
        # Writing in place would change tensors that an earlier step saved for its backward pass.
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
        """Returns a new buffer that begins with the last `held` of `(B, H, S, D)`."""
        room = 2 * (self.reach + SLACK) - self.held
        return functional.pad(hidden[:, :, hidden.shape[-2] - self.held :], (0, 0, 0, room))

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns the number of keys of the next `query_length` queries, and the position of the first."""
        past = min(self.held, self.reach)
        return past + query_length, self.cumulative_length - past

    def get_max_length(self) -> int:
        """Returns the most positions that a query attends to, including its own."""
        return self.reach + 1

    def reset(self) -> None:
        super().reset()
        self.held = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last `-tokens_to_remove` positions (transformers counts them below 0).

        Raises:
            InputError: more than the buffer holds.
        """
        back = -int(tokens_to_remove)  # transformers 5.17 passes a tensor with one number
        left = self.cumulative_length - back
        if back < 0 or self.held - back < min(self.reach, left):
            raise InputError(
                f"tokens_to_remove={tokens_to_remove} cannot be taken back: a window keeps what it needs for "
                f"{-SLACK} to 0; propose fewer tokens at a time, with num_assistant_tokens or prompt_lookup_num_tokens"
            )
        self.held -= back
        self.cumulative_length = left


class TreeLayer(DynamicLayer):
    """Keys and values of the tokens of a text and of the complete spans of a binary tree over it.

    Node m of level j, which covers the tokens from `m·2^j` on, is stored at place `(2m + 1)·2^j − 1`, between its
    children: so no node moves as the text grows, and a text of n tokens takes 2n places. A full buffer is doubled.
    Positions of padding are counted, and have no node.
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
        """Appends `tokens` positions and the nodes that they complete; returns all keys and values.

        Args:
            tokens: the number of positions, including padding.
            length: real tokens of the longest row, including these.
            places: `(1 or B, M)` int64 places of the nodes, negative for a node that is not stored.
            keys, values: those of the nodes, `(B, H, M, D)`.
        """
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        self.cumulative_length += tokens
        assert self.keys is not None
        assert self.values is not None
        missing = 2 * length + 1 - self.keys.shape[2]
        if missing > 0:
            room = max(missing, self.keys.shape[2])
            self.keys, self.values = (functional.pad(tensor, (0, 0, 0, room)) for tensor in (self.keys, self.values))
        # The last place belongs to no token and no complete span, so negative places are written to it.
        places = torch.where(places < 0, self.keys.shape[2] - 1, places)[:, None, :, None].expand_as(keys)
        if torch.is_grad_enabled():  # not in place: an earlier step saved them for backward
            self.keys, self.values = self.keys.scatter(2, places, keys), self.values.scatter(2, places, values)
        else:
            self.keys.scatter_(2, places, keys)
            self.values.scatter_(2, places, values)
        return self.keys, self.values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Raises, since the places of the nodes are missing."""
        raise InputError("state is a TreeLayer, which keeps tokens and spans of a stack; give stack.new_state(step)")

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def reset(self) -> None:
        super().reset()
        self.cumulative_length = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last `-tokens_to_remove` positions (transformers counts them below 0). Spans that were complete
        before do not change; the others are completed again.

        Raises:
            InputError: more positions than there are, or a positive number.
        """
        tokens_to_remove = int(tokens_to_remove)
        if not -self.cumulative_length <= tokens_to_remove <= 0:
            raise InputError(
                f"tokens_to_remove={tokens_to_remove} is not among {-self.cumulative_length} to 0; give how many to "
                "take back, below 0"
            )
        self.cumulative_length += tokens_to_remove


class RecurrentLayer(CacheLayerMixin):
    """Tensors `(B, …)` that summarise the past, with names chosen by the mechanism; their size is constant or
    grows in blocks.

    Attributes:
        tensors: those of the last `advance`; empty at the start of a sequence.
    """

    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[str, Tensor] = {}
        self.cumulative_length = 0

    def advance(self, tokens: int, **tensors: Tensor) -> None:
        """Replaces the tensors by those after `tokens` more positions."""
        self.cumulative_length += tokens
        self.tensors = tensors
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing: the first `advance` sets the tensors."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Raises, since there are no keys and values."""
        raise InputError("state is a RecurrentLayer, which keeps no keys and values; give attention.new_state()")

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns the number of positions up to the next `query_length` queries, and 0, the first of them."""
        return self.cumulative_length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.tensors, self.cumulative_length, self.is_initialized = {}, 0, False

    def crop(self, tokens_to_remove: int) -> None:
        """Raises for any number but 0, since a token cannot be removed from a sum; `is_croppable` is False."""
        if tokens_to_remove:
            raise InputError(
                f"tokens_to_remove={tokens_to_remove} cannot be taken back from a sum; keep a copy of the state"
            )

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorders the batch to the rows `(B',)` int64, which may repeat, for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps these rows of the batch: `(B',)` int64 indices or a `(B,)` bool mask."""
        self.tensors = {name: tensor[indices.to(tensor.device)] for name, tensor in self.tensors.items()}

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats every row of the batch in place: `(B, …)` → `(B · repeats, …)`."""
        self.tensors = {name: tensor.repeat_interleave(repeats, dim=0) for name, tensor in self.tensors.items()}


class HiddenLayer(RecurrentLayer):
    """The last inputs of a layer, from which keys and values are computed again, so that their projections are trained.

    Args:
        limit: the maximal number of states.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    @property
    def hidden(self) -> Tensor | None:
        """The states `(B, M, E)`, without gradient; `None` before the first and if `limit` is 0."""
        hidden = self.tensors.get("hidden")
        return None if hidden is None or not hidden.shape[1] else hidden

    def remember(self, hidden: Tensor, tokens: int | None = None) -> None:
        """Appends `(B, T, E)`, and drops states beyond the limit. `tokens` is the number of new positions if `hidden`
        has only the last of them.
        """
        past, new = self.hidden, hidden.detach()
        both = new if past is None else torch.cat([past, new], dim=1)
        # A copy, or a short memory would keep all of a long segment alive.
        kept = both[:, max(0, both.shape[1] - self.limit) :].clone()
        self.advance(hidden.shape[1] if tokens is None else tokens, hidden=kept)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns the number of positions that the next `query_length` queries attend to, and the first of them."""
        past = 0 if self.hidden is None else self.hidden.shape[1]
        return past + query_length, self.cumulative_length - past


class PastLayer(WindowLayer):
    """Keys and values after a memory for one call, and `positions` for the next call.

    Args:
        keys, values: `(B, H, S, D)` of the memory; `None` if it is empty.
        positions: as in `WindowLayer`, from an earlier call.
    """

    def __init__(self, keys: Tensor | None, values: Tensor | None, positions: Tensor | None) -> None:
        super().__init__(reach=0)
        self.keys, self.values, self.positions = keys, values, positions
        self.is_initialized = keys is not None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Appends `(B, H, T, D)` keys and values; returns all."""
        self.keys = key_states if self.keys is None else torch.cat([self.keys, key_states], dim=-2)
        self.values = value_states if self.values is None else torch.cat([self.values, value_states], dim=-2)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[-2]


class CompressedLayer(RecurrentLayer):
    """The last inputs of a layer, and before them compressed states, each of which replaces `rate` older ones.

    The `tensors`: `hidden` `(B, S, E)`, in each row compressed states, then the others, aligned at the end if it
    has fewer than other rows; `count` `(B,)` real positions so far, only if rows differ; `key` and `value` `(B, H,
    S, D)`, computed from `hidden`, for mechanisms that reuse them. `MemoryStep` defines which states are
    compressed and dropped.

    Args:
        has_keys: whether keys and values are stored too.
    """

    positions: Tensor | None = None
    """As in `WindowLayer`."""

    def __init__(self, *, has_keys: bool) -> None:
        super().__init__()
        self.has_keys = has_keys

    @property
    def hidden(self) -> Tensor | None:
        """The states `(B, S, E)`, without gradient; `None` before the first."""
        hidden = self.tensors.get("hidden")
        return None if hidden is None or not hidden.shape[1] else hidden

    @property
    def read_tokens(self) -> int:
        """The number of states S that the next tokens attend to."""
        return 0 if self.hidden is None else self.hidden.shape[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns the number of states that the next `query_length` queries attend to, and the index of the first, each
        state counted as one position.
        """
        return self.read_tokens + query_length, self.cumulative_length - self.read_tokens

    def forget_keys(self) -> None:
        """Stores only states from now on, since keys and values without gradients cannot train the projections."""
        self.has_keys, self.positions = False, None
        self.tensors = {name: tensor for name, tensor in self.tensors.items() if name in ("hidden", "count")}

    def past(self) -> PastLayer:
        """Returns the keys and values for one call."""
        return PastLayer(self.tensors.get("key"), self.tensors.get("value"), self.positions)


def recurrent(state: CacheLayerMixin, what: str) -> RecurrentLayer:
    """Returns the state if it is a `RecurrentLayer`; `what` names its contents for the error.

    Raises:
        InputError: it has another type.
    """
    if not isinstance(state, RecurrentLayer):
        raise InputError(f"state is a {type(state).__name__}, which keeps no {what}; give attention.new_state()")
    return state


class SourceLayer(DynamicLayer):
    """Keys and values of a source, stored once per document for any number of beams.

    Beam search only exchanges the beams of one document, which share one source, so reordering, repeating and selecting
    them does not change the source.

    Args:
        static: whether it belongs to a static cache: its tensors then keep their addresses, since a CUDA graph would
            copy them in every step.
    """

    def __init__(self, *, static: bool = False) -> None:
        super().__init__()
        self.static = static

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        key, value = super().update(key_states, value_states, *args, **kwargs)
        if self.static and not torch.compiler.is_compiling():
            for tensor in (key, value):
                torch._dynamo.mark_static_address(tensor)
        return key, value

    def reorder_cache(self, *_: Any, **__: Any) -> None:
        """Does nothing: beams never change their document, and all rows of a document share the source."""

    batch_repeat_interleave = batch_select_indices = reorder_cache
