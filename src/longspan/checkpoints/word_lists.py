"""Tokenizers of whole words, from a list of them: what word-level language models such as Transformer-XL read.

Text is split at white space, every line ends in `<eos>`, and a word that is not in the list is `<unk>`. The list lies
beside a model as `vocab.txt`, one word per line in the order of their ids, or as `vocab.json`, a list or a mapping of
words to ids. A vocabulary in a pickle is never loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from longspan.checkpoints.folder import LARGEST_JSON, check_file
from longspan.errors import InputError
from longspan.settings import show

END, UNKNOWN, PADDING = "<eos>", "<unk>", "<pad>"
LISTS = ("vocab.txt", "vocab.json")
UNKNOWN_TO_TRANSFORMERS = ("transfo-xl",)
"""`model_type` of the models of whole words for which transformers 5 has no class."""
PICKLES = ("vocab.pkl", "vocab.bin", "vocab.pt", "cache.pt")


def line_ends(*before: Any) -> Any:
    """A normaliser that ends every line in `<eos>`, after others."""
    from tokenizers import normalizers

    return normalizers.Sequence([*before, normalizers.Replace("\n", f" {END} ")])


def word_tokenizer(words: list[str], max_tokens: int = 1_000_000, *, normalizer: Any = None) -> Any:
    """A tokenizer of transformers whose ids are places in the list.

    Raises:
        InputError: the list has a word twice, or lacks `<unk>` or `<eos>`.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate(words)}
    if len(ids) != len(words):
        twice = next(word for number, word in enumerate(words) if ids[word] != number)
        raise InputError(f"the list of words has {show(twice)} twice; give every word once, in the order of their ids")
    for name in (UNKNOWN, END):
        if name not in ids:
            raise InputError(f"the list of words has no {name}, which stands for other words or ends a line; add it")
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizer or line_ends()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        eos_token=END,
        pad_token=PADDING if PADDING in ids else END,
        model_max_length=max_tokens,
    )


def word_list(directory: Path) -> list[str] | None:
    """The words beside a model, in the order of their ids; `None` where there is no list.

    Raises:
        InputError: there is only a pickle; the list is damaged.
    """
    for name in LISTS:
        file = directory / name
        if file.is_file():
            return _lines(file) if name.endswith("txt") else _entries(file)
    for name in PICKLES:
        if (directory / name).is_file():
            raise InputError(
                f"'{directory / name}' is a pickle, which is never loaded because it can run code; put a word list "
                "vocab.txt there instead, with one word per line in the order of their ids"
            )
    return None


def _lines(file: Path) -> list[str]:
    if check_file(file) > LARGEST_JSON:
        raise InputError(f"'{file}' is too large for a list of words; give one word per line")
    try:
        words = file.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"'{file}' is not UTF-8 at byte {error.start}; write it as UTF-8, one word per line") from None
    words = words[:-1] if words[-1] == "" else words
    if "" in words:
        raise InputError(f"'{file}' has no word in line {words.index('') + 1}; give one word per line")
    return words


def _entries(file: Path) -> list[str]:
    """The words of a JSON file: a list, or a mapping to the ids 0, 1, 2, …"""
    if check_file(file) > LARGEST_JSON:
        raise InputError(f"'{file}' is too large for a list of words; give a list or a mapping of words to ids")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"'{file}' is damaged: it is not valid JSON; write the words again") from error
    if isinstance(found, dict):
        if sorted(found.values(), key=str) != sorted(range(len(found)), key=str):
            raise InputError(f"'{file}' does not give its words the ids 0 to {len(found) - 1}; give each id once")
        found = sorted(found, key=lambda word: found[word])
    if not isinstance(found, list) or not all(isinstance(word, str) and word for word in found):
        raise InputError(f"'{file}' is no list of words; give a list or a mapping of words to ids")
    return found
