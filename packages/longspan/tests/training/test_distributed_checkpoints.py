"""Checkpoints in which each process writes its shards: exact, for any number of processes, in the background, damaged
and on a full disk; and how shards are gathered."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from forked import forked
from longspan.checkpoints.loading import load_model
from longspan.errors import InputError
from longspan.training import checkpoints
from longspan.training.checkpoints import PARTS
from longspan.training.distributed_checkpoints import GROUPS, OF, read_states, read_weights, write_joined
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

RECIPE = """
name: tiny
task: {name: masked_lm, max_tokens: 61}
data: {train: synthetic, validation: synthetic, train_rows: 8, validation_rows: 2}
model:
  new: {hidden_size: 33, num_hidden_layers: 2, num_attention_heads: 3, intermediate_size: 61, dropout: 0.1}
  attention: {mechanism: longformer, left_tokens: 7, right_tokens: 7}
  max_tokens: 61
tokenizer: {train: 300}
optimisation:
  {steps: 4, batch_size: 4, learning_rate: 3e-3, log_every: 1, evaluate_every: 2, schedule: constant,
   parallel: {shard: true}}
"""
"""Sizes that no number of processes divides."""
BACKGROUND = "optimisation.parallel.save_in_background=true"
SMALL_FILES = "optimisation.max_shard_size=40KB"
BF16 = "optimisation.bf16=true"
SHORT = ["optimisation.steps=2"]
RUNS: dict[str, list[str]] = {
    "in the background": [BACKGROUND, SMALL_FILES],
    "two groups": [*SHORT, "optimisation.parallel.replicate=2"],
    "gathered once": ["optimisation.parallel.reshard_after_forward=false"],
    "bfloat16": [*SHORT, BF16],
    "bfloat16, gathered in float32": [*SHORT, BF16, "optimisation.parallel.gather_dtype=float32"],
}
CODES = """
import json, os, sys
from longspan.cli import main
from longspan.training import train
def whole(*arguments):
    raise AssertionError("a process builds all weights")
train._model = whole
codes = [main(arguments) for arguments in json.loads(sys.argv[1])]
if os.environ["RANK"] == "0":
    print(codes)
"""
"""Runs `longspan` for each list of arguments in turn, and prints the exit codes of the first process; no process may
build all weights."""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    (tmp_path / "codes.py").write_text(CODES)
    return tmp_path / "tiny.yaml"


def run(processes: int, recipe: Path, *commands: tuple[Path, list[str]]) -> tuple[list[int], str]:
    """The exit codes of runs in so many processes, and what they write to standard error."""
    arguments = [["train", str(recipe), "--output", str(folder), *changes] for folder, changes in commands]
    done = forked(processes, recipe.parent / "codes.py", json.dumps(arguments))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return json.loads(next(line for line in reversed(lines) if line.startswith("["))), done.stderr


def same_weights(one: Path, other: Path) -> bool:
    return same_tensors(*(load_model(folder).state_dict() for folder in (one, other)))


def same_tensors(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())


def joined(parts: Path) -> dict[str, torch.Tensor]:
    """Every tensor, of the shards of all processes in order; what all have is in the file of any."""
    files = [load_file(file) for file in sorted(parts.iterdir())]
    names = {name for file in files for name in file}
    return {name: torch.cat([torch.atleast_1d(file[name]) for file in files if name in file]) for name in names}


@pytest.mark.slow
def test_a_run_in_parts_goes_on_bit_for_bit(recipe: Path, tmp_path: Path, curve: Callable[..., Any]) -> None:
    """With dropout, in the same number of processes; its checkpoints are read in one, and damaged."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    commands = [(whole, []), (cut, SHORT), (cut, ["--resume"])]
    commands += [(tmp_path / name, changes) for name, changes in RUNS.items()]
    again = [f"model={{from: {whole}}}", "tokenizer={train: null}", "optimisation.learning_rate=1e-12", *SHORT]
    commands += [(tmp_path / "published", again)]
    codes, errors = run(4, recipe, *commands)
    assert codes == [0] * len(commands), errors
    for name in ("cut", "in the background", "gathered once"):
        assert curve(tmp_path / name) == curve(whole), name
        assert same_weights(tmp_path / name, whole), name
        for step in (2, 4):
            ours, theirs = (each / "checkpoints" / f"checkpoint-{step}" / PARTS for each in (tmp_path / name, whole))
            files = sorted(file.name for file in theirs.iterdir())
            assert files == [f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2, 3, 4)]
            assert same_tensors(joined(ours), joined(theirs))
    # The sum of gradients has another order, or numbers of bfloat16, with a relative error of 2⁻⁹.
    first = curve(whole)[:3]
    assert curve(tmp_path / "two groups") == [pytest.approx(row, rel=1e-5) for row in first]
    for name in ("bfloat16", "bfloat16, gathered in float32"):
        assert curve(tmp_path / name) == [pytest.approx(row, rel=2**-9 * 4) for row in first]
        assert curve(tmp_path / name) != first
    assert curve(tmp_path / "bfloat16") != curve(tmp_path / "bfloat16, gathered in float32")
    # With such a rate they stay what was read.
    published, trained = (load_model(folder).state_dict() for folder in (tmp_path / "published", whole))
    for name, value in trained.items():
        torch.testing.assert_close(published[name], value, atol=1e-10, rtol=0)
    _files_are_those_of_save_pretrained(tmp_path / "in the background", tmp_path / "written")
    _one_process_reads(whole / "checkpoints" / "checkpoint-4", tmp_path / "copy")


def _files_are_those_of_save_pretrained(run: Path, written: Path) -> None:
    load_model(run).save_pretrained(written, max_shard_size="40KB")
    names = sorted(file.name for file in written.iterdir() if "safetensors" in file.name)
    assert len(names) > 3
    assert sorted(file.name for file in run.iterdir() if "safetensors" in file.name) == names
    for name in names:
        ours, theirs = run / name, written / name
        if name.endswith(".json"):
            assert json.loads(ours.read_text())["weight_map"] == json.loads(theirs.read_text())["weight_map"]
        else:
            assert same_tensors(load_file(ours), load_file(theirs))


def _one_process_reads(checkpoint: Path, copy: Path) -> None:
    """Weights and states, of all parts; without one, it is a sentence."""
    parts = joined(checkpoint / PARTS)
    model = load_model(checkpoint.parents[1])
    decays = [weight for name, weight in model.named_parameters() if weight.ndim > 1 and "norm" not in name]
    rest = [weight for name, weight in model.named_parameters() if weight.ndim == 1 or "norm" in name]
    optimizer = torch.optim.AdamW([{"params": decays}, {"params": rest}], lr=1.0)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    for weight in model.parameters():
        weight.data.fill_(7)
    read_weights(model, checkpoint / PARTS)
    read_states(model, optimizer, checkpoint)
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    assert [group["lr"] for group in optimizer.param_groups] == [3e-3, 3e-3]
    for name, weight in model.named_parameters():
        key = f"{name}{OF}exp_avg"
        if key in parts:  # projections of global tokens have had no gradient
            assert torch.equal(optimizer.state[weight]["exp_avg"], parts[key]), name
            assert float(optimizer.state[weight]["step"]) == 4
    assert len(optimizer.state) > 20
    shutil.copytree(checkpoint, copy / "checkpoint-4")
    (copy / "checkpoint-4" / PARTS / "shard-00002-model-00001-of-00001.safetensors").unlink()
    with pytest.raises(InputError, match=r"every checkpoint .* parts/shard-00002.*safetensors is missing"):
        checkpoints.find_damaged(copy)
    for read in (
        lambda: read_weights(model, copy / "checkpoint-4" / PARTS),
        lambda: read_states(model, optimizer, copy / "checkpoint-4"),
        lambda: write_joined(copy / "checkpoint-4", copy / "joined", "5GB"),
    ):
        with pytest.raises(InputError, match=r"parts' has [\d,]+ of the [\d,]+ numbers of '.*'; put its missing file"):
            read()
    assert not (copy / "joined").exists()
    last = checkpoint / PARTS / "shard-00004-model-00001-of-00001.safetensors"
    (copy / "short").mkdir()
    (copy / "short" / last.name).write_bytes(last.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"short' cannot be read .*; put its files back"):
        read_weights(model, copy / "short")
    groups = torch.load(checkpoint / GROUPS, weights_only=True)
    groups["groups"][0]["params"][0] = "another"
    torch.save(groups, copy / "checkpoint-4" / GROUPS)
    with pytest.raises(InputError, match=r"are those of other weights \(another\)"):
        read_states(model, optimizer, copy / "checkpoint-4")


@pytest.mark.slow
def test_a_disk_that_fills_keeps_the_last_good_checkpoint(
    recipe: Path, tmp_path: Path, small_disk: Path, curve: Callable[..., Any]
) -> None:
    """While the parts are written, in the background too: one sentence, and the run goes on from what was complete."""
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    full, whole = small_disk / "run", tmp_path / "whole"
    codes, errors = run(2, recipe, (whole, []), (full, ["optimisation.steps=2"]))
    assert codes == [0, 0], errors
    state = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(b"f" * (state.f_bavail * state.f_frsize - 200_000))
    codes, errors = run(2, recipe, (full, ["--resume"]), (full, ["--resume", BACKGROUND]))
    assert codes == [2, 2], errors
    told = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(told) in (2, 4)  # of each process
    assert all("cannot be written: the disk is full" in line and "free some space" in line for line in told)
    assert os.listdir(full / "checkpoints") == ["checkpoint-2"]
    (small_disk / "filler").unlink()
    codes, errors = run(2, recipe, (full, ["--resume", BACKGROUND]))
    assert codes == [0], errors
    assert curve(full) == curve(whole)
    assert same_weights(full, whole)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["optimisation.parallel={replicate: 2}"], "replicate is 2, which is the number of copies of sharded weights"),
        (["optimisation.parallel={save_in_background: true}"], "save_in_background is true, which writes shards; set"),
        (["optimisation.parallel={reshard_after_forward: false}"], "reshard_after_forward is false, which is about"),
        (["optimisation.parallel={shard: true, gather_dtype: bfloat16}"], "without optimisation.bf16 layers compute"),
        (["optimisation.parallel={shard: true, gather_dtype: half}"], "gather_dtype is 'half'"),
        (["optimisation.parallel={shard: true, replicas: 2}"], "unknown key .*parallel.replicas.*'replicate'"),
        (["optimisation.parallel={shard: true, replicate: 2}"], "replicate is 2 and 1 process was started; start a mu"),
    ],
)
def test_what_does_not_go_with_shards_is_refused(changes: list[str], said: str, recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        train(load_recipe(recipe, changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
