"""Terms that may be added to attention scores: biases, and products of contents and positions.

A score is `scale·(q_i·k_j + content terms) + biases`. Offset terms read the row of their table for j − i; offsets
beyond the table read its end row, as clipped positions do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from longspan.errors import InputError


@dataclass(frozen=True, eq=False)
class Term:
    """Base of all terms. Every backend that supports a term computes the gradients of its tensors."""

    tensor_names: ClassVar[tuple[str, ...]]
    """Fields that hold the term's tensors."""
    head_axis: ClassVar[int]
    """The head axis of its tensors; size 1 applies to all heads."""
    has_rows: ClassVar[bool] = False
    """Whether the first axis of its tensors is the batch; size 1 applies to all rows."""

    @property
    def tensors(self) -> list[Tensor]:
        """The term's tensors that are not `None`."""
        return [tensor for name in self.tensor_names if (tensor := getattr(self, name)) is not None]

    def of_heads(self, heads: list[int]) -> Term:
        """Returns the term for some of the heads, by their indices."""
        tensors = {name: getattr(self, name) for name in self.tensor_names}
        selected = {
            name: None if tensor is None else tensor[of_heads(tensor, heads, self.head_axis)]
            for name, tensor in tensors.items()
        }
        return replace(self, **selected)

    def of_rows(self, rows: Tensor) -> Term:
        """Returns the term for some rows of the batch, by an index `(n,)`."""
        if not self.has_rows:
            return self
        tensors = {name: getattr(self, name) for name in self.tensor_names}
        return replace(
            self,
            **{name: tensor if len(tensor) == 1 else tensor.index_select(0, rows) for name, tensor in tensors.items()},
        )

    def shapes(self, sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
        """Returns the required shape of each tensor, from the sizes B, H, T, S, D and G of a call."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Bias(Term):
    """Numbers added to the scaled scores, such as a mask, ALiBi or a learned bias.

    Attributes:
        values: of any shape that broadcasts to `(B, H, T, S)`, such as `(T, S)` or `(H, 1, S)`; −∞ hides a key.
        globals: as in `OffsetTerm`.
    """

    tensor_names = ("values",)
    head_axis = 1
    has_rows = True
    values: Tensor
    globals: bool = field(default=True, kw_only=True)

    def shapes(self, sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
        full = tuple(sizes[name] for name in "BHTS")
        pairs = zip(reversed(self.values.shape), reversed(full), strict=False)
        if self.values.ndim > 4 or any(size not in (1, wanted) for size, wanted in pairs):
            raise InputError(f"values of Bias has shape {tuple(self.values.shape)}; give one that broadcasts to {full}")
        return {}


@dataclass(frozen=True, eq=False)
class GlobalKeyBias(Term):
    """Numbers added to the scaled scores of the global keys only, by slot.

    Attributes:
        values: `(B, H, T, G)`, for `globals` passed as `(B, G)` positions; entries of unused slots are not read.
    """

    tensor_names = ("values",)
    head_axis = 1
    has_rows = True
    values: Tensor

    def shapes(self, sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
        if "G" not in sizes:
            raise InputError("GlobalKeyBias belongs to globals given as (B, G) positions; give both or neither")
        return {"values": tuple(sizes[name] for name in "BHTG")}


@dataclass(frozen=True, eq=False)
class OffsetTerm(Term):
    """Base of the terms that depend on the offset j − i of key j from query i, with a table of R consecutive offsets.

    Attributes:
        table: one row for each offset, ascending.
        first: offset of the first row, by default −⌊R / 2⌋: both −k … k and DeBERTa's −k … k − 1 are centred.
        globals: if False, the term does not apply to the additional scores of `globals`: those with a global key, and
            all of a global row.
    """

    table: Tensor
    first: int | None = field(default=None, kw_only=True)
    globals: bool = field(default=True, kw_only=True)
    tensor_names = ("table",)
    head_axis = 0
    content: ClassVar[bool] = True
    """Whether the term is a product of a token and a position, and scaled."""

    @property
    def start(self) -> int:
        """The offset j − i of the first row."""
        return -(self.table.shape[1] // 2) if self.first is None else self.first

    def rows(self, offset: Tensor) -> Tensor:
        """Returns the row of the table for offsets j − i of any shape, clamped to its ends."""
        return (offset - self.start).clamp(0, self.table.shape[1] - 1)

    def shapes(self, sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
        if self.table.ndim > 1 and self.table.shape[1] == 0:
            raise InputError(f"table of {type(self).__name__} has no rows; give at least one offset")
        rows = self.table.shape[1] if self.table.ndim > 1 else 1
        return {"table": (sizes["H"], rows, sizes["D"])}

    def dense(self, query: Tensor, key: Tensor, offset: Tensor) -> Tensor:
        """Returns the additive term of the unscaled (`content`) or scaled scores, `(B, H, T, S)`, for `(B or 1, T, S)`
        offsets."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class ContentToPosition(OffsetTerm):
    """`(q_i + v)·K^r[j − i]`: DeBERTa's content-to-position (He et al. 2020, arXiv 2006.03654, equation 4, v = 0), and
    terms (b) and (d) of Transformer-XL (Dai et al. 2019, arXiv 1901.02860, §3.3).

    Transformer-XL's own scores are `attend(query + u, …, terms=[ContentToPosition(table, query_bias=v - u)])`.

    Attributes:
        table: `(H, R, D)`, projected keys of positions (K^r).
        query_bias: `(H, D)`, added to the queries of each head in this term only.
    """

    query_bias: Tensor | None = None
    tensor_names = ("table", "query_bias")

    def shapes(self, sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
        return super().shapes(sizes) | {"query_bias": (sizes["H"], sizes["D"])}

    def dense(self, query: Tensor, key: Tensor, offset: Tensor) -> Tensor:
        query = query.to(torch.promote_types(query.dtype, torch.float32))
        if self.query_bias is not None:
            query = query + self.query_bias[:, None].to(query.dtype)
        return content_scores(query, self.table, self.rows(offset))


@dataclass(frozen=True, eq=False)
class PositionToContent(OffsetTerm):
    """`k_j·Q^r[j − i]`, the third term of DeBERTa's equation 4, with offset j − i from query to key as in all terms
    here.

    Attributes:
        table: `(H, R, D)`, projected queries of positions (Q^r).
    """

    def dense(self, query: Tensor, key: Tensor, offset: Tensor) -> Tensor:
        return content_scores(key, self.table, self.rows(offset).transpose(-1, -2)).transpose(-1, -2)


@dataclass(frozen=True, eq=False)
class PositionBias(OffsetTerm):
    """A number for each head and offset, added to the scaled scores (T5: Raffel et al. 2020, arXiv 1910.10683, §2.1).

    Attributes:
        table: `(H, R)`; T5's buckets become offsets by `buckets[:, bucket_of_offset]`.
    """

    content: ClassVar[bool] = False

    def shapes(self, sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
        return {"table": super().shapes(sizes)["table"][:2]}

    def dense(self, query: Tensor, key: Tensor, offset: Tensor) -> Tensor:
        return self.table[:, self.rows(offset)].transpose(0, 1)


@dataclass(frozen=True, eq=False)
class SoftSpan(Term):
    """An adaptive attention span: `log m` with `m = clamp((R + z - |j - i|) / R, 0, 1)`, added to the scaled scores.

    The learned span z limits how far queries see, with a soft end of R positions, beyond which keys are hidden
    (Sukhbaatar et al. 2019, arXiv 1905.07799, equations 4 and 5, where m is a factor that is normalised afterwards,
    which is equivalent). Pairs with a token of `globals` are not changed.

    Attributes:
        span: `(B or 1, H, T or 1)`, z in positions, for each head and query, or for all queries.
        ramp: R, at least 1.
    """

    span: Tensor
    ramp: int
    tensor_names = ("span",)
    head_axis = 1
    has_rows = True
    globals: ClassVar[bool] = False

    def shapes(self, sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
        if isinstance(self.ramp, bool) or not isinstance(self.ramp, int) or self.ramp < 1:
            raise InputError(f"ramp={self.ramp!r} of SoftSpan must be a whole number of at least 1")
        full = tuple(sizes[name] for name in "BHT")
        shape = self.span.shape
        if len(shape) != 3 or shape[0] not in (1, full[0]) or shape[1] != full[1] or shape[2] not in (1, full[2]):
            raise InputError(f"span of SoftSpan has shape {tuple(shape)}; give {full}, or 1 for rows or queries")
        return {}

    def shares(self, span: Tensor, offset: Tensor) -> Tensor:
        """Returns `(R + z - |offset|) / R`, m before it is clamped, in float32 or wider."""
        wide = torch.promote_types(span.dtype, torch.float32)
        return (span.to(wide) + self.ramp - offset.abs()) / self.ramp

    def dense(self, query: Tensor, key: Tensor, offset: Tensor) -> Tensor:
        """Returns the additive term of the scaled scores, `(B or 1, H, T, S)`, for `(B or 1, T, S)` offsets."""
        shares = self.shares(self.span[..., None], offset[:, None])
        hidden = shares <= 0  # the logarithm is never evaluated here, so that its gradient is not either
        return shares.masked_fill(hidden | (shares > 1), 1.0).log().masked_fill(hidden, -torch.inf)


KINDS: dict[str, type[Term]] = {
    "bias": Bias,
    "global_key_bias": GlobalKeyBias,
    "content_to_position": ContentToPosition,
    "position_to_content": PositionToContent,
    "position_bias": PositionBias,
    "soft_span": SoftSpan,
}


def content_scores(content: Tensor, table: Tensor, row: Tensor) -> Tensor:
    """Computes products of tokens and rows of a table, in float32 or wider: `(B, H, T, S)`.

    Args:
        content: `(B, H, T, D)`, queries or keys.
        table: `(H, R, D)`.
        row: `(B or 1, T, S)` or `(T, S)`, the row that each pair reads.
    """
    wide = torch.promote_types(content.dtype, torch.float32)
    content, table = content.to(wide), table.to(wide)
    row = row if row.ndim == 3 else row[None]
    with torch.autocast(content.device.type, enabled=False):
        # A compiled program cannot branch on its dynamic lengths.
        if torch.compiler.is_compiling() or table.shape[1] <= row.shape[2] * table.shape[2]:
            scores = content @ table.transpose(-1, -2)
            return scores.gather(-1, row[:, None].expand(*content.shape[:3], row.shape[2]))
        # A longer table is gathered by pair, because (T, R) may be as large as all pairs of tokens.
        return (table[:, row].transpose(0, 1) @ content[..., None])[..., 0]


def of_heads(tensor: Tensor, heads: list[int] | slice, axis: int) -> tuple[list[int] | slice, ...]:
    """Returns an index of the part of a tensor for some heads; the whole axis if it has size 1."""
    return (slice(None),) * axis + ((slice(None) if tensor.shape[axis] == 1 else heads),)


def pack(terms: Sequence[Term]) -> tuple[list[Tensor], str, list[int]]:
    """Converts terms to operator arguments: tensors, kinds as text, and a number of each: the offset of the first row,
    the length of a ramp, or 0."""
    tensors = [tensor for term in terms for tensor in term.tensors]
    names = [next(name for name, kind in KINDS.items() if kind is type(term)) for term in terms]
    counted = [f"{name}:{len(term.tensors)}" for name, term in zip(names, terms, strict=True)]
    numbers = [
        term.start if isinstance(term, OffsetTerm) else term.ramp if isinstance(term, SoftSpan) else 0 for term in terms
    ]
    return tensors, " ".join(counted), numbers


def unpack(tensors: Sequence[Tensor], kinds: str, numbers: Sequence[int]) -> tuple[Term, ...]:
    """Converts operator arguments of `pack` to terms. Their `globals` is False: the scores of global tokens are passed
    as a bias."""
    terms, place = [], 0
    for kind, number in zip(kinds.split(), numbers, strict=True):
        name, count = kind.split(":")
        fields = dict(zip(KINDS[name].tensor_names, tensors[place:], strict=False))
        fields = dict(list(fields.items())[: int(count)])
        options: dict[str, int | bool] = {} if KINDS[name] in (GlobalKeyBias, SoftSpan) else {"globals": False}
        options |= {"first": number} if issubclass(KINDS[name], OffsetTerm) else {}
        options |= {"ramp": int(number)} if KINDS[name] is SoftSpan else {}
        terms.append(KINDS[name](**fields, **options))
        place += int(count)
    return tuple(terms)
