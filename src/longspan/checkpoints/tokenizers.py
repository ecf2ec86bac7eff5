"""Opening the tokenizer beside a model: its files are looked at first, no remote code, and it must work once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from longspan.checkpoints.folder import check_tokenizer_files
from longspan.checkpoints.hub import check_reachable
from longspan.errors import InputError, one_sentence
from longspan.progress import without_loading_notes

FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "*.model")
"""What marks a folder with a tokenizer."""


def has_tokenizer(directory: Path) -> bool:
    """Whether a folder has files of a tokenizer; without any, transformers makes one with no vocabulary."""
    return any(True for name in FILES for _ in directory.glob(name))


def open_tokenizer(source: str | Path, **options: Any) -> Any:
    """The tokenizer in a folder, or of a Hub name; `options` go to `AutoTokenizer.from_pretrained`.

    Raises:
        InputError: there is none, its files are damaged, or it cannot encode a word.
    """
    directory = Path(os.path.expanduser(source))
    if directory.is_dir():
        if not has_tokenizer(directory):
            raise InputError(f"{str(source)!r} has no tokenizer.json or other tokenizer file; put the model's there")
        check_tokenizer_files(directory)
        source = directory
    elif not directory.exists():
        check_reachable(str(source), "tokenizer", "tokenizer_config.json")
    with one_sentence(f"the tokenizer of '{source}' cannot be read"), without_loading_notes():
        tokenizer: Any = AutoTokenizer.from_pretrained(str(source), trust_remote_code=False, **options)
        highest = max(tokenizer("a word", verbose=False)["input_ids"], default=0)
    if not 0 <= highest < len(tokenizer):
        raise InputError(f"the tokenizer of '{source}' gives token {highest} but has {len(tokenizer)}; it is damaged")
    return tokenizer
