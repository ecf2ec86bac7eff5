"""Several processes on CPUs: one writes, all train together, and one that fails stops the others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longspan.data.summaries.rows import synthetic_rows
from longspan.errors import InputError
from longspan.training.checkpoints import processes_of
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


def _two(*arguments: str, script: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`longspan …`, or the script instead of it, in two processes, as torchrun starts them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, *(["-m", "longspan.cli"] if script is None else [str(script)]), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def _signalled(folder: Path, condition: str, name: str) -> Path:
    """A script that runs `longspan` for each list of arguments in turn, but for a signal that its second process sends
    itself in a training step of the first, and prints the exit codes."""
    script = folder / "signalled.py"
    script.write_text(
        "import json, os, signal, sys\n"
        "from longspan.cli import main\n"
        "from longspan.training import trainer\n"
        "codes = []\n"
        "def signalled(self, *arguments, **options):\n"
        f"    if os.environ['RANK'] == '1' and not codes and {condition}:\n"
        f"        os.kill(os.getpid(), signal.{name})\n"
        "    return step(self, *arguments, **options)\n"
        "step = trainer.RecipeTrainer.training_step\n"
        "trainer.RecipeTrainer.training_step = signalled\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    codes.append(main(arguments))\n"
        "print(codes)\n"
    )
    return script


FEW = ["data.train=synthetic", "data.train_rows=5", "data.validation_rows=3", "optimisation.micro_batch_size=1"]
FEW += ["model.new.attention_dropout=0.0"]
"""Five rows in batches of four, three of them validated: the last steps lack rows for some process, twice."""
SENTENCES = "task={name: extraction, max_source_tokens: 61}"
STREAM = ["task={name: language_stream, max_tokens: 17}", "optimisation.micro_batch_size=1", "model.attention=full"]
STREAM += ["model.new.position_embedding=sinusoidal", "model.new.stack={stack: recurrent, memory_tokens: 23}"]
SUMMARIES = ["task={name: summarization, max_source_tokens: 61, max_target_tokens: 16}"]
SUMMARIES += ["generation.max_tokens=16", "model.new.decoder_layers=1"]
STAGED = ["stages=[{}, {task.max_tokens: /2, optimisation.learning_rate: /2}]", "optimisation.steps=2"]
STAGED += ["task.max_tokens=60"]
RUNS: dict[str, tuple[list[str], float]] = {
    "halves": ([], 1e-4),
    "stages": (STAGED, 1e-4),
    # Four columns in two processes and two pieces, each with its memory.
    "columns": (STREAM, 1e-4),
    # The means of losses are taken over tokens (the Trainer counts them over all processes), or over micro-batches.
    "a mean over tokens": ([*FEW, *SUMMARIES], 1e-5),
    "a mean over sentences": ([*FEW, SENTENCES], 1e-5),
    "micro-batches of two": ([*FEW, SENTENCES, "optimisation.micro_batch_size=2"], 1e-5),
    "one row for two": ([*FEW, SENTENCES, "data.train_rows=1"], 1e-5),
}
"""What changes in the recipe, and how near the losses of two processes must come to those of one."""
IN_TURN = """
import json, sys
from longspan.cli import main
for arguments in json.loads(sys.argv[1]):
    code = main(arguments)
    if code:
        sys.exit(code)
"""


@pytest.mark.slow
def test_two_processes_train_as_one(recipe: Path, tmp_path: Path, curve: Callable[..., Any]) -> None:
    """Half of each batch in each process: the losses of one process that has all of it.

    One start of the processes, which costs more than all their steps, serves every run; a finished run that is resumed,
    and a recipe with a checkpoint, where the tokenizer and a random BART are written first, come behind them.
    """
    (tmp_path / "in_turn.py").write_text(IN_TURN)
    runs = [["train", str(recipe), "--output", str(tmp_path / name), *RUNS[name][0]] for name in RUNS]
    runs += [["train", str(recipe), "--output", str(tmp_path / "halves"), "--resume"]]
    published = "ablation-window-128"
    runs += [["train", published, "--smoke", "--output", str(tmp_path / "published"), "optimisation.steps=2"]]
    done = _two(json.dumps(runs), script=tmp_path / "in_turn.py")
    assert done.returncode == 0, done.stderr
    assert (done.stdout.count("best checkpoint"), done.stdout.count("model: ")) == (len(runs), len(runs))
    for name, (changes, tolerance) in RUNS.items():
        train(load_recipe(recipe, changes), tmp_path / f"{name}, alone")
        one, two = curve(tmp_path / f"{name}, alone"), curve(tmp_path / name)
        assert len(one) == 6
        assert two == [pytest.approx(row, rel=tolerance) for row in one], name
    names = {file.name for file in (tmp_path / "columns" / "checkpoints" / "checkpoint-4").glob("memory-*")}
    assert names == {"memory-0.safetensors", "memory-1.safetensors"}
    assert (tmp_path / "published" / "model.safetensors").is_file()


@pytest.mark.slow
def test_two_processes_stop_together_and_go_on(recipe: Path, tmp_path: Path, curve: Callable[..., Any]) -> None:
    """One of them gets a signal: both save the step that both are in. They go on without being started again, which
    costs more than all steps; from files alone, all the same."""
    script = _signalled(tmp_path, "self.state.global_step == 2", "SIGTERM")
    command = ["train", str(recipe), "--output", str(tmp_path / "two")]
    done = _two(json.dumps([command, [*command, "--resume"]]), script=script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[143, 0]") == 2  # both stopped by the signal, both went on
    assert done.stderr.count("saved step 3; go on with: ") == 1
    assert (tmp_path / "two" / "checkpoints" / "checkpoint-3" / "files.json").is_file()
    train(load_recipe(recipe), tmp_path / "one")
    assert curve(tmp_path / "two") == [pytest.approx(row, rel=1e-4) for row in curve(tmp_path / "one")]


@pytest.mark.slow
def test_a_mistake_ends_both_and_leaves_nothing(recipe: Path, tmp_path: Path) -> None:
    """A process that waited for the other would wait for half an hour, longer than the test lives."""
    done = _two("train", str(recipe), "--output", str(tmp_path / "run"), "task.text_field=story")
    assert done.returncode != 0
    assert "has no field 'story'" in done.stderr
    assert "training/train.py" not in done.stderr  # torchrun's own traceback comes after it, none of ours
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_one_that_dies_stops_the_other(recipe: Path, tmp_path: Path) -> None:
    """The second process is killed while the first waits for it in training."""
    script = _signalled(tmp_path, "True", "SIGKILL")
    done = _two(json.dumps([["train", str(recipe), "--output", str(tmp_path / "run")]]), script=script)
    assert done.returncode != 0
    assert "[" not in done.stdout  # no process came to its end


@pytest.mark.slow
def test_another_number_of_processes_cannot_go_on(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained = _two("train", str(recipe), "--output", str(run))
    assert trained.returncode == 0, trained.stderr
    first = run / "checkpoints/checkpoint-2"
    assert json.loads((first / "unlogged.json").read_text(encoding="utf-8"))["processes"] == 2
    assert processes_of(first) == 2
    shutil.rmtree(run / "checkpoints/checkpoint-4")
    (run / "metrics.json").unlink()
    said = r"checkpoint-2 was trained by 2 processes and 1 now read it.*nproc-per-node 2"
    with pytest.raises(InputError, match=said):
        train(load_recipe(recipe), run, resume=True)
    (first / "unlogged.json").unlink()  # as an older version left it
    assert processes_of(first) == 2
