"""Run by torchrun: models whose weights are divided between the processes, beside the same models whole.

Prints a JSON object, name of a case → how far loss, gradients, state dict and inference are from those of one process.
The gradient of P processes is the mean of their own, of which the whole model in each computes one.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy, get_module_children_bottom_up
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[4] / "tests/shared"))

from contract import test_heads, test_stacked_models
from contract.forms import CONFIGS
from flat import flat
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanModel
from longspan.models.fsdp import shard, whole_weights
from longspan.stacks import STACKS
from longspan.training import filling
from longspan.training.filling import fill_new, without_weights

IDS = torch.randint(3, 61, (4, 31), generator=torch.Generator().manual_seed(1))
IDS[:, 4] = 2
MASK = torch.ones_like(IDS)
MASK[1, -5:], MASK[2, :29], MASK[3, :4] = 0, 0, 0
TEXTS = {"input_ids": IDS, "attention_mask": MASK}
SIZES = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "dropout": 0.0}
SIZES |= {"intermediate_size": 24, "max_position_embeddings": 41, "init_std": 0.2}
HALTING = [{}, {"freeze_halted": False}, {"threshold": 0.4}]

Case = tuple[str, Callable[[], Any], dict[str, Any]]


def mechanisms() -> Iterator[Case]:
    """Every mechanism in a plain model: a language model where it looks back, an encoder where it looks both ways."""
    for name, attention in CONFIGS.items():
        config = LongspanConfig(**SIZES, attention=attention.to_dict())
        if attention.causal:
            yield f"{name}, causal", lambda config=config: LongspanForCausalLM(config), {**TEXTS, "labels": IDS}
        if attention.bidirectional:
            yield name, lambda config=config: LongspanModel(config), TEXTS


def stacks() -> Iterator[Case]:
    """Every stack with every mechanism inside, writing too; and positions that stop by themselves."""
    for name in test_stacked_models.filled(STACKS):
        yield name, lambda name=name: test_stacked_models.build(name), TEXTS
    for mark in test_stacked_models.every_writer.args[1]:
        name, kind = mark
        case = f"{name}, {kind.__name__}"
        yield case, lambda name=name, kind=kind: test_stacked_models.build(name, kind), {**TEXTS, "labels": IDS}
    for options in HALTING:
        stack = {"stack": "universal", "halting": "adaptive", **options}
        config = LongspanConfig(**{**SIZES, "num_hidden_layers": 6}, stack=stack, attention={"mechanism": "full"})
        yield json.dumps(stack), lambda config=config: LongspanModel(config), TEXTS


def each_once(cases: Iterable[Case]) -> Iterator[Case]:
    """Every stack that reads, and every one that writes, with one of the mechanisms inside."""
    seen = set[tuple[str, str]]()
    for case in cases:
        stack, _, inside = case[0].partition(" of ")
        kind = inside.partition(", ")[2] or stack.partition(", ")[2]
        if (stack, kind) not in seen:
            seen.add((stack, kind))
            yield case


def heads() -> Iterator[Case]:
    """Every head with its labels."""
    for spec in test_heads.CASES:
        ids, mask = test_heads.texts(spec)
        given = {"input_ids": ids, "attention_mask": mask}
        given |= test_heads.of(test_heads.INPUTS, spec) | test_heads.of(test_heads.LABELS, spec)
        yield json.dumps(spec), lambda spec=spec: test_heads.make(spec), given


def loss_of(model: Any, given: dict[str, Any]) -> torch.Tensor:
    """The model's own loss, or the mean square of its first output."""
    output = model(**given)
    loss = output.loss if getattr(output, "loss", None) is not None else output[0].square().mean()
    own = getattr(output, "aux_loss", None)
    return loss if own is None else loss + own


def by_accelerate(model: Any, device: torch.device) -> None:
    """Divide as accelerate's FSDP2 does, which Trainer has by `fsdp` and `fsdp_config`: what its policy matches."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
    plugin.set_auto_wrap_policy(model)
    wraps: Any = fsdp2_prepare_auto_wrap_policy(plugin, model)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in get_module_children_bottom_up(model)[:-1]:
        if wraps(module):
            fully_shard(module, mesh=mesh)
    assert any(isinstance(module, FSDPModule) for module in model.modules())
    fully_shard(model, mesh=mesh)


def means_of_gradients(model: Any) -> dict[str, torch.Tensor]:
    """Of all processes, by the name of the weight: one exchange, where each weight's own would wait for all."""
    weights = dict(model.named_parameters())
    means = flat([each.grad for each in weights.values()], weights.values())
    dist.all_reduce(means)
    parts = (means / dist.get_world_size()).split([each.numel() for each in weights.values()])
    return {name: part.view_as(each) for part, (name, each) in zip(parts, weights.items(), strict=True)}


def distance(
    build: Callable[[], Any], given: dict[str, Any], divide: Callable[[Any, torch.device], None] = shard
) -> float:
    """The largest difference, of gradients beside the largest of each: each process looks at its own part of them."""
    torch.manual_seed(3)
    model = build().double().train()
    whole = copy.deepcopy(model)
    divide(model, torch.device("cpu"))
    world, rank = dist.get_world_size(), dist.get_rank()
    part = {name: value.chunk(world)[rank] for name, value in given.items()}
    torch.manual_seed(5)
    expected = loss_of(whole, part)
    expected.backward()
    torch.manual_seed(5)
    loss = loss_of(model, part)
    loss.backward()
    worst = abs(float(loss) - float(expected))
    means = means_of_gradients(whole)
    for name, weight in model.named_parameters():
        wanted = means[name].chunk(world)
        wanted = wanted[rank] if rank < len(wanted) else wanted[0][:0]
        found: Any = weight.grad
        found = torch.zeros_like(wanted) if found is None else found.to_local()
        assert found.shape == wanted.shape, name
        if len(found):
            worst = max(worst, float((found - wanted).abs().max()) / max(1.0, float(means[name].abs().max())))
    saved = whole_weights(model)
    if saved.keys() != whole.state_dict().keys() or not all(
        map(torch.equal, saved.values(), whole.state_dict().values())
    ):
        return float("inf")
    with torch.no_grad():
        found, wanted = (each.eval()(**part)[0] for each in (model, whole))
    return max(worst, float((found - wanted).abs().max()))


def filled_distance(build: Callable[[], Any], given: dict[str, Any], folder: Path) -> float:
    """How far a model that is built without weights, sharded, and filled from files is from one that is built whole:
    infinitely, where any weight or buffer differs by a bit; else the largest difference of outputs."""

    def seeded() -> Any:
        torch.manual_seed(3)
        return build()

    whole = seeded().eval()
    with without_weights():
        model = build().eval()
    model.tie_weights()
    before = {name: value for name, value in model.named_parameters() if not value.is_meta}
    shard(model, torch.device("cpu"))
    fill_new(model, seeded, folder)
    buffers = dict(model.named_buffers(remove_duplicate=False))
    same = before == {} and all(torch.equal(value, buffers[name]) for name, value in whole.named_buffers())
    saved, expected = whole_weights(model), whole.state_dict()
    same = same and saved.keys() == expected.keys() and all(map(torch.equal, saved.values(), expected.values()))
    tied = [len({id(weight) for _, weight in each.named_parameters(remove_duplicate=False)}) for each in (whole, model)]
    with torch.no_grad():
        found, wanted = (each(**given)[0].nan_to_num() for each in (model, whole))  # scores of padding are infinite
    return float((found - wanted).abs().max()) if same and tied[0] == tied[1] else float("inf")


def main() -> None:
    """Go through the cases of the lists that the command line names."""
    dist.init_process_group("gloo")
    found = {}
    for which in sys.argv[1:]:
        if which == "accelerate":  # positions that stop by themselves call blocks unequally often
            for name, build, given in each_once(case for case in stacks() if "halting" not in case[0]):
                found[f"{name}, by accelerate"] = distance(build, given, by_accelerate)
            continue
        if which.startswith("filled="):
            filling.SMALL, filling.RESIDENT = 0, 5_000  # each weight is in a file
            for name, build, given in (case for case in mechanisms() if not case[0].endswith(", causal")):
                inputs = {key: value for key, value in given.items() if key != "labels"}
                found[f"{name}, filled"] = filled_distance(build, inputs, Path(which.partition("=")[2]))
            continue
        for name, build, given in {"mechanisms": mechanisms, "stacks": stacks, "heads": heads}[which]():
            found[name] = distance(build, given)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    if dist.get_rank() == 0:
        print(json.dumps({name: max(each[name] for each in every) for name in found}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
