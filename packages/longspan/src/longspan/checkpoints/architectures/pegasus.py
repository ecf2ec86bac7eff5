"""Pegasus and Marian: encoder and decoder with sinusoidal positions, all sines before all cosines; Pegasus normalises
before each sublayer, Marian after it. Sinusoids have no longest input, so lengthening only changes the
configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from longspan.checkpoints.architectures import bart
from longspan.checkpoints.mapping import Architecture, Head, alike
from longspan.errors import InputError
from longspan.ops.sinusoids import halved_sinusoids

TABLES = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")
"""Tables of sinusoids, which files may contain."""


def _read(config: Any) -> dict[str, Any]:
    bart.warn_of_layerdrop(config)
    if not getattr(config, "share_encoder_decoder_embeddings", True) or (
        getattr(config, "decoder_vocab_size", None) not in (None, config.vocab_size)
    ):
        raise InputError(
            f"this {config.model_type} checkpoint has different vocabularies for encoder and decoder, "
            "and Longspan's models have one for both; give one with share_encoder_decoder_embeddings=true"
        )
    return {"max_decoder_position_embeddings": config.max_position_embeddings}


def _without_tables(state: Mapping[str, Tensor], config: Any) -> Mapping[str, Tensor]:
    """Returns their tensors without the tables of sinusoids, which are computed.

    Raises:
        InputError: a table holds something else.
    """
    tables = {name for name in state if name.endswith(TABLES)}
    for name in tables:
        table = state[name].float()
        expected = halved_sinusoids(torch.arange(len(table), device=table.device), table.shape[1])
        if not torch.allclose(table, expected, atol=1e-2):  # files may be in half precision
            raise InputError(
                f"{name} does not hold the sinusoids of {config.model_type}, which are computed here; give a "
                "checkpoint whose positions were not trained"
            )
    return {name: tensor for name, tensor in state.items() if name not in tables}


def _architecture(model_type: str, heads: dict[str, Head], normalization: str) -> Architecture:
    return Architecture(
        model_type=model_type,
        prefix="model",
        body=bart.BODY,
        our_body="",
        heads=heads,
        names=bart.NAMES + alike("max_position_embeddings", "scale_embedding"),
        fixed={
            **bart.FIXED,
            "position_embedding": "sinusoidal",
            "sinusoids": "halves",
            "position_offset": 0,
            "embedding_norm": False,
            "attention": "full",
            "normalization": normalization,
        },
        read=_read,
        unpack=_without_tables,
    )


PEGASUS = _architecture("pegasus", bart.generation_heads("Pegasus"), "pre")
MARIAN = _architecture(
    "marian",
    {
        "MarianMTModel": Head("LongspanForConditionalGeneration", bart.GENERATION),
        "MarianModel": Head("LongspanForConditionalGeneration", fresh=("final_logits_bias",)),
    },
    "post",
)
