"""How many there are of something, in words."""

from __future__ import annotations


def counted(number: int, one: str, several: str | None = None) -> str:
    """A count with its noun: "1 word", "2,300 words"; `several` is the plural where an s does not make it."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
