"""Writing a lengthened model with its tokenizer, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from longspan.checkpoints.tokenizers import has_tokenizer, open_tokenizer
from longspan.errors import InputError
from longspan.files import whole_folder
from longspan.progress import without_file_bars


def load_tokenizer(source: str, config: Any) -> Any | None:
    """The tokenizer that lies beside a model, checked against the model's configuration; `None` when there is none.

    For a model without token types it makes none (DeBERTa's would, and transformers' DeBERTa ignores them; beside a
    DistilBERT may lie BERT's).

    Raises:
        InputError: it cannot be read, knows more tokens than the model has embeddings, or pads with another token.
    """
    directory = Path(os.path.expanduser(source))
    if directory.is_dir() and not has_tokenizer(directory):
        return None
    tokenizer = open_tokenizer(source)
    names = tokenizer.model_input_names
    if getattr(config, "type_vocab_size", 0) == 0 and "token_type_ids" in names:
        tokenizer = open_tokenizer(source, model_input_names=[name for name in names if name != "token_type_ids"])
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"the tokenizer of '{source}' has {len(tokenizer)} tokens but the model embeds {config.vocab_size}; "
            "put the tokenizer that belongs to the model beside it"
        )
    if None not in (tokenizer.pad_token_id, config.pad_token_id) and tokenizer.pad_token_id != config.pad_token_id:
        raise InputError(
            f"the tokenizer of '{source}' pads with token {tokenizer.pad_token_id} but the model expects "
            f"{config.pad_token_id}; put the tokenizer that belongs to the model beside it"
        )
    return tokenizer


def save_whole(directory: Path, model: PreTrainedModel, tokenizer: Any | None) -> None:
    """Write model and tokenizer into a new or empty folder: whole or not at all, see `whole_folder`."""
    with whole_folder(directory) as partial:
        with without_file_bars():
            model.save_pretrained(partial)
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)
