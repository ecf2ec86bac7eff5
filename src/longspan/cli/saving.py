"""Writing pictures of texts, whose characters no installed font may have."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from longspan.cli.terminal import say

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_with_note(figure: "Figure", picture: Path) -> None:
    """Save a picture; characters that no font has are said in one line on stderr."""
    from longspan.pictures.patterns import save_picture

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save_picture(figure, picture)
    # matplotlib warns once for each character that no font has; one line says the same.
    missing = [warning for warning in caught if str(warning.message).startswith("Glyph ")]
    if missing:
        say(f"note: {picture}: no installed font has all characters of this text; they show as boxes", error=True)
    for other in caught:
        if other not in missing:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
