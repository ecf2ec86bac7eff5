"""Matrices of few bits: what is stored, and what is read again."""

from __future__ import annotations

import torch
from rounding import GROUP, best_scales, in_eight_bits, in_four_bits, rounded

from longspan_documents.inference.encoders import restored


def test_eight_bits_are_off_by_half_a_step_at_most() -> None:
    matrix = torch.randn(37, 11, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 2, 37)[:, None]
    matrix[5] = 0
    stored, scale = in_eight_bits(matrix)
    assert (stored.dtype, scale.dtype) == (torch.int8, torch.float16)
    back = restored({"table": stored, "table.scale": scale, "bias": torch.ones(3).half()})
    assert set(back) == {"table", "bias"}
    step = matrix.abs().amax(1, keepdim=True) / 127
    # Half a step of rounding, and for the smallest rows what float16 can say of the scale.
    assert bool(((back["table"] - matrix).abs() <= 0.51 * step + 127 * 6e-8).all())
    assert not back["table"][5].any()


def test_four_bits_by_hand() -> None:
    matrix = torch.zeros(1, GROUP)
    # In steps of 2: the nearest of −15, −13, …, 15; what lies beyond is the end of the range.
    matrix[0, :6] = torch.tensor([0.9, -0.9, 14.2, -15.9, 40.0, -40.0])
    right = torch.ones(1, GROUP)
    right[0, :6] = torch.tensor([1.0, -1.0, 15.0, -15.0, 15.0, -15.0])
    scales = torch.full((1, 1), 2.0)
    stored, kept = in_four_bits(matrix, scales)
    assert stored.shape == (1, GROUP // 2)
    assert stored[0, :3].tolist() == [8 + 16 * 7, 15, 15]
    assert torch.equal(restored({"table": stored, "table.scale": kept})["table"], right)
    assert torch.equal(rounded(matrix, scales), right)


def test_what_is_read_is_what_training_rounded() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(9, 3 * GROUP, generator=generator) * torch.logspace(-3, 1, 9)[:, None]
    matrix[4] = 0
    scales = best_scales(matrix)
    assert scales.shape == (9, 3)
    stored, kept = in_four_bits(matrix, scales)
    back = restored({"table": stored, "table.scale": kept})["table"]
    assert torch.equal(back, rounded(matrix, scales))
    # No scale that is tried loses less, the whole range among them, whose steps are a fifteenth of it.
    groups = matrix.unflatten(1, (-1, GROUP))
    whole = groups.abs().amax(-1, keepdim=True) / 7.5
    plain = ((groups / whole.clamp(min=1e-9)).floor() + 0.5).clamp(-7.5, 7.5) * whole
    lost = (back - matrix).square().unflatten(1, (-1, GROUP)).sum(-1)
    assert bool((lost <= (plain - groups).square().sum(-1) * 1.01 + 1e-12).all())
