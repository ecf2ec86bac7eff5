"""Published weights in and out, longer models from short ones, and Longspan's attention inside transformers' models.

Importing this package makes `attn_implementation="longspan"` and our model classes known to transformers.
"""

import longspan.models.registration  # noqa: F401
from longspan.checkpoints.attention_interface import register, use_attention
from longspan.checkpoints.frozen import train_new_positions_only
from longspan.checkpoints.incoming import from_transformers
from longspan.checkpoints.lengthening import lengthen
from longspan.checkpoints.outgoing import to_transformers
from longspan.checkpoints.report import LengthenReport

__all__ = [
    "LengthenReport",
    "from_transformers",
    "lengthen",
    "to_transformers",
    "train_new_positions_only",
    "use_attention",
]

register()
