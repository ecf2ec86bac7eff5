"""Published weights in and out, longer models from short ones, and Longspan's attention inside transformers' models."""

from longspan.checkpoints.incoming import from_transformers
from longspan.checkpoints.outgoing import to_transformers

__all__ = ["from_transformers", "to_transformers"]
