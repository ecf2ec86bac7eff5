"""Where the tokens of a row stand, its padding not counted: which entries of tables by place they read."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.errors import InputError


class Places:
    """The places of T queries and S keys in tables of so many entries, the queries being the last of the keys.

    Without padding, tables are cut, not gathered; a compiled program, which serves every length, gathers.

    Args:
        mask: `(B, S)` bool, True where a key is real; `None` means all are.
        queries: T.
        keys: S.
        most: entries of the tables.
        mechanism: whose tables they are, for the error.
        device: where the tables are.

    Raises:
        InputError: a row has more real tokens than the tables have entries; a compiled program asserts it.
    """

    def __init__(
        self, mask: Tensor | None, queries: int, keys: int, most: int, *, mechanism: str, device: torch.device
    ) -> None:
        self.first, self.keys, self.index = keys - queries, keys, None
        compiling = torch.compiler.is_compiling()
        if mask is not None or compiling:
            places = torch.arange(keys, device=device)[None] if mask is None else (mask.cumsum(1) - 1).clamp(min=0)
            self.index = places.clamp(max=most - 1)
            if compiling:
                torch._assert_async((places < most).all(), "max_tokens is fewer than the real tokens of a row")
        if not compiling and keys > most:
            _check_count(keys if mask is None else mask.sum(1), most, mechanism)

    def of_keys(self, table: Tensor) -> Tensor:
        """Rows `(B or 1, H, S, C)` of a table `(H, N, C)`."""
        if self.index is None:
            return table[None, :, : self.keys]
        return table[:, self.index].transpose(0, 1)

    def of_queries(self, table: Tensor) -> Tensor:
        """Rows `(B or 1, H, T, C)` of a table `(H, N, C)`."""
        if self.index is None:
            return table[None, :, self.first : self.keys]
        return table[:, self.index[:, self.first :]].transpose(0, 1)

    def of_pairs(self, table: Tensor) -> Tensor:
        """Entries `(B or 1, H, T, S)` of a table `(H, N, N)`."""
        if self.index is None:
            whole = table.shape[1] == self.keys and not self.first  # the gradient of a cut would be copied
            return table[None] if whole else table[None, :, self.first : self.keys, : self.keys]
        return table[:, self.index[:, self.first :, None], self.index[:, None, :]].transpose(0, 1)

    def of_columns(self, rows: Tensor) -> Tensor:
        """For every query the entry of each key's place, `(B, H, T, S)`, from `(B or 1, H, T, N)`."""
        if self.index is None:
            return rows[..., : self.keys]
        rows = rows.expand(self.index.shape[0] if rows.shape[0] == 1 else -1, -1, -1, -1)
        index = self.index[:, None, None].expand(*rows.shape[:3], -1)
        return rows.gather(3, index)


def _check_count(count: Tensor | int, most: int, mechanism: str) -> None:
    """Raise unless every row's count `(B,)` fits."""
    longest = count if isinstance(count, int) else int(count.max()) if len(count) else 0
    if longest > most:
        raise InputError(
            f"a text of {longest} tokens is longer than max_tokens={most} of attention {mechanism!r}, whose tables "
            "have an entry for each place; shorten it, or build with a larger max_tokens"
        )
