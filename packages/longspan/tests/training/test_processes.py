"""Several processes on CPUs: one writes, all train together, with whole or divided weights, and one that fails stops
the others."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from forked import forked
from longspan.checkpoints.loading import load_model
from longspan.data.summaries.rows import synthetic_rows
from longspan.errors import InputError
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train
from torchrun import machines, torchrun

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


LONGSPAN = ["-m", "longspan.cli"]


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
STREAM += ["optimisation.evaluate_every=4"]
FOUR = ["optimisation.steps=4"]
"""More steps of a stream than its memory has segments."""
FULL = ["model.attention=full"]
TEXT = ["task={name: language_model, max_tokens: 61}", "model.new.attention_dropout=0.0"]
TEXT += ["model.attention=[{layers: '0', mechanism: longformer, left_tokens: 7}, {layers: '1', mechanism: linear}]"]
STAR = ["model.new={hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, dropout: 0.0, stack: {stack: star}}"]
STAR += ["model.attention=null"]
CLASS = "task={name: classification, max_tokens: 61}"
SHORT = [*FEW, *FULL, "task={name: classification, max_tokens: 3}"]
SUMMARIES = ["task={name: summarization, max_source_tokens: 61, max_target_tokens: 16}"]
SUMMARIES += ["generation.max_tokens=16", "model.new.decoder_layers=1"]
STAGED = ["stages=[{}, {task.max_tokens: /2, optimisation.learning_rate: /2}]", "optimisation.steps=2"]
STAGED += ["task.max_tokens=60"]
STREAMED = ["data.streaming=true", "data.shuffle_buffer=3", "tokenizer.rows=2"]
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
    "streamed chunks": ([*STREAMED, "data.train=[{from: synthetic, weight: 3}, {from: synthetic, weight: 1}]"], 1e-4),
    "streamed rows": ([*FEW, *SUMMARIES, *STREAMED], 1e-5),
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
    done = forked(2, tmp_path / "in_turn.py", json.dumps(runs))
    assert done.returncode == 0, done.stderr
    assert (done.stdout.count("best checkpoint"), done.stdout.count("model: ")) == (len(runs), len(runs))
    for name, (changes, tolerance) in RUNS.items():
        train(load_recipe(recipe, changes), tmp_path / f"{name}, alone")
        one, two = curve(tmp_path / f"{name}, alone"), curve(tmp_path / name)
        assert len(one) == (5 if name == "columns" else 6)
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
    done = forked(2, script, json.dumps([command, [*command, "--resume"]]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[143, 0]") == 2  # both stopped by the signal, both went on
    assert done.stderr.count("saved step 3; go on with: ") == 1
    assert (tmp_path / "two" / "checkpoints" / "checkpoint-3" / "files.json").is_file()
    train(load_recipe(recipe), tmp_path / "one")
    assert curve(tmp_path / "two") == [pytest.approx(row, rel=1e-4) for row in curve(tmp_path / "one")]


@pytest.mark.slow
def test_a_mistake_ends_both_and_leaves_nothing(recipe: Path, tmp_path: Path) -> None:
    """A process that waited for the other would wait for half an hour, longer than the test lives."""
    done = forked(2, LONGSPAN, "train", str(recipe), "--output", str(tmp_path / "run"), "task.text_field=story")
    assert done.returncode != 0
    assert "has no field 'story'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_another_number_of_processes_goes_on(recipe: Path, tmp_path: Path, curve: Callable[..., Any]) -> None:
    """Rows come in the same order, whoever reads them; without dropout the losses are those of one process."""
    run = tmp_path / "run"
    trained = forked(2, LONGSPAN, "train", str(recipe), "--output", str(run))
    assert trained.returncode == 0, trained.stderr
    first = run / "checkpoints/checkpoint-2"
    assert json.loads((first / "unlogged.json").read_text(encoding="utf-8"))["processes"] == 2
    shutil.rmtree(run / "checkpoints/checkpoint-4")
    (run / "metrics.json").unlink()
    train(load_recipe(recipe), run, resume=True)
    train(load_recipe(recipe), tmp_path / "one")
    assert curve(run) == [pytest.approx(row, rel=1e-4) for row in curve(tmp_path / "one")]


TWO = ["optimisation.steps=2"]
"""The second step has the weights and the states of the optimizer that the first has left."""
SHARD = "optimisation.parallel.shard=true"
PLAIN = "model.new.attention_dropout=0.0"
DIVIDED = {
    "masked tokens": TWO,
    "stages": STAGED,
    "columns": STREAM,
    "summaries, the best by what is generated": [*TWO, *FEW, *SUMMARIES, "optimisation.best_by=rouge1"],
    "a rate of the head": [*FEW, SENTENCES, "optimisation.head_learning_rate=0.01"],
    "one row for two": [*TWO, *FEW, SENTENCES, "data.train_rows=1"],
    "halting": [*TWO, PLAIN, "model.new.stack={stack: universal, halting: adaptive}"],
    "two streams": [*TWO, PLAIN, "model.new.stack=reversible", "model.new.normalization=pre"],
    "activations computed twice": [*TWO, PLAIN, "optimisation.gradient_checkpointing=true"],
    "parts in the processor's memory": [*TWO, PLAIN, "optimisation.parallel={shard: true, offload: true}"],
    "sums of squares": [*TWO, PLAIN, "optimisation.optimizer=adagrad"],
    "each gradient cut": [*TWO, PLAIN, "optimisation.weight_gradient_clip=0.01"],
}
"""What changes in the recipe, for each run."""


def weights_agree(one: Path, other: Path, *, without: str | None = None) -> None:
    """The files of two runs hold the same weights under the same names, but for rounding; a kind of them may be left
    out."""
    ours, theirs = (load_model(folder).state_dict() for folder in (one, other))
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        if without is not None and name.endswith(without):
            continue
        torch.testing.assert_close(weight, theirs[name], atol=2e-6, rtol=1e-5, msg=lambda text, name=name: name + text)


@pytest.mark.slow
def test_every_stack_mechanism_and_head_is_that_of_one_process(tmp_path: Path) -> None:
    """In float64: loss, gradients, state dict and inference; divided by ours, and every stack by accelerate. Every
    bidirectional mechanism is also built without weights and filled from files, with the weights of one process."""
    cases = ["stacks", "heads", "mechanisms", "accelerate", f"filled={tmp_path}"]
    done = forked(2, Path(__file__).with_name("sharded_models.py"), *cases)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) > 240
    # Those that are filled are float32.
    wrong = {name: distance for name, distance in found.items() if not distance < (1e-6 if "filled" in name else 1e-12)}
    assert wrong == {}


@pytest.mark.slow
def test_runs_are_those_of_one_process(recipe: Path, tmp_path: Path, curve: Callable[..., Any]) -> None:
    (tmp_path / "in_turn.py").write_text(IN_TURN)
    runs = [["train", str(recipe), "--output", str(tmp_path / name), *DIVIDED[name], SHARD] for name in DIVIDED]
    adapted = ["train", "ablation-window-128", "--smoke", "optimisation.steps=2", "optimisation.lora={rank: 2}"]
    runs += [[*adapted, "--output", str(tmp_path / "adapted"), SHARD]]
    runs += [[*adapted, "--output", str(tmp_path / "adapted, each whole")]]
    done = forked(2, tmp_path / "in_turn.py", json.dumps(runs))
    assert done.returncode == 0, done.stderr
    for name, changes in DIVIDED.items():
        alone = tmp_path / f"{name}, alone"
        train(load_recipe(recipe, changes), alone)
        assert curve(tmp_path / name) == [pytest.approx(row, rel=1e-5) for row in curve(alone)], name
        # The gradient of what all keys share is 0 but for rounding, which a sum of squares makes large.
        weights_agree(tmp_path / name, alone, without="key.bias" if name == "sums of squares" else None)
    # Dropout is drawn in each process by itself: as where each keeps a whole copy.
    one, two = tmp_path / "adapted", tmp_path / "adapted, each whole"
    assert curve(one) == [pytest.approx(row, rel=1e-5) for row in curve(two)]
    weights_agree(one, two)
    assert (one / "adapter" / "adapter_model.safetensors").is_file()
    for name in ("masked tokens", "masked tokens, alone"):
        card = (tmp_path / name / "README.md").read_text()
        assert "\n# LongspanForMaskedLM for up to " in card
        assert "import AutoModelForMaskedLM" in card


@pytest.mark.slow
def test_a_run_goes_on_in_any_number_of_processes(
    recipe: Path,
    tmp_path: Path,
    curve: Callable[..., Any],
) -> None:
    """Four that divide the weights, then one, then two that divide segments too, with the memory of streams in
    columns."""
    steady = [*STREAM, "optimisation.schedule=constant", "optimisation.evaluate_every=2"]
    train(load_recipe(recipe, [*steady, "optimisation.steps=6"]), tmp_path / "alone")
    both = [SHARD, "optimisation.parallel.sequence=2"]
    for processes, steps, changes in ((4, 2, [SHARD]), (1, 4, []), (2, 6, both)):
        changed = [*steady, f"optimisation.steps={steps}", *changes]
        begun = ["--resume"] if steps > 2 else []
        done = forked(processes, LONGSPAN, "train", str(recipe), "--output", str(tmp_path / "run"), *begun, *changed)
        assert done.returncode == 0, done.stderr
    said = "checkpoint-4 was trained by 1 process and 2 train now: rows and their order stay the same"
    assert said in done.stderr
    kept = {file.name for file in (tmp_path / "run" / "checkpoints" / "checkpoint-6").glob("memory-*")}
    assert kept == {"memory-0.safetensors", "memory-1.safetensors"}
    assert curve(tmp_path / "run") == [pytest.approx(row, rel=1e-5) for row in curve(tmp_path / "alone")]
    weights_agree(tmp_path / "run", tmp_path / "alone")


KILLED = """
import os, signal, sys, threading
from longspan.cli import main
from longspan.training import trainer
step = trainer.RecipeTrainer.training_step
def killed(self, *arguments, **options):
    if self.state.global_step == 3:
        if os.environ["RANK"] == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        if WAITS:
            threading.Event().wait()
    return step(self, *arguments, **options)
trainer.RecipeTrainer.training_step = killed
sys.exit(main(sys.argv[2:]))
"""
"""`longspan …`, of which one process is killed in its fourth step; the others go on into the exchange with it, or wait
as on a GPU, where nothing tells them."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "dead", "waits", "again"), [(torchrun, 1, True, 2), (forked, 0, False, 1)], ids=["torchrun", "alone"]
)
def test_one_that_is_killed_ends_the_others_and_any_number_goes_on(
    start: Callable[..., Any],
    dead: int,
    waits: bool,
    again: int,
    recipe: Path,
    tmp_path: Path,
    curve: Callable[..., Any],
) -> None:
    """With divided weights, in files of a few kilobytes; torchrun would give those that wait half a minute, and without
    it they end, too."""
    (tmp_path / "killed.py").write_text(KILLED.replace("WAITS", str(waits)))
    one_row = [PLAIN, "optimisation.micro_batch_size=1"]
    command = ["train", str(recipe), *one_row, SHARD, "optimisation.max_shard_size=9KB", "--output"]
    done = start(2, tmp_path / "killed.py", str(dead), *command, str(tmp_path / "run"))
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert re.match(rf"error: process {dead} of 2, .* has ended without a word.* go on with --resume", lines[0])
    assert "src/longspan/" not in done.stderr  # in a traceback of ours; torchrun writes its own
    train(load_recipe(recipe, one_row), tmp_path / "alone")
    run = tmp_path / "run"
    if again == 1:
        train(load_recipe(recipe, one_row), run, resume=True)
    else:
        done = forked(again, LONGSPAN, *command, str(run), "--resume")
        assert done.returncode == 0, done.stderr
    assert curve(run) == [pytest.approx(row, rel=1e-5) for row in curve(tmp_path / "alone")]
    weights_agree(run, tmp_path / "alone")


@pytest.mark.slow
def test_processes_that_read_rows_together(recipe: Path, tmp_path: Path, curve: Callable[..., Any]) -> None:
    """Two groups of two processes, with whole weights and with divided ones: losses and weights of one process.
    Encoders, with a window or full attention, a star, a class for a row, also of fewer tokens than processes, sources
    of summaries, and a language model, whose last token of a part guesses the first of the next, with a memory and
    without; its memory is in the checkpoint as one process has it.

    AdamW's epsilon is such that a gradient of almost 0, which is rounding, is none.
    """
    begun = ["optimisation.epsilon=1e-4", *TWO]
    runs = {
        "halves": ["optimisation.parallel={sequence: 2}"],
        "few": [*FEW, "optimisation.parallel={data: 2, sequence: 2}"],
        "sharded": ["optimisation.parallel={data: 2, sequence: 2, shard: true}"],
        "all": ["optimisation.parallel={sequence: 4}", "optimisation.gradient_checkpointing=true"],
        "full": [*FULL, "optimisation.parallel={data: 2, sequence: 2}"],
        "full, all": [*FULL, "optimisation.parallel={sequence: 4}", "optimisation.gradient_checkpointing=true"],
        "text": [*TEXT, "optimisation.parallel={sequence: 4}"],
        "star": [*STAR, "optimisation.parallel={sequence: 4}", "optimisation.gradient_checkpointing=true"],
        "class": [*FEW, CLASS, "optimisation.parallel={data: 2, sequence: 2}"],
        "summaries": [*FEW, *SUMMARIES, "optimisation.parallel={data: 2, sequence: 2}"],
        "columns": [*STREAM, *FOUR, "optimisation.parallel={data: 2, sequence: 2}"],
        "short": [*SHORT, "optimisation.parallel={sequence: 4}"],
    }
    (tmp_path / "in_turn.py").write_text(IN_TURN)
    commands = [
        ["train", str(recipe), "--output", str(tmp_path / name), *begun, *changes] for name, changes in runs.items()
    ]
    done = forked(4, tmp_path / "in_turn.py", json.dumps(commands))
    assert done.returncode == 0, done.stderr
    train(load_recipe(recipe, begun), tmp_path / "whole")
    others = {"few": FEW, "text": TEXT, "star": STAR, "class": [*FEW, CLASS], "summaries": [*FEW, *SUMMARIES]}
    others |= {"columns": [*STREAM, *FOUR], "short": SHORT, "full": FULL}
    for name, changes in others.items():
        train(load_recipe(recipe, [*begun, *changes]), tmp_path / f"{name} whole")
    for name in runs:
        kind, _, _ = name.partition(",")
        alone = tmp_path / (f"{kind} whole" if kind in others else "whole")
        assert curve(tmp_path / name) == [pytest.approx(row, rel=1e-5) for row in curve(alone)], name
        # The gradient of what all keys share is 0 but for rounding, which a sum of squares makes large.
        weights_agree(tmp_path / name, alone, without="key.bias" if name == "sums of squares" else None)
    ours, theirs = (memories(tmp_path / name) for name in ("columns", "columns whole"))
    assert ours.keys() == theirs.keys()
    for name, memory in theirs.items():
        torch.testing.assert_close(ours[name], memory, atol=1e-5, rtol=1e-5)


def memories(run: Path) -> dict[str, torch.Tensor]:
    """Those of all columns in the last checkpoint, whichever process wrote them."""
    files = sorted((run / "checkpoints" / "checkpoint-4").glob("memory-*"))
    return {name: each for file in files for name, each in load_file(file).items()}


def test_offloading_that_changes_nothing_is_said(
    recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = ["optimisation.parallel={shard: true, offload: true}", "optimisation.steps=1"]
    train(load_recipe(recipe, changes), tmp_path / "run")
    assert "offload keeps parts of weights in the processor's memory; it changes nothing, since one" in caplog.text


@pytest.mark.slow
def test_machines_share_the_folder_of_a_run(recipe: Path, tmp_path: Path, curve: Callable[..., Any]) -> None:
    """Where they do, their losses are those of one process; where each has its own, all say so and leave nothing."""
    commands = [["train", str(recipe), SHARD, "--output", str(tmp_path / name)] for name in ("here", "there", "run")]
    for code, said in machines(commands[:2]):
        assert code != 0
        assert "is not one folder for all processes: what the first of them writes there is not seen by" in said
        assert "process 1 on " in said
        assert "a folder that every machine shares" in said
    assert not (tmp_path / "here").exists()
    assert not (tmp_path / "there").exists()
    assert [code for code, _ in machines([commands[2]] * 2)] == [0, 0]
    train(load_recipe(recipe), tmp_path / "alone")
    assert curve(tmp_path / "run") == [pytest.approx(row, rel=1e-5) for row in curve(tmp_path / "alone")]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ["optimisation.parallel={sequence: 2}"],
            r"parallel.sequence is 2 and 1 process was started; start a multiple",
        ),
        (["optimisation.parallel={data: 2, sequence: 2}"], r"data is 2 and .*sequence is 2 and 1 .*nproc-per-node 4"),
        (
            ["optimisation.parallel={sequence: 2}", "optimisation.padding_free=true"],
            "sequence is 2, which divides rows",
        ),
        (["optimisation.parallel={offload: true}"], "parallel.offload is true, which moves sharded weights"),
        (["optimisation.parallel={data: 3}"], r"parallel.data is 3 and 1 process was started.*nproc-per-node 3"),
        ([SHARD, "optimisation.train=new_positions"], "parallel.shard divides weights, of which"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    changes: list[str],
    said: str,
    recipe: Path,
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError, match=said):
        train(load_recipe(recipe, changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
