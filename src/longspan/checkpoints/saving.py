"""Writing a lengthened model with its tokenizer, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from longspan.files import whole_folder
from longspan.progress import without_file_bars


def save_whole(directory: Path, model: PreTrainedModel, tokenizer: Any | None) -> None:
    """Write model and tokenizer into a new or empty folder: whole or not at all, see `whole_folder`."""
    with whole_folder(directory) as partial:
        with without_file_bars():
            model.save_pretrained(partial)
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)
