"""A recipe that trains in a second: two small layers, made-up rows, dropout on, several epochs."""

from __future__ import annotations

from pathlib import Path

import pytest

TINY = """
name: tiny
task: {name: summarization, max_source_tokens: 384, max_target_tokens: 32}
data: {train: synthetic, validation: synthetic, train_rows: 10, validation_rows: 3}
model:
  new:
    hidden_size: 32
    num_hidden_layers: 2
    num_attention_heads: 4
    intermediate_size: 64
    decoder_layers: 1
    dropout: 0.1
    attention_dropout: 0.1
  attention:
    mechanism: poolingformer
    left_tokens: 16
    right_tokens: 16
    pooled_left_tokens: 64
    pooled_right_tokens: 64
    init: normal
  max_tokens: 384
tokenizer: {train: 400}
optimisation: {steps: 12, batch_size: 2, learning_rate: 3e-3, log_every: 1, evaluate_every: 2, warmup_steps: 2}
generation: {beams: 2, max_tokens: 16}
"""


@pytest.fixture
def tiny_recipe(tmp_path: Path) -> Path:
    """The file of the tiny recipe: five steps are one epoch, every second step is saved."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path
