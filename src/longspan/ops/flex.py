"""FlexAttention on CUDA: placeholder until the block tables are wired."""

from torch import Tensor


def flex_serves(query: Tensor, bias: Tensor | None) -> bool:
    """Whether FlexAttention can serve such a call."""
    return False
