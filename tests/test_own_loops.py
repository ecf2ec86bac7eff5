"""Longspan's models in the training loops of others: the examples as their users start them, and the guide."""

from __future__ import annotations

import json
import os
import re
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
from transformers import PreTrainedModel

from forked import forked
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


MODELS = """
import copy, json, os, sys
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from longspan import LongspanConfig
from longspan.models import LongspanForConditionalGeneration, LongspanForMaskedLM
from longspan.models.fsdp import shard
from sharded_on_cpus import shard_on_cpus, sharded_modules

shard_on_cpus()
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    auto_wrap_policy="transformer_based_wrap" if sys.argv[1] == "masked" else "no_wrap",
    activation_checkpointing=sys.argv[1] == "masked",
)
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
sizes = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "dropout": 0.0}
sizes |= {"intermediate_size": 24, "attention": "poolingformer", "init_std": 0.2}
torch.manual_seed(0)
ids = torch.randint(3, 61, (4, 37))
batch = {"input_ids": ids, "labels": ids}
if sys.argv[1] == "masked":
    whole = LongspanForMaskedLM(LongspanConfig(**sizes))
    model = torch.compile(copy.deepcopy(whole), backend="aot_eager")
else:
    whole = LongspanForConditionalGeneration(LongspanConfig(**sizes, decoder_layers=2))
    model = copy.deepcopy(whole)
    model.gradient_checkpointing_enable()
    shard(model, accelerator.device)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
part = {name: value.chunk(2)[accelerator.process_index] for name, value in batch.items()}
for step in range(2):
    accelerator.backward(model(**part).loss)
    optimizer.step()
    optimizer.zero_grad()
accelerator.save_state("state")
state = accelerator.get_state_dict(model)
plain = accelerator.unwrap_model(model, keep_torch_compile=False)
plain.save_pretrained("gathered", state_dict=state, is_main_process=accelerator.is_main_process)
plain.save_pretrained("saved")
accelerator.backward(model(**part).loss)
optimizer.step()
accelerator.load_state("state")
plain.save_pretrained("resumed")
accelerator.wait_for_everyone()
optimizer = torch.optim.SGD(whole.train().parameters(), lr=0.1)
for step in range(2):
    whole(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if accelerator.is_main_process:
    expected, worst = whole.state_dict(), {}
    for folder in ("gathered", "saved", "resumed"):
        found = type(whole).from_pretrained(folder).state_dict()
        assert found.keys() == expected.keys()
        worst[folder] = max(float((found[name] - value).abs().max()) for name, value in expected.items())
    print(json.dumps([worst, sharded_modules(plain)]))
"""
"""Two steps of a model that accelerate has prepared, and of the same in one process: their largest difference, in what
is gathered, saved, and loaded again from a checkpoint of shards."""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "blocks"), [("masked", 2), ("summaries", 4)])
def test_accelerate_checkpoints_compiles_gathers_and_saves(
    kind: str, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masked tokens with its own activation checkpointing and `torch.compile`; and an encoder-decoder, whose embedding
    has three names, which accelerate cannot shard and Longspan has sharded before."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(MODELS)
    done = forked(2, tmp_path / "models.py", kind)
    assert done.returncode == 0, done.stderr
    distances, modules = json.loads(done.stdout.splitlines()[-1])
    assert {folder: distance for folder, distance in distances.items() if not distance < 1e-5} == {}
    assert len(distances) == 3
    assert modules.count("CheckpointedBlock") == blocks


CHECKS = """
import json
from longspan.models.fsdp import whole_weights

torch.manual_seed(0)
begun, read = LongspanForCausalLM(config), LongspanForCausalLM(config)  # as `model` and `reader` began
parts, firsts = [None, None], [None, None]
dist.all_gather_object(parts, loss.item())
dist.all_gather_object(firsts, losses[0])
row = torch.arange(1001)[None] % 256
whole = read(input_ids=row, labels=row).loss
whole.backward()
expected = dict(read.named_parameters())
apart = [weight.grad.full_tensor() - expected[name].grad for name, weight in reader.named_parameters()]
order = torch.tensor([*DistributedSampler(rows, 2, 0, seed=0)][:2] + [*DistributedSampler(rows, 2, 1, seed=0)][:2])
first = begun(input_ids=rows[order], labels=rows[order]).loss
weights, saved = whole_weights(model), LongspanForCausalLM.from_pretrained("trained").state_dict()
if dist.get_rank() == 0:
    print(json.dumps({
        "sequence parallel": [sum(parts) / 2, whole.item()],
        "gradients": max(float(each.abs().max()) for each in apart),
        "first step": [sum(firsts) / 2, first.item()],
        "losses": losses,
        "saved": {*weights} == {*saved} and all(map(torch.equal, weights.values(), saved.values())),
        "flops": flops(512, 512),
        "mfu": mfu,
    }))
"""
"""After the script of the guide."""


@pytest.mark.slow
def test_the_parts_of_the_guide_are_one_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the compiler's first two stages, since its last takes most of a minute on a processor."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    text = (ROOT / "docs/guides/own-loop.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert code.count("block.compile(dynamic=False)") == 1
    code = code.replace("block.compile(", 'block.compile(backend="aot_eager", ')
    if not hasattr(PreTrainedModel, "activation_checkpointing_enable"):  # before transformers 5.23, as the guide says
        code = code.replace("activation_checkpointing_enable", "gradient_checkpointing_enable")
    (tmp_path / "loop.py").write_text(code + CHECKS)
    done = forked(2, tmp_path / "loop.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["sequence parallel"][0] == pytest.approx(found["sequence parallel"][1], rel=1e-6)
    assert found["gradients"] < 1e-6
    assert found["first step"][0] == pytest.approx(found["first step"][1], rel=1e-3)  # in bfloat16, and in float32
    assert len(found["losses"]) == 16
    assert found["losses"][-1] < found["losses"][0]
    assert found["saved"]
    # For each of 512 tokens: in two blocks, four matrices of 64² and two of 64·256, and the logits; 64 multiply-adds
    # each for the score and the value of every visible pair, which are 65 of a token, less at the beginning.
    products = 512 * (2 * (4 * 64**2 + 2 * 64 * 256) + 64 * 256) + 2 * 2 * 64 * (65 * 512 - 64 * 65 // 2)
    assert found["flops"] == 3 * 2 * products
    assert found["mfu"] > 0
    assert (tmp_path / "checkpoint" / ".metadata").is_file()
