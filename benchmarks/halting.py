"""What skipping saves: a universal encoder whose positions stop by themselves, with and without leaving them out.

    OMP_NUM_THREADS=1 python benchmarks/halting.py [--quick]    # two minutes on one core

The weights are random, and the halting unit is replaced by one that lets a chosen share of the positions go on at each
step, wherever they stand: the page says what skipping is worth at a given share, not how much a trained model skips.
Before anything is timed, both ways are compared.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor, nn

from longspan.models import LongspanConfig, LongspanModel
from measure import check_close, machine, paired_seconds, table, write_page

WIDTH, HEADS, STEPS = 256, 4, 6
SHARES = (1.0, 0.5, 0.25, 0.1)
"""Shares of the positions that still run which go on at every step."""
MECHANISMS: dict[str, Any] = {"full": "full", "window of 128": {"mechanism": "longformer", "left_tokens": 128}}


class Chosen(nn.Module):
    """A halting unit by which a random share of the running positions goes on at every step.

    Attributes:
        step: how often it was asked; 0 before a text.
    """

    def __init__(self, share: float, tokens: int) -> None:
        super().__init__()
        self.goes_on = torch.rand(STEPS, tokens, generator=torch.Generator().manual_seed(1)) < share
        self.step = 0

    def forward(self, hidden: Tensor) -> Tensor:
        """`(1, T, E)` → `(1, T)`."""
        self.step += 1
        return torch.where(self.goes_on[self.step - 1], 0.001, 0.999)[None]


def build(mechanism: Any, share: float, tokens: int) -> LongspanModel:
    """A random encoder."""
    torch.manual_seed(0)
    config = LongspanConfig(
        vocab_size=1000,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=STEPS,
        intermediate_size=4 * WIDTH,
        attention=mechanism,
        position_embedding="sinusoidal",
        stack={"stack": "universal", "halting": "adaptive"},
    )
    model = LongspanModel(config).eval()
    model.encoder.layers.halting = Chosen(share, tokens)
    return model


@torch.no_grad()
def measure(name: str, share: float, tokens: int, rounds: int) -> list[str]:
    """A line of the table."""
    model, ids = build(MECHANISMS[name], share, tokens), torch.randint(3, 1000, (1, tokens))
    stack: Any = model.encoder.layers

    def run(*, skips: bool) -> Any:
        stack.skips, stack.halting.step = skips, 0
        return model(ids)

    found, dense = run(skips=True), run(skips=False)
    check_close(f"{name}, {share:g}, {tokens}", found.last_hidden_state, dense.last_hidden_state, 1e-3)
    sides = {"skipped": lambda: run(skips=True), "computed": lambda: run(skips=False)}
    seconds = paired_seconds(sides, rounds=rounds, clock=time.process_time)
    mean = float(dense.ponder_times.mean())
    print(name, share, tokens, mean, seconds, flush=True)
    return [
        name,
        f"{tokens:,}",
        f"{share:.0%}",
        f"{mean:.2f}",
        f"{1000 * seconds['computed']:.0f}",
        f"{1000 * seconds['skipped']:.0f}",
        f"{seconds['computed'] / seconds['skipped']:.2f}",
        f"{STEPS / mean:.2f}",
    ]


def main() -> None:
    """Compare, time, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short texts, and no page")
    quick = parser.parse_args().quick
    lengths, rounds = ((256,), 2) if quick else ((512, 2048), 3)
    lines = [measure(name, share, tokens, rounds) for name in MECHANISMS for tokens in lengths for share in SHARES]
    if quick:
        return
    header = ["attention", "tokens", "go on", "mean steps", "computed, ms", "skipped, ms", "times as fast", "at best"]
    parts = [
        f"{machine()}, which did other work as well; processor time, the median of {rounds} runs in turns.",
        f"An encoder with the stack `universal`, {WIDTH} wide, {HEADS} heads, feed-forward layer {4 * WIDTH} wide, at "
        f"most {STEPS} steps, float32, one text. At every step the share in the third column of the positions that "
        "still run goes on, chosen anew; the halting unit is made for this, the weights are random. Computed: every "
        "position at every step, those that have stopped masked, and nothing once all have. Skipped: those that have "
        "stopped are left out of queries (`full` alone), feed-forward layers and norms; their keys and values are "
        "still made, since others read them. Both gave the same states before they were timed. At best is the most "
        "steps over the mean steps, which no skipping reaches as long as keys are read from everywhere.",
        table(header, lines),
    ]
    write_page("halting", "Skipping positions that have stopped", parts)


if __name__ == "__main__":
    main()
