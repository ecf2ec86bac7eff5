"""Attention operators on tensors, without parameters: each has a dense reference and one or more fast paths."""

from longspan.ops.attend import attend

__all__ = ["attend"]
