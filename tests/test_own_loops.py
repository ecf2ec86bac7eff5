"""Longspan's models in the training loops of others: the examples as their users start them, and the guide."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from longspan import LongspanConfig
from longspan.models import LongspanForCausalLM

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
LAUNCH = ["-m", "accelerate.commands.launch", "--config_file", str(EXAMPLES / "accelerate_fsdp2.yaml")]
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="runs in a checkout, not from an installed package")
needs_lightning = pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")


def start(folder: Path, *arguments: str) -> list[str]:
    """Run Python in a folder, on CPUs; returns the lines that it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def losses_in(lines: Sequence[str]) -> list[float]:
    return [float(line.split()[1]) for line in lines if line.startswith("loss ")]


def rows_of_topics() -> Tensor:
    """`(N, 1024)`, a token for each byte."""
    text = b"".join(topic.encode() for topic in topics.values())
    return torch.tensor([list(text[first : first + 1024]) for first in range(0, len(text) - 1023, 1024)])


def new_model(attention: object) -> LongspanForCausalLM:
    """The model of the examples as each begins with it."""
    torch.manual_seed(0)
    return LongspanForCausalLM(LongspanConfig(**SIZES, vocab_size=256, attention=attention, dropout=0.0))


def train_by_hand(model: LongspanForCausalLM, batches: Sequence[Tensor]) -> list[float]:
    """Train in PyTorch alone, in this process; returns the losses."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for ids in batches:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def weights_agree(folder: Path, model: LongspanForCausalLM) -> None:
    """The model in a folder has the weights of another, but for rounding; not where a gradient is nothing but that, of
    what all keys share, which AdamW enlarges."""
    trained = LongspanForCausalLM.from_pretrained(folder).state_dict()
    expected = model.state_dict()
    assert trained.keys() == expected.keys()
    for name in expected:
        if not name.endswith("key.bias"):
            torch.testing.assert_close(trained[name], expected[name], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("launched", [[], [str(ROOT / "tests/shared/sharded_on_cpus.py")]], ids=["whole", "sharded"])
def test_accelerate_trains_as_one_process(launched: list[str], tmp_path: Path) -> None:
    """As its user would on CPUs, where accelerate does not shard; and sharded, as on GPUs.

    Its policy finds the blocks, and its own code the embeddings and the head that is tied to them.
    """
    model, rows = new_model({"mechanism": "longformer", "left_tokens": 128}), rows_of_topics()
    expected = train_by_hand(model, rows[torch.randperm(len(rows))[:40]].split(4))
    printed = start(tmp_path, *LAUNCH, *launched, str(EXAMPLES / "accelerate_fsdp2.py"))
    assert losses_in(printed) == pytest.approx(expected, rel=1e-5)
    weights_agree(tmp_path / "trained", model)
    modules = "sharded LongspanForCausalLM Embedding CheckpointedBlock CheckpointedBlock Linear"
    assert printed.count(modules) == (2 if launched else 0)


@needs_lightning
@pytest.mark.slow
def test_fabric_trains_as_one_process(tmp_path: Path) -> None:
    model, rows = new_model("poolingformer"), rows_of_topics()
    expected = train_by_hand(model, rows[torch.randperm(len(rows))[:40]].split(4))
    printed = start(tmp_path, str(EXAMPLES / "lightning_fabric.py"))
    assert losses_in(printed) == pytest.approx(expected, rel=1e-5)
    weights_agree(tmp_path / "trained", model)


@needs_lightning
@pytest.mark.slow
def test_lightning_trains_as_one_process(tmp_path: Path) -> None:
    """Its Trainer shuffles rows by PyTorch's sampler, with the seed that it was given."""
    model, rows = new_model({"mechanism": "longformer", "left_tokens": 128}), rows_of_topics()[:40]
    parts = [torch.tensor([*DistributedSampler(range(40), 2, rank, seed=0)]).split(2) for rank in range(2)]
    train_by_hand(model, [rows[torch.cat(both)] for both in zip(*parts, strict=True)])
    start(tmp_path, str(EXAMPLES / "lightning_trainer.py"))
    weights_agree(tmp_path / "trained", model)
