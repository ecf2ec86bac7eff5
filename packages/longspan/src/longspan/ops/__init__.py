"""Tensors in, tensors out, no parameters: each operator has a dense reference and one or more fast paths."""

from longspan.ops.attend import attend

__all__ = ["attend"]
