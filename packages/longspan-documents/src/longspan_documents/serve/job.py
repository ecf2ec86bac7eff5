"""A job: what is to be done, how far it is, and what came of it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

State = Literal["waiting", "running", "done", "failed", "cancelled"]


@dataclass(eq=False)
class Job:
    """A piece of work.

    Attributes:
        kind: the name of a method of `longspan_documents.serve.worker.JobRunner`.
        arguments: of that method; dropped when the job is over.
        characters: of all that is to be read, about.
        state: where it is.
        progress: from 0 to 1, about.
        doing: what is done just now, for people.
        result: of one that is done, a file of JSON.
        size: bytes of that file.
        error: one sentence, of one that failed or was cancelled.
        status: of HTTP, for the error.
    """

    kind: str
    arguments: dict[str, Any]
    characters: int = 0
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    state: State = "waiting"
    progress: float = 0.0
    doing: str = "Waiting"
    result: Path | None = None
    size: int = 0
    error: str | None = None
    status: int = 200
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def over(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in ("done", "failed", "cancelled")

    def change(self, **fields: Any) -> None:
        """Set some attributes, and wake whoever follows; a job that is over stays as it is."""
        if not self.over:
            for name, value in fields.items():
                setattr(self, name, value)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def changes(self) -> AsyncIterator[None]:
        """Gives once at once, and then after every change until the job is over."""
        while True:
            changed = self._changed
            yield
            if self.over:
                return
            await changed.wait()

    async def finished(self) -> None:
        """Returns when the job is over."""
        async for _ in self.changes():
            pass
