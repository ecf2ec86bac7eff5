"""Packed sequences: several documents in one row, and the arguments of `forward` that mark their boundaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longspan.attention.features.packed import begins, check_documents, counted_in
from longspan.attention.parts.tokens import check_tensor
from longspan.errors import InputError
from longspan.stacks import StackConfig

if TYPE_CHECKING:
    from longspan.models.fields import ModelFields

FLATTENED = ("cu_seq_lens_q", "cu_seq_lens_k")
"""Boundaries of the documents in a packed row, as in transformers' `DataCollatorWithFlattening` for FlashAttention."""
LONGEST = ("max_length_q", "max_length_k")
"""Redundant arguments that come with it."""

NOT_IN_GRAPH = (
    "packed rows are not supported in a compiled graph; run them without torch.compile or "
    "torch.export, or give one padded document per row"
)


def documents_of(
    given: Tensor | None,
    seq_idx: Tensor | None,
    position_ids: Tensor | None,
    attention_mask: Tensor | None,
    others: dict[str, Any],
) -> Tensor | None:
    """Returns the documents of packed rows `(B, T)` int64, −1 at padding; `None` if every row is one document.

    They are marked by `seq_idx`, by `cu_seq_lens_q`, or as in transformers by `position_ids` that restart, if there is
    no attention mask. The arguments used here are removed from `others`.

    Args:
        given: ids `(B, T)` or embeddings `(B, T, E)`.
        seq_idx: `(B, T)`, the number of the document of each token.
        position_ids: `(1 or B, T)`.
        attention_mask: `(B, T)`.
        others: further arguments of a model, by name.

    Raises:
        InputError: documents that are not contiguous, or do not match the mask or each other; lengths that do not sum
            to the row; positions that do not restart with each document.
    """
    ends = [others.pop(name) for name in FLATTENED if others.get(name) is not None]
    for name in LONGEST:
        others.pop(name, None)
    if given is None or (seq_idx is None and not ends and (position_ids is None or attention_mask is not None)):
        return None
    if torch.compiler.is_compiling() and (seq_idx is not None or ends):
        raise InputError(f"seq_idx and cu_seq_lens_q: {NOT_IN_GRAPH}")
    shape, documents = tuple(given.shape[:2]), None
    for name, tensor in (("seq_idx", seq_idx), ("position_ids", position_ids)):
        check_tensor(name, tensor)
    if seq_idx is not None:
        if tuple(seq_idx.shape) != shape or seq_idx.is_floating_point() or seq_idx.dtype == torch.bool:
            raise InputError(
                f"seq_idx is {seq_idx.dtype} of shape {tuple(seq_idx.shape)} but the input is {shape}; give the number "
                "of its document for each token"
            )
        documents = seq_idx.to(given.device).long()
    for end in ends:
        documents = _documents_of_ends(end.to(given.device), shape, documents)
    if documents is not None:
        mask = None if attention_mask is None else attention_mask.to(given.device).bool()
        if mask is None or tuple(mask.shape) == shape:  # the shape of the mask is checked with that of all masks
            check_documents(documents, mask, name="seq_idx")
    if position_ids is None or tuple(position_ids.shape) not in (shape, (1, shape[1])) or not shape[1]:
        return documents
    position_ids = position_ids.to(given.device).expand(shape)
    if documents is not None:
        counted = counted_in(documents, torch.ones_like(documents)) + (position_ids[:, :1] - 1)
        if bool(((position_ids != counted) & (documents >= 0)).any()):
            raise InputError(
                "position_ids do not count every document of seq_idx from where it begins; leave them out, since the "
                "model counts by itself"
            )
        return documents
    again = position_ids[:, 1:] != position_ids[:, :-1] + 1
    restarts = again & (position_ids[:, 1:] == position_ids[:, :1])
    if torch.compiler.is_compiling():  # a graph cannot depend on the boundaries
        torch._assert_async(~(again.any() & (again == restarts).all()), f"position_ids begin again: {NOT_IN_GRAPH}")
        return None
    if not bool(again.any()) or not torch.equal(again, restarts):
        return None  # one document a row, or custom rows of a table
    return torch.cat([again[:, :1] & False, again], 1).cumsum(1)


def _documents_of_ends(ends: Tensor, shape: tuple[int, ...], documents: Tensor | None) -> Tensor:
    """Returns the documents of `cu_seq_lens` `(N + 1,)`, from 0 to the length of the only row; others must agree."""
    rising = ends.dim() == 1 and len(ends) > 1 and int(ends[0]) == 0 and bool((ends[1:] > ends[:-1]).all())
    if shape[0] != 1 or not rising or int(ends[-1]) != shape[1]:
        raise InputError(
            f"cu_seq_lens_q holds {ends.tolist()[:20]} and the input is {shape}; give one row, and the places at which "
            f"its documents begin, rising from 0 to {shape[1]}"
        )
    numbers = torch.arange(len(ends) - 1, device=ends.device).repeat_interleave(ends[1:] - ends[:-1])[None]
    if documents is not None and not torch.equal(begins(documents), begins(numbers)):
        raise InputError("documents begin in different places in seq_idx and cu_seq_lens_q; give one of them")
    return numbers if documents is None else documents


def check_packed(config: ModelFields, stack: StackConfig) -> None:
    """Raises `InputError` if a model does not support packed sequences."""
    if "packed" not in stack.supports:
        raise InputError(
            f"seq_idx packs several documents in a row, which the stack {stack.stack!r} does not support; "
            "give each document a row of its own, or choose the stack 'sequential'"
        )
    if config.num_memory_tokens:
        raise InputError(
            f"seq_idx packs several documents in a row, but num_memory_tokens={config.num_memory_tokens} come "
            "before each row; give each document a row of its own"
        )
