"""A job: its arguments, progress and result."""

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
    """A job.

    Attributes:
        kind: the name of a method of `longspan_documents.serve.worker.JobRunner`.
        arguments: of that method; deleted when the job ends.
        characters: approximate length of its texts.
        state: waiting, running, done, …
        progress: estimate from 0 to 1.
        doing: the current activity, for display.
        result: JSON file of a finished job.
        size: of that file in bytes.
        error: one sentence, if the job failed or was cancelled.
        status: HTTP status of the error.
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
        """Whether the job has ended."""
        return self.state in ("done", "failed", "cancelled")

    def change(self, **fields: Any) -> None:
        """Set attributes, and notify followers; a job that has ended does not change."""
        if not self.over:
            for name, value in fields.items():
                setattr(self, name, value)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def changes(self) -> AsyncIterator[None]:
        """Yields immediately, and then after every change until the job ends."""
        while True:
            changed = self._changed
            yield
            if self.over:
                return
            await changed.wait()

    async def finished(self) -> None:
        """Returns when the job has ended."""
        async for _ in self.changes():
            pass
