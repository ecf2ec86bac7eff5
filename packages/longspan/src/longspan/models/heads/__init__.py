"""Task heads on the encoder, one file each: labels, loss and outputs; what they can be told stands in `specs`.

`question_network` and `sentence_network` are what two of them have in plain PyTorch, without transformers.
"""

from longspan.models.heads.specs import HEADS, HeadSpec, head_spec

__all__ = ["HEADS", "HeadSpec", "head_spec"]
