"""Task heads on the encoder, one file each: labels, loss and outputs; their options are in `specs`.

`question_network` and `sentence_network` implement two of them in plain PyTorch, without transformers.
"""

from longspan.models.heads.specs import HEADS, HeadSpec, head_spec

__all__ = ["HEADS", "HeadSpec", "head_spec"]
