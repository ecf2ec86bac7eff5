"""What the tests of `longspan summarize` share: a short text, the command, and folders of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longspan.cli import main

TEXT = (
    "Marmots live in the mountains. They sleep through the winter in deep burrows. A whistle warns of danger.\n\n"
    "Eagles are their main enemies. Young marmots leave the burrow in July. People have hunted them for fat.\n\n"
    "Today most of the colonies are protected. Climate change makes the snow melt earlier every year."
)


def run(*arguments: object) -> int:
    """`longspan summarize` with these arguments; its exit code."""
    return main(["summarize", *map(str, arguments)])


def write(folder: Path, model: Any, tokenizer: Any) -> Path:
    """Save a model and its tokenizer."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
