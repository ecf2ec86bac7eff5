"""Tiny random checkpoints as published ones lie on disk, made on the spot: what recipes start from in a trial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Maker = Callable[[int], Any]
"""The size of a vocabulary → a random model of transformers."""


def _bart(entries: int) -> Any:
    """4 + 2 layers, 32 wide, 256 positions."""
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=entries,
        d_model=32,
        encoder_layers=4,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=256,
    )
    return BartForConditionalGeneration(config)


def _roberta(entries: int) -> Any:
    """2 layers, 32 wide, 64 positions behind the two reserved ones."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(
        vocab_size=entries,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=66,
        type_vocab_size=1,
    )
    return RobertaForMaskedLM(config)


RANDOM: dict[str, Maker] = {"random-bart": _bart, "random-roberta": _roberta}
"""`model.from: random-bart`, and so on: a vocabulary from the training rows comes with it."""


def write_random(name: str, folder: Path, tokenizer: Any, seed: int) -> Path:
    """Save one of `RANDOM` and `tokenizer`, as published ones lie on disk."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        RANDOM[name](len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
