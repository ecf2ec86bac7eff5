"""Tiny random checkpoints as published ones lie on disk, made on the spot: what recipes start from in a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

BART = {"d_model": 32, "decoder_layers": 2, "encoder_layers": 4, "max_position_embeddings": 256}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
ROBERTA = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
ROBERTA |= {"max_position_embeddings": 66, "type_vocab_size": 1}
RANDOM: dict[str, tuple[str, dict[str, int]]] = {
    "random-bart": ("BartForConditionalGeneration", BART),
    "random-roberta": ("RobertaForMaskedLM", ROBERTA),
}
"""`model.from: random-bart`, and so on: a class of transformers and its sizes; the vocabulary is the rows'."""


def write_random(name: str, folder: Path, tokenizer: Any, seed: int) -> Path:
    """Save one of `RANDOM` and `tokenizer`, as published ones lie on disk."""
    import transformers

    kind, sizes = RANDOM[name]
    model_class = getattr(transformers, kind)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model_class(model_class.config_class(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
