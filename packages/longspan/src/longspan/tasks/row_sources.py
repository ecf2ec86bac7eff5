"""Sources of rows that are located but not read: they are streamed when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any, ClassVar, Self

from longspan.data.sources import Kind, find_source
from longspan.tasks.base import RowStream


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """Base class of one data set, file or folder; subclasses define the kind of data, and how it is read.

    Attributes:
        source: a name or a path.
        split: name of the part.
        limit: maximal number of rows.
        on_error: "skip" skips corrupt rows, "raise" stops at the first.
    """

    kind: ClassVar[Kind[Any]]

    source: str
    split: str
    limit: int | None = None
    on_error: str = "raise"

    @classmethod
    def located(cls, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> list[Self]:
        """Returns the source, or none for a limit of 0; an unknown name or split raises `InputError`."""
        most = None if limit is None else max(limit, 0)
        row_source = cls(source=source, split=split, limit=most, on_error=on_error)
        row_source.rows()
        return [] if most == 0 else [row_source]

    def rows(self) -> Iterator[Any]:
        """Yields its rows, at most `limit`; raises `InputError` for an unknown source or split when it is called."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Returns the source's identity: its name and the sizes of its files."""
        files = find_source(self.source, self.split, self.kind).files
        return asdict(self) | {"files": [[file.name, file.stat().st_size] for file in files]}


def streamed_rows(
    read: Callable[..., Iterable[Any]],
    features: Callable[[Any], dict[str, Any]],
    sources: Sequence[str],
    split: str,
    limit: int | None,
    on_error: str,
) -> RowStream:
    """Returns the rows of sources in order, at most `limit`, as a stream.

    Args:
        read: returns an iterator of the rows of a source, with the arguments of `Task.read`; an unknown one raises
            `InputError` when it is called.
        features: of a row.
        sources, split, limit, on_error: as in `Task.stream`.
    """

    def opened() -> Iterator[Any]:
        each = [read(source, split, limit, on_error=on_error) for source in sources]
        return islice(chain.from_iterable(each), limit)

    opened()
    return RowStream(rows=opened, features=lambda row, _: features(row))


def rows_of(sources: Sequence[Any]) -> Iterator[Any]:
    """Yields the rows of sources in order, at most the first one's limit; rows among the sources are
    yielded unchanged.
    """
    each: Iterable[Iterable[Any]] = (source.rows() if isinstance(source, RowSource) else [source] for source in sources)
    limit = next((source.limit for source in sources if isinstance(source, RowSource)), None)
    return islice(chain.from_iterable(each), limit)


def identities_of(sources: Sequence[Any]) -> list[Any]:
    """Returns the identities of sources, and of rows among them."""
    return [source.identity() if isinstance(source, RowSource) else source.id for source in sources]
