"""Packed sequences: several documents in one row, which do not attend to each other (padding-free batches).

Mechanisms that sort, hash, pool, sum or have global tokens need one document per row. So the documents of all rows are
regrouped into batches of similar lengths, which the mechanism processes: no pair of different documents is ever
computed, and the projections process little padding. Warner et al. 2024, "Smarter, Better, Faster, Longer"
(ModernBERT), arXiv 2412.13663, section 2.1.2, unpads before the embeddings; so does this library, and everything that a
model computes token by token runs over the packed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longspan.attention.parts.tokens import Tokens
from longspan.errors import InputError
from longspan.ops.attend.call import mask_of_slots
from longspan.ops.runtime import shared_in_pass

SHORTEST = {"cpu": 0.875, "cuda": 0.5}
"""The least length of a document relative to the longest of its batch: on a GPU, more batches mean
more kernel launches.
"""

PACKED_SHARE = 0.9
"""Share of real tokens in a padded batch up to which packing is faster, although each layer then copies states."""


def worth_packing(lengths: Sequence[int]) -> bool:
    """Whether packing documents of such lengths in one row is faster than padding them to the longest."""
    return min(lengths, default=0) > 0 and sum(lengths) <= PACKED_SHARE * len(lengths) * max(lengths)


@dataclass(frozen=True)
class Layout:
    """The places of the tokens of packed rows once their documents are regrouped into batches.

    Attributes:
        sizes: documents and length of each batch, `(N, L)`.
        take: `(P,)` int64, for every place of all batches in order, the index of its token in the flattened rows; for
            padding, that of the document's first token.
        back: `(B·T,)` int64, for every token of the flattened rows, its index among the P places; 0 for padding.
        real: `(B·T,)` bool, True for real tokens; `None` if all are.
        masks: the attention mask of each batch, `(N, L)` bool, `None` if all its documents have one length.
    """

    sizes: list[tuple[int, int]]
    take: Tensor
    back: Tensor
    real: Tensor | None
    masks: list[Tensor | None]


def each_document(attention: Callable[[Tensor, Tokens], Tensor], hidden: Tensor, tokens: Tokens) -> Tensor:
    """Applies `attention` to each document of `(B, T, E)` separately; the outputs keep their places, and are
    0 at padding.

    Raises:
        InputError: documents that are not contiguous, or do not fit the mask; a prefix; use in a compiled graph.
    """
    if torch.compiler.is_compiling():
        raise InputError(
            "the computation for packed rows depends on the lengths of their documents, which a compiled graph "
            "cannot express; run them without torch.compile or torch.export, or give one padded document per row"
        )
    if tokens.prefix is not None:
        raise InputError("prefix and documents were both given; give one document a row where a prefix is read")
    for name in ("documents", "mask", "is_global", "belongs_to"):
        values = getattr(tokens, name)
        if values is not None and values.shape != hidden.shape[:2]:
            raise InputError(
                f"{name} has shape {tuple(values.shape)}, but the sequence needs {tuple(hidden.shape[:2])}"
            )
    documents, flags = tokens.documents, tokens.is_global
    assert documents is not None
    if flags is None and tokens.global_slots is not None:
        flags = mask_of_slots(tokens.global_slots, documents.shape[1])
    layout = laid_out(documents, tokens.mask)
    parts = _parts(documents, tokens.mask, flags, tokens.belongs_to)
    if not layout.sizes:
        return torch.zeros_like(hidden)
    batches = (
        hidden.flatten(0, 1).index_select(0, layout.take).split([count * length for count, length in layout.sizes])
    )
    gathered = [
        attention(batch.unflatten(0, size), replace(part, relative=tokens.relative)).flatten(0, 1)
        for batch, size, part in zip(batches, layout.sizes, parts, strict=True)
    ]
    output = torch.cat(gathered).index_select(0, layout.back)
    if layout.real is not None:
        output = output.masked_fill(~layout.real[:, None], 0)
    return output.unflatten(0, hidden.shape[:2])


@shared_in_pass
def laid_out(documents: Tensor, mask: Tensor | None) -> Layout:
    """Returns the layout of the documents `(B, T)` of a batch. It reads the data, on a GPU once per forward pass.

    Raises:
        InputError: a document number that occurs in two runs, one at padding, or none at a real token.
    """
    check_documents(documents, mask)
    starts, lengths = runs_of(documents)
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    groups: list[list[int]] = []
    for index in order:
        if not groups or lengths[index] < SHORTEST.get(documents.device.type, 0.5) * lengths[groups[-1][0]]:
            groups.append([])
        groups[-1].append(index)
    device, takes, masks, sizes = documents.device, [], [], []
    back, first = torch.zeros(documents.numel(), dtype=torch.int64, device=device), 0
    for group in groups:
        longest = lengths[group[0]]
        start, length = (
            torch.tensor([numbers[index] for index in group], device=device)[:, None] for numbers in (starts, lengths)
        )
        place = torch.arange(longest, device=device)
        within = place < length
        take = torch.where(within, start + place, start)
        at = torch.arange(first, first + take.numel(), device=device).view_as(take)
        # For padding this writes the place of the document's first token again.
        back[take.flatten()] = torch.where(within, at, at[:, :1]).flatten()
        takes.append(take.flatten())
        masks.append(None if lengths[group[-1]] == longest else within)
        sizes.append((len(group), longest))
        first += take.numel()
    real = documents.flatten() >= 0
    take = torch.cat(takes) if takes else back[:0]
    return Layout(sizes, take, back, None if sum(lengths) == documents.numel() else real, masks)


def runs_of(documents: Tensor) -> tuple[list[int], list[int]]:
    """Returns the index of each document's first token in the flattened rows, and its number of tokens."""
    starts = begins(documents).flatten().nonzero().squeeze(1)
    ends = begins(documents.flip(1)).flip(1).flatten().nonzero().squeeze(1)
    return starts.tolist(), (ends - starts + 1).tolist()


def begins(documents: Tensor) -> Tensor:
    """Returns `(B, T)` bool, True at the first token of each document."""
    before = torch.cat([torch.full_like(documents[:, :1], -1), documents[:, :-1]], 1)
    return (documents >= 0) & (documents != before)


def counted_in(documents: Tensor, flags: Tensor) -> Tensor:
    """Returns for each token how many flags `(B, T)` its document has up to and including it, `(B, T)` int64; arbitrary
    at padding.
    """
    if not documents.numel():
        return torch.zeros_like(documents)
    count, place = flags.long().cumsum(1), torch.arange(documents.shape[1], device=documents.device)
    first = torch.where(begins(documents), place, 0).cummax(1).values
    return count - (count - flags.long()).gather(1, first)


def check_documents(documents: Tensor, mask: Tensor | None, *, name: str = "documents") -> None:
    """Raises unless every document number in `(B, T)` is one contiguous run, and padding alone has −1.

    Raises:
        InputError: the message names the number and its position.
    """
    row, place = begins(documents).nonzero(as_tuple=True)
    pairs = torch.stack([row, documents[row, place]], 1)
    unique, counts = pairs.unique(dim=0, return_counts=True) if len(pairs) else (pairs, row)
    if len(unique) != len(pairs):
        again, number = unique[counts > 1][0].tolist()
        raise InputError(
            f"{name} holds {number} twice in row {again}, not contiguously; give every document a "
            "number of its own, on contiguous tokens"
        )
    if mask is None:
        return
    wrong = ((documents >= 0) != mask).nonzero()
    if len(wrong):
        row_, place_ = wrong[0].tolist()
        number = int(documents[row_, place_])
        problem = (
            "which is padding in the mask; give -1 there" if number >= 0 else "which is real in the mask; number it"
        )
        raise InputError(f"{name} holds {number} at place {place_} of row {row_}, {problem}")


@shared_in_pass
def _parts(documents: Tensor, mask: Tensor | None, is_global: Tensor | None, belongs_to: Tensor | None) -> list[Tokens]:
    """Returns the properties of the tokens of each batch of the layout."""
    layout = laid_out(documents, mask)
    parts, takes = [], layout.take.split([count * length for count, length in layout.sizes])
    for take, size, mask_of_batch in zip(takes, layout.sizes, layout.masks, strict=True):
        flags = None if is_global is None else is_global.flatten()[take].view(size)
        if flags is not None and mask_of_batch is not None:
            flags = flags & mask_of_batch
        belongs = None if belongs_to is None else belongs_to.flatten()[take].view(size)
        parts.append(Tokens(mask=mask_of_batch, is_global=flags, belongs_to=belongs).with_slots())
    return parts
