"""Structure: each token may belong to a global token of its row, `Tokens.belongs_to`."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.attention.parts.tokens import Tokens
from longspan.errors import InputError
from longspan.ops.runtime import shared_in_pass


def check_structure(tokens: Tokens, batch: int, length: int) -> None:
    """Raises unless every real token belongs to an existing global token, or to none (−1).

    A compiled or exported program, in which no value is known, contains the check as an assertion instead.

    Raises:
        InputError: `belongs_to` is not `(batch, length)`, or a row has no global token of that number.
    """
    belongs = tokens.belongs_to
    if belongs is None:
        return
    if belongs.shape != (batch, length):
        raise InputError(f"belongs_to has shape {tuple(belongs.shape)}, but the sequence needs ({batch}, {length})")
    if not belongs.numel():
        return
    flags = tokens.global_mask(length)
    if torch.compiler.is_compiling():
        fits = _fits(belongs, flags, tokens.mask)[0]
        torch._assert_async(fits.all(), "belongs_to names a global token that is not there")
        return
    wrong = _wrong_owner(belongs, flags, tokens.mask)
    if wrong is not None:
        raise InputError(
            f"belongs_to holds {wrong[0]} in row {wrong[1]}, which has {wrong[2]} global tokens; give the number of "
            "one of them, counted from 0, or -1 for none"
        )


def _fits(belongs: Tensor, flags: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns whether each token's `belongs_to` is valid, `(B, T)` bool, and the number of global tokens of each row,
    `(B,)`.
    """
    flags = torch.zeros_like(belongs, dtype=torch.bool) if flags is None else flags
    count = flags.sum(1)
    fits = (belongs >= -1) & (belongs < count[:, None]) | flags
    return (fits if mask is None else fits | ~mask), count


@shared_in_pass
def _wrong_owner(belongs: Tensor, flags: Tensor | None, mask: Tensor | None) -> tuple[int, int, int] | None:
    """Returns an invalid number, its row, and the row's number of global tokens; `None` if all are valid."""
    fits, count = _fits(belongs, flags, mask)
    if bool(fits.all()):
        return None
    row, place = (int(indices[0]) for indices in (~fits).nonzero(as_tuple=True))
    return int(belongs[row, place]), row, int(count[row])
