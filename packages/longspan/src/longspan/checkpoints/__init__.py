"""Published weights in and out, lengthening of models, and Longspan's attention inside transformers' models.

Importing this package registers `attn_implementation="longspan"` and our model classes with transformers. Functions
that change or convert models are imported lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import longspan.ops.decompositions  # noqa: F401
from longspan.checkpoints.attention_interface import use_attention
from longspan.checkpoints.tuning import hold_old_rows, train_new_positions_only
from longspan.imports import late_names
from longspan.models import tell_transformers

if TYPE_CHECKING:
    from longspan.checkpoints.conversion import from_transformers, to_transformers
    from longspan.checkpoints.decomposing import decompose
    from longspan.checkpoints.lengthening.lengthen import lengthen
    from longspan.checkpoints.lengthening.parity import LengthenReport
    from longspan.checkpoints.onnx_export import to_onnx
    from longspan.checkpoints.plain_folders import save_published

__all__ = [
    "LengthenReport",
    "decompose",
    "from_transformers",
    "hold_old_rows",
    "lengthen",
    "save_published",
    "to_onnx",
    "to_transformers",
    "train_new_positions_only",
    "use_attention",
]

tell_transformers()

__getattr__ = late_names(
    __name__,
    (
        "longspan.checkpoints.conversion:from_transformers",
        "longspan.checkpoints.conversion:to_transformers",
        "longspan.checkpoints.decomposing:decompose",
        "longspan.checkpoints.lengthening.lengthen:lengthen",
        "longspan.checkpoints.lengthening.parity:LengthenReport",
        "longspan.checkpoints.onnx_export:to_onnx",
        "longspan.checkpoints.plain_folders:save_published",
    ),
)


def __dir__() -> list[str]:
    return sorted(__all__)
