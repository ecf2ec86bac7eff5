"""The attention operator: its arguments, the table of its backends, the dense reference, and FlexAttention."""

from longspan.ops.attend.door import attend

__all__ = ["attend"]
