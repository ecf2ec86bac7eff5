"""Loading of models and tokenizers, for inference, training, evaluation and the command line.

Word-level language models such as Transformer-XL have a tokenizer of whole words, built from a word list.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from longspan.checkpoints.folder import check_tokenizer_files
from longspan.checkpoints.sources import check_path, check_reachable, load_any
from longspan.devices import check_place, placed
from longspan.errors import InputError, one_sentence
from longspan.model_files import LARGEST_JSON, check_file, read_json
from longspan.models import LongspanPreTrainedModel
from longspan.progress import without_loading_notes
from longspan.settings import show

END, UNKNOWN, PADDING = "<eos>", "<unk>", "<pad>"
LISTS = ("vocab.txt", "vocab.json")
UNKNOWN_TO_TRANSFORMERS = ("transfo-xl",)
"""`model_type` of word-level models for which transformers 5 has no class."""
PICKLES = ("vocab.pkl", "vocab.bin", "vocab.pt", "cache.pt")


def line_ends(*before: Any) -> Any:
    """Returns a normaliser that ends every line with `<eos>`, after others."""
    from tokenizers import normalizers

    return normalizers.Sequence([*before, normalizers.Replace("\n", f" {END} ")])


def word_tokenizer(words: list[str], *, normalizer: Any = None) -> Any:
    """Returns a word-level tokenizer of transformers whose ids are indices into the list.

    Raises:
        InputError: the list contains a word twice, or lacks `<unk>` or `<eos>`.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate(words)}
    if len(ids) != len(words):
        twice = next(word for number, word in enumerate(words) if ids[word] != number)
        raise InputError(f"the list of words has {show(twice)} twice; give every word once, in the order of their ids")
    for name in (UNKNOWN, END):
        if name not in ids:
            raise InputError(f"the list of words has no {name}, which replaces unknown words or ends a line; add it")
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizer or line_ends()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        eos_token=END,
        pad_token=PADDING if PADDING in ids else END,
        model_max_length=1_000_000,
    )


def word_list(directory: Path) -> list[str] | None:
    """Returns the words of a model folder in the order of their ids; `None` if there is no list.

    Raises:
        InputError: there is only a pickle, or the list is damaged.
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
    """Returns the words of a JSON file: a list, or a mapping to the ids 0, 1, 2, …"""
    if check_file(file) > LARGEST_JSON:
        raise InputError(f"'{file}' is too large for a list of words; give a list or a mapping of words to ids")
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"'{file}' is damaged: it is not valid JSON; write the words again") from error
    if isinstance(entries, dict):
        if sorted(entries.values(), key=str) != sorted(range(len(entries)), key=str):
            raise InputError(f"'{file}' does not give its words the ids 0 to {len(entries) - 1}; give each id once")
        entries = sorted(entries, key=lambda word: entries[word])
    if not isinstance(entries, list) or not all(isinstance(word, str) and word for word in entries):
        raise InputError(f"'{file}' is no list of words; give a list or a mapping of words to ids")
    return entries


FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "*.model", *PICKLES)
"""File patterns of tokenizers."""


def load_model(source: str | Path) -> LongspanPreTrainedModel:
    """Loads a Longspan model, or a published transformers model converted to one; errors as in `from_transformers`.

    `longspan.checkpoints.sources.load_any` does not convert published models.
    """
    loaded = load_any(source)
    if isinstance(loaded, LongspanPreTrainedModel):
        return loaded
    from longspan.checkpoints.conversion import from_transformers

    return from_transformers(loaded)


def load_pair(source: str | Path, device: str | None = None, dtype: str | None = None) -> tuple[Any, Any]:
    """Loads a model in evaluation mode with `load_model`, and its tokenizer.

    Args:
        source: a folder or a Hub name.
        device: a PyTorch device name; None is the CPU.
        dtype: dtype of the weights; None is float32.

    Raises:
        InputError: as `load_model`, `torch_device` and `torch_dtype`.
    """
    check_place(device, dtype)  # before the weights are loaded, which takes a while
    model = load_model(source)
    tokenizer = load_tokenizer(source)
    check_tokenizer(tokenizer, model.config)
    return placed(model.float(), device, dtype).eval(), tokenizer


def has_tokenizer(directory: Path) -> bool:
    """Whether a folder has tokenizer files; without any, transformers creates a tokenizer without vocabulary."""
    return any(True for name in FILES for _ in directory.glob(name))


def load_tokenizer(source: str | Path, **options: Any) -> Any:
    """Loads the tokenizer of a folder or a Hub name; `options` go to `AutoTokenizer.from_pretrained`.

    Raises:
        InputError: there is none, its files are damaged, or it cannot encode a word.
    """
    directory = Path(os.path.expanduser(source))
    check_path(directory, "tokenizer")
    if directory.is_dir():
        if not has_tokenizer(directory):
            raise InputError(f"{str(source)!r} has no tokenizer.json or other tokenizer file; put the model's there")
        check_tokenizer_files(directory)
        source = directory
    elif directory.exists():
        raise InputError(f"tokenizer '{directory}' is a file; give the directory that holds tokenizer.json")
    else:
        check_reachable(str(source), "tokenizer", "tokenizer_config.json")
    with one_sentence(f"the tokenizer of '{source}' cannot be read"), without_loading_notes():
        tokenizer: Any = _of_words(directory)
        tokenizer = tokenizer or AutoTokenizer.from_pretrained(str(source), trust_remote_code=False, **options)
        highest = max(tokenizer("a word", verbose=False)["input_ids"], default=0)
    if not 0 <= highest < len(tokenizer):
        raise InputError(f"the tokenizer of '{source}' gives token {highest} but has {len(tokenizer)}; it is damaged")
    return tokenizer


def _of_words(directory: Path) -> Any | None:
    """Returns the word-level tokenizer of an architecture that transformers lacks; `None` for others."""
    if not (directory / "config.json").is_file() or (directory / "tokenizer.json").is_file():
        return None
    if read_json(directory / "config.json").get("model_type") not in UNKNOWN_TO_TRANSFORMERS:
        return None
    words = word_list(directory)
    return None if words is None else word_tokenizer(words)


def tokenizer_beside(source: str, config: Any) -> Any | None:
    """Loads the tokenizer of a model folder or Hub name; `None` if a folder has none.

    For a model without token types, the tokenizer does not return them (DeBERTa's would, although transformers' DeBERTa
    ignores them; a DistilBERT folder may contain BERT's tokenizer).
    """
    directory = Path(os.path.expanduser(source))
    if directory.is_dir() and not has_tokenizer(directory):
        return None
    tokenizer = load_tokenizer(source)
    names = tokenizer.model_input_names
    if getattr(config, "type_vocab_size", 0) == 0 and "token_type_ids" in names:
        tokenizer = load_tokenizer(source, model_input_names=[name for name in names if name != "token_type_ids"])
    check_tokenizer(tokenizer, config)
    return tokenizer


def check_tokenizer(tokenizer: Any, config: Any) -> None:
    """Raises `InputError` if a tokenizer does not match the model of `config` (any object with `vocab_size`).

    A model may have somewhat more rows than the tokenizer has entries (vocabularies are padded to round sizes), at most
    """
    entries, rows = len(tokenizer), int(config.vocab_size)
    if entries > rows or rows - entries > 128 + rows // 10:
        raise InputError(
            f"the tokenizer has {entries} entries but the model's vocabulary {rows}; use the tokenizer of this model"
        )
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        ours, theirs = getattr(tokenizer, name, None), getattr(config, name, None)
        if isinstance(ours, int) and isinstance(theirs, int) and ours != theirs:
            raise InputError(
                f"the tokenizer's {name} is {ours} but the model's is {theirs}; use the tokenizer of this model"
            )
