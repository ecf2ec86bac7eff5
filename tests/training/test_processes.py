"""Several processes on CPUs: one writes, all train together, and one that fails stops the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longspan.data.synthetic import synthetic_rows
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

RECIPE = """
name: tiny
task: {name: masked_lm, max_tokens: 61}
data: {train: DATA, validation: synthetic, validation_rows: 2}
model:
  new: {hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 64, dropout: 0.0}
  attention: {mechanism: poolingformer, left_tokens: 7, right_tokens: 7, pooled_left_tokens: 24,
    pooled_right_tokens: 24, init: normal}
  two_level_layers: [1]
  max_tokens: 61
tokenizer: {train: 300}
optimisation: {steps: 4, batch_size: 4, micro_batch_size: 2, learning_rate: 3e-3, log_every: 1, evaluate_every: 2}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    data = tmp_path / "corpus.jsonl"
    texts = [row.source for row in synthetic_rows(3, seed=3, sentences=20)]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "tiny.yaml").write_text(RECIPE.replace("DATA", str(data)))
    return tmp_path / "tiny.yaml"


def _two(*arguments: str, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    """`longspan …` in two processes, as torchrun starts them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, "-m", "longspan.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_two_processes_train_as_one(recipe: Path, tmp_path: Path) -> None:
    """Half of each batch in each process: the losses of one process that has all of it."""
    done = _two("train", str(recipe), "--output", str(tmp_path / "two"))
    assert done.returncode == 0, done.stderr
    train(load_recipe(recipe), tmp_path / "one")
    histories = []
    for name in ("one", "two"):
        history = json.loads((tmp_path / name / "metrics.json").read_text())["history"]
        histories.append([entry["loss"] for entry in history if "loss" in entry])
    assert len(histories[0]) == 4
    assert histories[1] == pytest.approx(histories[0], rel=1e-4)
    again = _two("train", str(recipe), "--output", str(tmp_path / "two"), "--resume")
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
def test_two_processes_share_the_folder_of_a_published_model(tmp_path: Path) -> None:
    """Where the tokenizer and the random BART are written first: the smoke run of a recipe with a checkpoint."""
    recipe = Path(__file__).parents[2] / "recipes" / "ablation-window-128.yaml"
    done = _two("train", str(recipe), "--smoke", "--output", str(tmp_path / "run"), "optimisation.steps=2")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_mistake_ends_both_and_leaves_nothing(recipe: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    done = _two("train", str(recipe), "--output", str(tmp_path / "run"), "task.text_field=story")
    assert done.returncode != 0
    assert "has no field 'story'" in done.stderr
    assert "training/train.py" not in done.stderr  # torchrun's own traceback comes after it, none of ours
    assert not (tmp_path / "run").exists()
    assert time.monotonic() - began < 100


@pytest.mark.slow
def test_one_that_dies_stops_the_other(recipe: Path, tmp_path: Path) -> None:
    """The second process is killed while the first waits for it in training."""
    script = tmp_path / "dies.py"
    script.write_text(
        "import os, signal, sys\n"
        "from longspan.cli import main\n"
        "from longspan.training import trainer\n"
        "def die(self, *arguments, **options):\n"
        "    if os.environ['RANK'] == '1':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return step(self, *arguments, **options)\n"
        "step = trainer.RecipeTrainer.training_step\n"
        "trainer.RecipeTrainer.training_step = die\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        [*command, "train", str(recipe), "--output", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode != 0
