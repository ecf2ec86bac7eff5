"""Run by torchrun: full attention over rows divided between processes: what it makes, sends and drops.

Prints a JSON object with what each process found, in the order of the processes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[4] / "tests/shared"))

from counted import Work
from longspan.attention import FullConfig, Tokens
from longspan.attention.features import sharded  # noqa: F401  # from now on attention reads parts of rows
from longspan.ops.ring import attend_ring
from longspan.ops.shards import Shards

HEADS, HEAD_WIDTH = 2, 23
PARTS = (5, 11, 7)
"""Tokens of each process, as many together as a head is wide."""
DROPOUT = 0.4


def made(length: int, width: int, causal: bool, group: Any = None, **options: Any) -> dict[str, int]:
    """Elements of the largest tensor and the most bytes alive in a forward and a backward pass, and the bytes sent in
    the forward pass, for one padded row of which each process has `length` tokens, in float32."""
    attention = FullConfig(**options).build(width=width, heads=2, causal=causal)
    hidden, mask = torch.randn(1, length, width, requires_grad=True), torch.ones(1, length, dtype=torch.bool)
    mask[:, :3] = False
    shards = Shards.of(hidden, group)
    with Work() as work:
        attention(hidden, Tokens(mask=mask, shards=shards)).sum().backward()
    return {"largest": work.largest, "peak": work.peak, "sent": shards.sent["keys and values"]}


def inputs(dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys, values and the gradients of outputs of whole rows, the same in every process."""
    torch.manual_seed(0)
    return [torch.randn(2, HEADS, sum(PARTS), HEAD_WIDTH, dtype=torch.float64).to(dtype) for _ in range(4)]


def in_parts(
    tensors: list[Tensor], causal: bool, mask: Tensor | None = None, dropout_prob: float = 0.0
) -> list[Tensor]:
    """Outputs of whole rows, and the gradients of whole queries, keys and values, computed in parts."""
    rank = dist.get_rank()
    shards = Shards(None, PARTS)
    first, end = shards.range_of(rank)
    query, key, value, towards = (tensor[:, :, first:end].clone() for tensor in tensors)
    learnt = [tensor.requires_grad_() for tensor in (query, key, value)]
    options: dict[str, Any] = {"shards": shards, "causal": causal, "key_mask": mask, "dropout_prob": dropout_prob}
    torch.manual_seed(1)  # the same in every process, which draw different weights for all that
    output = attend_ring(*learnt, **options)
    parts = [output.detach(), *torch.autograd.grad(output, learnt, towards)]
    return [shards.with_halo(part.transpose(1, 2), sum(PARTS), sum(PARTS)).transpose(1, 2) for part in parts]


def visible(causal: bool, mask: Tensor | None) -> Tensor:
    """The pairs that may attend, `(B or 1, 1, T, T)`."""
    pairs = torch.ones(1, 1, sum(PARTS), sum(PARTS), dtype=torch.bool)
    pairs = pairs.tril() if causal else pairs
    return pairs if mask is None else pairs & mask[:, None, None]


def dropped(causal: bool) -> dict[str, float]:
    """The share of weights that dropout removes, the largest distance of the others from 1 / (1 − p) times the softmax,
    and that of the gradients from those of a dense computation with the same weights removed; the values make outputs
    the weights."""
    query, key, _, towards = inputs(torch.float64)
    value = torch.eye(HEAD_WIDTH, dtype=torch.float64).expand(2, HEADS, -1, -1)
    weights, *grads = in_parts([query, key, value, towards], causal, dropout_prob=DROPOUT)
    pairs = visible(causal, None).expand_as(weights)
    kept = weights != 0
    learnt = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    scores = (learnt[0] @ learnt[1].mT / HEAD_WIDTH**0.5).masked_fill(~pairs, -torch.inf)
    wanted = scores.softmax(-1) * kept / (1 - DROPOUT)
    expected = torch.autograd.grad(wanted @ learnt[2], learnt, towards)
    return {
        "share": float(1 - kept[pairs].double().mean()),
        "weights": float((weights - wanted).detach().abs().max()),
        "gradients": max(float((ours - theirs).abs().max()) for ours, theirs in zip(grads, expected, strict=True)),
        "alike": float((kept[:, :, :5] == kept[:, :, 5:10]).all()),
    }


def rounded(causal: bool) -> list[list[float]]:
    """Errors in bfloat16 of outputs and gradients, each beside those of PyTorch's attention of whole rows."""
    mask = torch.ones(2, sum(PARTS), dtype=torch.bool)
    mask[1, 13:] = False
    pairs = visible(causal, mask)

    def whole(dtype: torch.dtype) -> list[Tensor]:
        *tensors, towards = (tensor.to(dtype) for tensor in inputs(torch.bfloat16))
        learnt = [tensor.clone().requires_grad_() for tensor in tensors]
        output = functional.scaled_dot_product_attention(*learnt, attn_mask=pairs)
        return [output.detach(), *torch.autograd.grad(output, learnt, towards)]

    errors = []
    ours = in_parts(inputs(torch.bfloat16), causal, mask)
    for part, dense, exact in zip(ours, whole(torch.bfloat16), whole(torch.float64), strict=True):
        errors.append([float((each.double() - exact).norm()) for each in (part, dense)])
    return errors


def main() -> None:
    dist.init_process_group("gloo")
    pair = dist.new_group([0, 1])
    found = {
        "made": [made(1100, 8, causal) for causal in (False, True)],
        "doubled": [made(2200, 8, causal) for causal in (False, True)],
        "wide": [made(512, 256, causal) for causal in (False, True)],
        "wide in two": made(512, 256, False, pair) if dist.get_rank() < 2 else None,
        "relative": made(512, 256, False, positions="relative"),
        "dropped": [dropped(causal) for causal in (False, True)],
        "rounded": [rounded(causal) for causal in (False, True)],
    }
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    if dist.get_rank() == 0:
        print(json.dumps(every))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
