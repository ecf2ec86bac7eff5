"""LED: BART whose encoder has Longformer's windows and global projections, and position tables without offset."""

from __future__ import annotations

import logging
from typing import Any

from longspan.checkpoints.architectures import bart
from longspan.checkpoints.architectures.windows import read_windows, write_windows
from longspan.checkpoints.mapping import Architecture, Pairs, alike

logger = logging.getLogger(__name__)

_THEIRS, _OURS = "encoder.layers.{i}.self_attn", "encoder.layers.{i}.attention"
BODY: Pairs = (
    *bart.stack_pairs("encoder"),
    *((f"{_THEIRS}.longformer_self_attn.{name}", f"{_OURS}.{name}") for name in ("query", "key", "value")),
    *(
        (f"{_THEIRS}.longformer_self_attn.{name}_global", f"{_OURS}.global_{name}")
        for name in ("query", "key", "value")
    ),
    (f"{_THEIRS}.output", f"{_OURS}.output"),
    *bart.DECODER,
    ("shared", "encoder.embeddings.token"),
)


def _read(config: Any) -> dict[str, Any]:
    bart.warn_of_layerdrop(config)
    return {"attention": read_windows(config)}


def _write(config: Any) -> dict[str, Any]:
    """The windows; transformers pads inputs to a multiple of the widest, and has no positions for padding either."""
    windows = write_windows(config)
    positions, widest = config.max_position_embeddings, max(windows)
    if past := positions % widest:
        logger.warning(
            "transformers pads LED's inputs to a multiple of the window, here %s, and fails on those of more than "
            "%s tokens for want of positions; lengthen to a multiple, such as %s, to use all %s there",
            f"{widest:,}",
            f"{positions - past:,}",
            f"{positions - past + widest:,}",
            f"{positions:,}",
        )
    return {"attention_window": windows}


LED = Architecture(
    model_type="led",
    prefix="led",
    body=BODY,
    our_body="",
    heads=bart.generation_heads("LED"),
    names=(
        *bart.NAMES,
        ("max_encoder_position_embeddings", "max_position_embeddings"),
        *alike("max_decoder_position_embeddings"),
    ),
    fixed={**bart.FIXED, "position_offset": 0, "scale_embedding": False, "normalization": "post"},
    read=_read,
    write=_write,
)
