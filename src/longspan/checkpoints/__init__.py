"""Published weights in and out, longer models from short ones, and Longspan's attention inside transformers' models.

Importing this package makes `attn_implementation="longspan"` and our model classes known to transformers.
"""

import longspan.models.registration
import longspan.ops.decompositions  # noqa: F401
from longspan.checkpoints.attention_interface import use_attention
from longspan.checkpoints.conversion import from_transformers, to_transformers
from longspan.checkpoints.decomposing import decompose
from longspan.checkpoints.lengthening.lengthen import lengthen
from longspan.checkpoints.lengthening.parity import LengthenReport
from longspan.checkpoints.onnx_export import to_onnx
from longspan.checkpoints.plain_folders import save_published
from longspan.checkpoints.tuning import hold_old_rows, train_new_positions_only

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
