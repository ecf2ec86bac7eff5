"""`longspan salutations`."""

from pathlib import Path
from typing import Annotated

import typer

from longspan.cli.terminal import say

PANEL = "Documents"


def salutations(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Letters of any kind of file.")],
) -> None:
    """Print to whom each letter is written."""
    from letterbox.letters import salutation

    for file in files:
        say(f"{file}: {salutation(file) or 'nobody'}")
