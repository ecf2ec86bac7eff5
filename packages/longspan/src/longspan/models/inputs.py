"""What an encoder is given of a batch, and what of it is looked at before it goes to the stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longspan.attention.features.packed import begins, check_documents, counted_in
from longspan.attention.parts.tokens import check_tensor
from longspan.errors import InputError
from longspan.stacks import StackConfig

if TYPE_CHECKING:
    from longspan.models.fields import ModelFields
    from longspan.ops.shards import Shards


TENSORS = ("input_ids", "attention_mask", "global_attention_mask", "token_type_ids", "inputs_embeds", "position_ids")
TENSORS += ("importance", "belongs_to")
"""Fields of `ModelInputs` that a caller gives as they are."""


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """What an encoder is given of a batch; what each means says `LongspanModel.forward`.

    Attributes:
        input_ids: `(B, T)` int64, or `None` with `inputs_embeds`.
        attention_mask: `(B, T)`, 1/True = real; `None` means all real.
        global_attention_mask: `(B, T)`, 1/True = global; `None` leaves it to `config.global_tokens`.
        token_type_ids: `(B, T)` or `(B, T, K)` int64.
        inputs_embeds: `(B, T, F)` instead of `input_ids`.
        position_ids: `(1 or B, T)` int64 rows of the position table.
        importance: `(B, T)`, 0 or more.
        belongs_to: `(B, T)` int64, the number of the global token to which each token belongs, −1 for none.
        documents: `(B, T)` int64, several documents in one row, as in `Tokens`.
        first_position: where the batch begins in longer documents of which it is a piece.
        shards: how rows are divided between processes, this batch being one's own part of them.
    """

    input_ids: Tensor | None = None
    attention_mask: Tensor | None = None
    global_attention_mask: Tensor | None = None
    token_type_ids: Tensor | None = None
    inputs_embeds: Tensor | None = None
    position_ids: Tensor | None = None
    importance: Tensor | None = None
    belongs_to: Tensor | None = None
    documents: Tensor | None = None
    first_position: int = 0
    shards: Shards | None = None

    def __post_init__(self) -> None:
        for name in TENSORS:
            check_batch(name, getattr(self, name))


def border_of(config: ModelFields, inputs: ModelInputs) -> Tensor:
    """`(B,)` int64, the place at which the second part of each row begins, for stacks that read parts apart.

    A model with several token types is told by them: the second part begins with the first real token of another type
    than 0. Otherwise it begins with the first real token behind the first separator. A row without one has T here.

    Raises:
        InputError: neither types nor a separator can tell.
    """
    input_ids, token_type_ids = inputs.input_ids, inputs.token_type_ids
    if token_type_ids is not None and config.type_vocab_size > 1:
        second = (token_type_ids[..., 0] if token_type_ids.dim() == 3 else token_type_ids) != 0
    elif input_ids is not None and config.sep_token_id is not None:
        is_separator = (input_ids == config.sep_token_id).long()
        second = is_separator.cumsum(1) - is_separator > 0
    else:
        missing = "sep_token_id is None" if input_ids is not None else "inputs_embeds show no separator"
        raise InputError(
            f"the stack reads question and passage apart, and nothing tells where the passage begins ({missing}); give "
            "token_type_ids, which are 1 there, to a model with type_vocab_size=2, or input_ids with a sep_token_id"
        )
    if inputs.attention_mask is not None:
        second = second & inputs.attention_mask.bool()
    return (second.cumsum(1) == 0).sum(1)


def checked_importance(stack: StackConfig, importance: Tensor | None, hidden: Tensor) -> Tensor:
    """How important each token of states `(B, T, E)` is, `(B, T)`, on their device.

    Raises:
        InputError: it is given to a stack that does not weigh tokens, or not given to one that does; it is of another
            shape, negative, or not finite.
    """
    if not stack.reads().importance:
        raise InputError(
            f"importance was given, but the stack {stack.stack!r} as configured does not weigh tokens; leave it out"
        )
    if importance is None:
        raise InputError(
            "importance is missing, and the stack weighs tokens by it (pooling='importance'); give a number from 0 to "
            "1 for each token, as an importance tagger does, or configure pooling='average'"
        )
    if tuple(importance.shape) != tuple(hidden.shape[:2]):
        raise InputError(
            f"importance has shape {tuple(importance.shape)} but the input is {tuple(hidden.shape[:2])}; give one "
            "number per token"
        )
    if not torch.compiler.is_compiling():
        wrong = ~(importance.isfinite() & (importance >= 0))
        if bool(wrong.any()):
            raise InputError(f"importance holds {importance[wrong][0].item():g}; give probabilities, from 0 to 1")
    return importance.to(hidden.device)


def checked_structure(stack: StackConfig, belongs_to: Tensor, hidden: Tensor) -> Tensor:
    """To which global token each token of states `(B, T, E)` belongs, `(B, T)` int64, on their device.

    Raises:
        InputError: the stack does not hand it on, it is of another shape, or not of whole numbers.
    """
    if "structure" not in stack.supports:
        raise InputError(f"belongs_to was given, but the stack {stack.stack!r} hands no structure on; leave it out")
    if tuple(belongs_to.shape) != tuple(hidden.shape[:2]) or belongs_to.is_floating_point():
        raise InputError(
            f"belongs_to is {belongs_to.dtype} of shape {tuple(belongs_to.shape)} but the input is "
            f"{tuple(hidden.shape[:2])}; give one whole number per token"
        )
    return belongs_to.to(hidden.device).long()


FLATTENED = ("cu_seq_lens_q", "cu_seq_lens_k")
"""Where documents begin in one row, as transformers' `DataCollatorWithFlattening` says it to FlashAttention."""
LONGEST = ("max_length_q", "max_length_k")
"""What it says besides, which follows from the others."""

NOT_IN_GRAPH = (
    "a row holds several documents, and no compiled graph reads them apart; run packed rows without torch.compile or "
    "torch.export, or give one padded document a row"
)


def check_batch(name: str, given: Any) -> None:
    """Raise `InputError` for an argument of a model that is neither a tensor nor None, such as a list of ids."""
    check_tensor(name, given, "give a tensor, as a tokenizer makes with return_tensors='pt'")


def documents_of(
    given: Tensor | None,
    seq_idx: Tensor | None,
    position_ids: Tensor | None,
    attention_mask: Tensor | None,
    others: dict[str, Any],
) -> Tensor | None:
    """The documents of packed rows `(B, T)` int64, −1 at padding; `None` where every row is one document.

    They are told by `seq_idx`, by `cu_seq_lens_q`, or as in transformers by `position_ids` that begin again, where
    there is no attention mask. `others` lose what is read here.

    Args:
        given: ids `(B, T)` or embeddings `(B, T, E)`.
        seq_idx: `(B, T)`, the number of the document of each token.
        position_ids: `(1 or B, T)`.
        attention_mask: `(B, T)`.
        others: further arguments of a model, by name.

    Raises:
        InputError: numbers that are not runs, do not fit the mask or each other; lengths that do not add up to the row;
            positions that do not count each document from where it begins.
    """
    ends = [others.pop(name) for name in FLATTENED if others.get(name) is not None]
    for name in LONGEST:
        others.pop(name, None)
    if given is None or (seq_idx is None and not ends and (position_ids is None or attention_mask is not None)):
        return None
    if torch.compiler.is_compiling() and (seq_idx is not None or ends):
        raise InputError(f"seq_idx and cu_seq_lens_q say that {NOT_IN_GRAPH}")
    shape, documents = tuple(given.shape[:2]), None
    for name, tensor in (("seq_idx", seq_idx), ("position_ids", position_ids)):
        check_batch(name, tensor)
    if seq_idx is not None:
        if tuple(seq_idx.shape) != shape or seq_idx.is_floating_point() or seq_idx.dtype == torch.bool:
            raise InputError(
                f"seq_idx is {seq_idx.dtype} of shape {tuple(seq_idx.shape)} but the input is {shape}; give the number "
                "of its document for each token"
            )
        documents = seq_idx.to(given.device).long()
    for each in ends:
        documents = _documents_of_ends(each.to(given.device), shape, documents)
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
    if torch.compiler.is_compiling():  # what a graph computes cannot depend on where documents end
        torch._assert_async(~(again.any() & (again == restarts).all()), f"position_ids begin again: {NOT_IN_GRAPH}")
        return None
    if not bool(again.any()) or not torch.equal(again, restarts):
        return None  # one document a row, or rows of a table that somebody chose otherwise
    return torch.cat([again[:, :1] & False, again], 1).cumsum(1)


def _documents_of_ends(ends: Tensor, shape: tuple[int, ...], documents: Tensor | None) -> Tensor:
    """Those of `cu_seq_lens` `(N + 1,)`, from 0 to the length of the only row, which agree with others."""
    rising = ends.dim() == 1 and len(ends) > 1 and int(ends[0]) == 0 and bool((ends[1:] > ends[:-1]).all())
    if shape[0] != 1 or not rising or int(ends[-1]) != shape[1]:
        raise InputError(
            f"cu_seq_lens_q holds {ends.tolist()[:20]} and the input is {shape}; give one row, and the places at which "
            f"its documents begin, rising from 0 to {shape[1]}"
        )
    numbers = torch.arange(len(ends) - 1, device=ends.device).repeat_interleave(ends[1:] - ends[:-1])[None]
    if documents is not None and not torch.equal(begins(documents), begins(numbers)):
        raise InputError("seq_idx and cu_seq_lens_q say that documents begin in different places; give one of them")
    return numbers if documents is None else documents


def check_packed(config: ModelFields, stack: StackConfig) -> None:
    """Raise `InputError` where a model cannot read several documents in one row."""
    if "packed" not in stack.supports:
        raise InputError(
            f"seq_idx says that a row holds several documents, which the stack {stack.stack!r} does not read apart; "
            "give each document a row of its own, or choose the stack 'sequential'"
        )
    if config.num_memory_tokens:
        raise InputError(
            f"seq_idx says that a row holds several documents, but num_memory_tokens={config.num_memory_tokens} stand "
            "before each row; give each document a row of its own"
        )


def tokens_among(ids: Sequence[int], input_ids: Tensor | None, mask: Tensor | None) -> Tensor:
    """`(B, T)` bool: the real tokens whose id is one of these."""
    if input_ids is None:
        raise InputError(f"global_tokens={list(ids)} reads input_ids; pass a global_attention_mask with inputs_embeds")
    marked = torch.isin(input_ids, torch.tensor(ids, device=input_ids.device))
    return marked if mask is None else marked & mask
