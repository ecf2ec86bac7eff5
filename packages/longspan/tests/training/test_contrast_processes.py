"""Contrastive predictive coding in two processes: each compares the hidden segments of its own batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from forked import forked
from longspan.data.summaries.rows import synthetic_rows
from longspan.models import LongspanForMaskedLM

RECIPE = """
name: tiny
task: {name: masked_lm, max_tokens: 61, summary_tokens: 6, hidden_segments: 0.4, contrast_weight: 0.7}
data: {train: DATA, validation: synthetic, validation_rows: 2}
model:
  new: {hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 24, dropout: 0.0,
    attention_dropout: 0.0, position_embedding: none, init_std: 0.3}
  attention: {mechanism: etc, radius_tokens: 3, clamp_tokens: 2, hard_global_to_long: true}
  max_tokens: 61
tokenizer: {train: 300}
optimisation: {steps: 1, batch_size: 6, micro_batch_size: 3, learning_rate: 1e-3, log_every: 1, evaluate_every: 1}
"""
KEEPING = """
import os, sys
import torch
from safetensors.torch import save_file
from longspan.cli import main
from longspan.training import trainer

def kept(self, model, inputs, *arguments, **options):
    folder, rank, plain = sys.argv[1], os.environ['RANK'], self.accelerator.unwrap_model(model)
    batch = {name: value.contiguous() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    save_file(batch, f'{folder}/batch-{rank}.safetensors')
    if rank == '0':
        plain.save_pretrained(f'{folder}/before')
    loss = step(self, model, inputs, *arguments, **options)
    gradients = {name: each.grad.clone() for name, each in plain.named_parameters()}
    save_file(gradients, f'{folder}/gradients-{rank}.safetensors')
    return loss

step = trainer.RecipeTrainer.training_step
trainer.RecipeTrainer.training_step = kept
sys.exit(main(sys.argv[2:]))
"""
"""`longspan …`, which also leaves the weights before a step, the batches of both processes, and their gradients."""


def guessed(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """The sum over hidden tokens of what it costs to guess them, `−log p`."""
    own = {name: value for name, value in batch.items() if not name.startswith("contrast")}
    labels = own.pop("labels")
    each = model.eval()(**own).logits.log_softmax(-1)
    return -each[labels >= 0].gather(1, labels[labels >= 0][:, None]).sum()


def summaries(model: Any, batch: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Of each hidden segment `W c`, and the state of a summary token that sees the segment and nothing else, each
    segment by itself."""
    own = {name: value for name, value in batch.items() if not name.startswith("contrast") and name != "labels"}
    states, predicted, alone = model.model(**own).last_hidden_state, [], []
    for row, number in (batch["contrast_places"] >= 0).nonzero().tolist():
        ids = batch["contrast_ids"][row, number][batch["contrast_mask"][row, number].bool()][None]
        first = torch.arange(ids.shape[1])[None] == 0
        read = model.model(ids, global_attention_mask=first, belongs_to=-first.long()).last_hidden_state
        predicted.append(model.contrast.weight @ states[row, batch["contrast_places"][row, number]])
        alone.append(read[0, 0])
    return predicted, alone


def told_apart(predicted: list[Tensor], alone: list[Tensor]) -> Tensor:
    """The mean over segments of `−log softmax` of the right one among all that are given."""
    scores = torch.stack(predicted) @ torch.stack(alone).T
    return -scores.log_softmax(1).diagonal().mean()


@pytest.mark.slow
def test_each_process_compares_its_own_segments_and_gradients_are_means(
    tmp_path: Path, curve: Callable[..., Any]
) -> None:
    """The losses of both processes by hand in one, each weighed by its share of the tokens that are guessed; with the
    segments of both compared together, gradients would be others."""
    data = tmp_path / "corpus.jsonl"
    texts = [row.source for row in synthetic_rows(3, seed=3, sentences=20)]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "tiny.yaml").write_text(RECIPE.replace("DATA", str(data)))
    (tmp_path / "keeping.py").write_text(KEEPING)
    command = ["train", str(tmp_path / "tiny.yaml"), "--output", str(tmp_path / "run")]
    done = forked(2, tmp_path / "keeping.py", str(tmp_path), *command)
    assert done.returncode == 0, done.stderr

    batches = [load_file(tmp_path / f"batch-{rank}.safetensors") for rank in (0, 1)]
    model = LongspanForMaskedLM.from_pretrained(tmp_path / "before").double()
    shares = torch.tensor([float((batch["labels"] >= 0).sum()) for batch in batches], dtype=torch.float64)
    assert shares[0] != shares[1]
    guesses = sum(guessed(model, batch) for batch in batches) / shares.sum()
    pairs = [summaries(model, batch) for batch in batches]
    assert min(len(predicted) for predicted, _ in pairs) > 2
    own = sum(share / shares.sum() * told_apart(*pair) for share, pair in zip(shares, pairs, strict=True))
    both = told_apart(*(left + right for left, right in zip(*pairs, strict=True)))
    names, weights = zip(*model.named_parameters(), strict=True)

    def gradients(contrast: Any) -> dict[str, Tensor]:
        found = torch.autograd.grad(guesses + 0.7 * contrast, weights, retain_graph=True)
        return {name: each.float() for name, each in zip(names, found, strict=True)}

    for rank in (0, 1):
        kept = load_file(tmp_path / f"gradients-{rank}.safetensors")
        torch.testing.assert_close(kept, gradients(own), atol=1e-6, rtol=1e-4)
    together = gradients(both)["contrast.weight"]
    assert not torch.allclose(kept["contrast.weight"], together, atol=1e-6, rtol=1e-2)
    assert curve(tmp_path / "run")[0][1] == pytest.approx((guesses + 0.7 * own).item(), rel=1e-5)
