"""Opening a model and its tokenizer, for whoever needs them: inference, training, evaluation, the command line.

Files are looked at first, no code of others runs, and a tokenizer must work once and belong to its model.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from longspan.checkpoints.folder import check_tokenizer_files, read_json
from longspan.checkpoints.hub import check_reachable
from longspan.checkpoints.incoming import from_transformers
from longspan.checkpoints.sources import load_any
from longspan.checkpoints.word_lists import PICKLES, UNKNOWN_TO_TRANSFORMERS, word_list, word_tokenizer
from longspan.errors import InputError, one_sentence
from longspan.models import LongspanPreTrainedModel
from longspan.progress import without_loading_notes

FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "*.model", *PICKLES)
"""What marks a folder with a tokenizer."""


def load_model(source: str | Path) -> LongspanPreTrainedModel:
    """A Longspan model as it is, or a published one of transformers turned into one; errors as in `from_transformers`.

    `longspan.checkpoints.sources.load_any` leaves a published one as it is.
    """
    loaded = load_any(source)
    return loaded if isinstance(loaded, LongspanPreTrainedModel) else from_transformers(loaded)


def load_pair(source: str | Path) -> tuple[Any, Any]:
    """A model in float32 and evaluation mode, as `load_model` gives it, and the tokenizer that belongs to it."""
    model = load_model(source)
    tokenizer = load_tokenizer(source)
    check_tokenizer(tokenizer, model.config)
    return model.float().eval(), tokenizer


def has_tokenizer(directory: Path) -> bool:
    """Whether a folder has files of a tokenizer; without any, transformers makes one with no vocabulary."""
    return any(True for name in FILES for _ in directory.glob(name))


def load_tokenizer(source: str | Path, **options: Any) -> Any:
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
        tokenizer: Any = _of_words(directory)
        tokenizer = tokenizer or AutoTokenizer.from_pretrained(str(source), trust_remote_code=False, **options)
        highest = max(tokenizer("a word", verbose=False)["input_ids"], default=0)
    if not 0 <= highest < len(tokenizer):
        raise InputError(f"the tokenizer of '{source}' gives token {highest} but has {len(tokenizer)}; it is damaged")
    return tokenizer


def _of_words(directory: Path) -> Any | None:
    """The tokenizer of a model of whole words, whose architecture transformers does not know; `None` for others."""
    if not (directory / "config.json").is_file() or (directory / "tokenizer.json").is_file():
        return None
    if read_json(directory / "config.json").get("model_type") not in UNKNOWN_TO_TRANSFORMERS:
        return None
    words = word_list(directory)
    return None if words is None else word_tokenizer(words)


def tokenizer_beside(source: str, config: Any) -> Any | None:
    """The tokenizer that lies beside a model and belongs to it; `None` where a folder has none.

    For a model without token types it makes none (DeBERTa's would, and transformers' DeBERTa ignores them; beside a
    DistilBERT may lie BERT's).
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
    """Refuse a tokenizer that cannot belong to the model of `config` (any object with `vocab_size`).

    A model may have a few rows more than the tokenizer has entries (vocabularies are padded to round sizes); it has no
    fewer, and not a tenth more. The special tokens that both name must agree.

    Raises:
        InputError: naming the two numbers that disagree.
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
