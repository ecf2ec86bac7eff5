"""What to do with a corrupt record in a big file: stop there, or count it and go on."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from longspan.errors import InputError

logger = logging.getLogger(__name__)


def check_on_error(on_error: str) -> None:
    """Raise `InputError` unless it is "raise" or "skip"."""
    if on_error not in ("raise", "skip"):
        raise InputError(f"on_error={on_error!r} is unknown; choose 'raise' or 'skip'")


@dataclass
class Skipped:
    """The corrupt records of one file: raised at once, or counted when `on_error` is "skip"."""

    place: str
    on_error: str = "raise"
    count: int = 0
    first: str = ""

    def add(self, line: int, error: InputError) -> None:
        """Raise the error, which names the line itself; or count it and remember the first."""
        if self.on_error == "raise":
            raise error
        self.count += 1
        self.first = self.first or str(error)

    def with_remedy(self, sentence: str) -> str:
        """A sentence that says what is wrong with a record, with what else could be done where it stops the reading."""
        return sentence if self.on_error == "skip" else f"{sentence} (on_error: skip passes over such records)"

    def report(self) -> None:
        """Say in the log how many records were passed over, if any were."""
        if self.count:
            records = "1 corrupt record was" if self.count == 1 else f"{self.count:,} corrupt records were"
            logger.warning("%s: %s skipped; the first: %s", self.place, records, self.first)
