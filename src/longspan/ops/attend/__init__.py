"""One attention operator: its door, the call that every backend takes, the dense reference, and FlexAttention."""

from longspan.ops.attend.door import attend

__all__ = ["attend"]
