"""T5, mT5, UMT5 and LongT5, which keep transformers' classes: relative position biases, without a longest input.

The encoders of the first three support windows; LongT5 has windows of its own.
"""

from __future__ import annotations

from typing import Any

from longspan.checkpoints.mapping import InPlace
from longspan.errors import InputError


def _radius(config: Any, layer: int) -> int:
    """Returns the tokens to each side of a LongT5 layer's window.

    Raises:
        InputError: the layer also attends to means of all blocks of the text.
    """
    if config.encoder_attention_type != "local":
        raise InputError(
            f"encoder_attention_type={config.encoder_attention_type!r} lets every token of LongT5 see a mean of every "
            f"{config.global_block_size} tokens of the text, whose cost grows with the square of its length, so that "
            "no windows make it longer; it reads on as it is with `longspan summarize --model … --max-source-tokens "
            "16384`, or give a LongT5 of the type 'local', or a T5"
        )
    return config.local_radius


def _table(name: str, **options: Any) -> InPlace:
    classes = (f"{name}ForConditionalGeneration", f"{name}Model")
    return InPlace(classes=classes, mechanism="longformer", length="n_positions", **options)


T5 = _table("T5")
MT5 = _table("MT5")
UMT5 = _table("UMT5")
LONGT5 = _table("LongT5", own_window=_radius, exchanged=False)
