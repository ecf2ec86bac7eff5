"""The block as transformers expects it."""

from __future__ import annotations

from transformers.modeling_layers import GradientCheckpointingLayer

from longspan.stacks.block import Block


class CheckpointedBlock(GradientCheckpointingLayer, Block):
    """A block that transformers can checkpoint, and that its device maps do not split."""
