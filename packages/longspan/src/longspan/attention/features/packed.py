"""Several documents in one row, each read as if it stood alone: padding-free batches, as ModernBERT is trained and run.

A mechanism that sorts, hashes, pools, sums or has global tokens means by a row one document. So the documents of all
rows are laid side by side, those of about one length in one batch, and the mechanism reads these batches: no pair of
different documents is ever formed, and the projections see hardly any padding. Warner et al. 2024, "Smarter, Better,
Faster, Longer" (ModernBERT), arXiv 2412.13663, section 2.1.2, unpads before the embeddings; so does this, and all that
a model does token by token runs over the packed rows.
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
"""How short a document may be beside one of length 1 with which it shares a batch: on a GPU every batch is launches."""

PACKED_SHARE = 0.9
"""Share of a padded batch's tokens up to which, where they are real, its documents are less work in one row, where each
layer copies states."""


def worth_packing(lengths: Sequence[int]) -> bool:
    """Whether documents of such lengths are less work behind one another in one row than padded to the longest."""
    return min(lengths, default=0) > 0 and sum(lengths) <= PACKED_SHARE * len(lengths) * max(lengths)


@dataclass(frozen=True)
class Layout:
    """Where the tokens of packed rows stand when their documents lie side by side.

    Attributes:
        sizes: documents and length of each batch, `(N, L)`.
        take: `(P,)` int64, for every place of all batches, one after the other, the token that stands there, as a place
            of the flattened rows; on padding it is the first token of the document.
        back: `(B·T,)` int64, for every place of the flattened rows that of its token among the P; 0 for padding.
        real: `(B·T,)` bool, which of these are tokens; `None` where all are.
        masks: of each batch `(N, L)` bool, `None` where all its documents have one length.
    """

    sizes: list[tuple[int, int]]
    take: Tensor
    back: Tensor
    real: Tensor | None
    masks: list[Tensor | None]


def each_document(attention: Callable[[Tensor, Tokens], Tensor], hidden: Tensor, tokens: Tokens) -> Tensor:
    """What `attention` makes of each document of `(B, T, E)` alone, in the places of its tokens; 0 at padding.

    Raises:
        InputError: documents that are not whole runs, or do not fit the mask; a prefix; inside of a compiled graph.
    """
    if torch.compiler.is_compiling():
        raise InputError(
            "documents decide by their lengths what is computed, which no compiled graph can say; run packed rows "
            "without torch.compile or torch.export, or give it one padded document a row"
        )
    if tokens.prefix is not None:
        raise InputError("prefix and documents were both given; give one document a row where a prefix is read")
    for name in ("documents", "mask", "is_global", "belongs_to"):
        given = getattr(tokens, name)
        if given is not None and given.shape != hidden.shape[:2]:
            raise InputError(f"{name} has shape {tuple(given.shape)}, but the sequence needs {tuple(hidden.shape[:2])}")
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
    """The layout of the documents `(B, T)` of a batch, which is looked at: on a GPU once in a pass.

    Raises:
        InputError: a number that comes back behind another one; one for padding, or none for a real token.
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
            torch.tensor([each[index] for index in group], device=device)[:, None] for each in (starts, lengths)
        )
        place = torch.arange(longest, device=device)
        within = place < length
        take = torch.where(within, start + place, start)
        at = torch.arange(first, first + take.numel(), device=device).view_as(take)
        # On padding this writes the place of a document's first token there once more.
        back[take.flatten()] = torch.where(within, at, at[:, :1]).flatten()
        takes.append(take.flatten())
        masks.append(None if lengths[group[-1]] == longest else within)
        sizes.append((len(group), longest))
        first += take.numel()
    real = documents.flatten() >= 0
    take = torch.cat(takes) if takes else back[:0]
    return Layout(sizes, take, back, None if sum(lengths) == documents.numel() else real, masks)


def runs_of(documents: Tensor) -> tuple[list[int], list[int]]:
    """Where each document begins in the flattened rows, and how many tokens it has, in their order."""
    starts = begins(documents).flatten().nonzero().squeeze(1)
    ends = begins(documents.flip(1)).flip(1).flatten().nonzero().squeeze(1)
    return starts.tolist(), (ends - starts + 1).tolist()


def begins(documents: Tensor) -> Tensor:
    """`(B, T)` bool, True at the first token of each document."""
    before = torch.cat([torch.full_like(documents[:, :1], -1), documents[:, :-1]], 1)
    return (documents >= 0) & (documents != before)


def counted_in(documents: Tensor, flags: Tensor) -> Tensor:
    """`(B, T)` int64, how many flags `(B, T)` its document has up to each token, itself included; any at padding."""
    if not documents.numel():
        return torch.zeros_like(documents)
    count, place = flags.long().cumsum(1), torch.arange(documents.shape[1], device=documents.device)
    first = torch.where(begins(documents), place, 0).cummax(1).values
    return count - (count - flags.long()).gather(1, first)


def check_documents(documents: Tensor, mask: Tensor | None, *, name: str = "documents") -> None:
    """Raise unless every number `(B, T)` is one run of its row, and padding alone has none (−1).

    Raises:
        InputError: one sentence that names the number and its place.
    """
    row, place = begins(documents).nonzero(as_tuple=True)
    pairs = torch.stack([row, documents[row, place]], 1)
    unique, counts = pairs.unique(dim=0, return_counts=True) if len(pairs) else (pairs, row)
    if len(unique) != len(pairs):
        again, number = unique[counts > 1][0].tolist()
        raise InputError(
            f"{name} holds {number} twice in row {again}, with something else between; give every document a "
            "number of its own, on all its tokens and in one run"
        )
    if mask is None:
        return
    wrong = ((documents >= 0) != mask).nonzero()
    if len(wrong):
        row_, place_ = wrong[0].tolist()
        number = int(documents[row_, place_])
        told = "which the mask calls padding; give -1 there" if number >= 0 else "which the mask calls real; number it"
        raise InputError(f"{name} holds {number} at place {place_} of row {row_}, {told}")


@shared_in_pass
def _parts(documents: Tensor, mask: Tensor | None, is_global: Tensor | None, belongs_to: Tensor | None) -> list[Tokens]:
    """What is known of the tokens of each batch of the layout."""
    layout = laid_out(documents, mask)
    parts, takes = [], layout.take.split([count * length for count, length in layout.sizes])
    for take, size, own in zip(takes, layout.sizes, layout.masks, strict=True):
        flags = None if is_global is None else is_global.flatten()[take].view(size)
        if flags is not None and own is not None:
            flags = flags & own
        belongs = None if belongs_to is None else belongs_to.flatten()[take].view(size)
        parts.append(Tokens(mask=own, is_global=flags, belongs_to=belongs).with_slots())
    return parts
