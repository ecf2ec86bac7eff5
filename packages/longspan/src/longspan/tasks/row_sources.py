"""Sources of rows that are found but not read: they are streamed whenever they are needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any, ClassVar, Self

from longspan.data.sources import Kind, find_source


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """One data set, file or folder; inherit from it with the kind of data, and how it is read.

    Attributes:
        source: a name or a path.
        split: which part.
        limit: stop after so many rows.
        on_error: "skip" passes over corrupt rows, "raise" stops at the first.
    """

    kind: ClassVar[Kind[Any]]

    source: str
    split: str
    limit: int | None = None
    on_error: str = "raise"

    @classmethod
    def located(cls, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> list[Self]:
        """The source, or none where no rows are asked for; an unknown name or split raises `InputError`."""
        most = None if limit is None else max(limit, 0)
        row_source = cls(source=source, split=split, limit=most, on_error=on_error)
        row_source.rows()
        return [] if most == 0 else [row_source]

    def rows(self) -> Iterator[Any]:
        """Its rows, one at a time, at most `limit`; `InputError` for an unknown source or split when it is called."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """What tells it from another source: its name and how large its files are."""
        files = find_source(self.source, self.split, self.kind).files
        return asdict(self) | {"files": [[file.name, file.stat().st_size] for file in files]}


def rows_of(sources: Sequence[Any]) -> Iterator[Any]:
    """The rows of sources in order, at most the first one's limit; rows among them stand for themselves."""
    each: Iterable[Iterable[Any]] = (source.rows() if isinstance(source, RowSource) else [source] for source in sources)
    limit = next((source.limit for source in sources if isinstance(source, RowSource)), None)
    return islice(chain.from_iterable(each), limit)


def identities_of(sources: Sequence[Any]) -> list[Any]:
    """What tells sources, and rows among them, from others."""
    return [source.identity() if isinstance(source, RowSource) else source.id for source in sources]
