"""What a compressed memory is worth: recall beyond the memory, and the time of a segment beside a peer.

    python benchmarks/compressive.py            # minutes on one core
    python benchmarks/compressive.py --quick    # tiny, and no page

Recall: small models of the stack `recurrent` read rows of the probe `recall` of `longspan compare` in segments; the
last one asks for facts that stand anywhere in the row. All are trained on the same rows, so many steps, and read
memories of the lengths that stand in the table. Speed: one segment behind full memories, without gradient and as a step
of training, of ours and of the package compressive-transformer-pytorch (the extra `peers`), where it is installed. Its
positions are learned and its residuals gated, so that outputs are not compared; sizes, memories and the loss are equal.

A finished run is a line of `results/compressive.jsonl`, and is skipped when the script is started again.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan import LongspanConfig, LongspanForCausalLM
from longspan.compare.probes import PROBES
from longspan.compare.probes.base import HELD_OUT
from longspan.progress import progress_bar
from measure import RESULTS, add_run, finished, machine, paired_seconds, rows_of, table, write_page

TOKENS, SEGMENT, ROWS = 160, 16, 32
ARMS: dict[str, dict[str, Any]] = {
    "memory of 32": {"memory_tokens": 32},
    "memory of 16, 16 compressed by convolution": {"memory_tokens": 16, "compressed_tokens": 16},
    "the same, by mean": {"memory_tokens": 16, "compressed_tokens": 16, "compression": "mean"},
    "the same, by max": {"memory_tokens": 16, "compressed_tokens": 16, "compression": "max"},
    "the same, convolution that learns by decoding": {
        "memory_tokens": 16,
        "compressed_tokens": 16,
        "compression_loss": "auto_encoding",
    },
    "memory of 64": {"memory_tokens": 64},
}
"""Words → options of the stack. All but the last hold 32 states in each layer; with a rate of 3, 64 tokens."""
NEAR, MIDDLE = 32, 64
"""Distances that the first memory reaches, and the compressed ones."""


def recall_model(options: dict[str, Any], seed: int) -> LongspanForCausalLM:
    """One layer, small enough to learn within a minute."""
    torch.manual_seed(seed)
    config = LongspanConfig(
        vocab_size=PROBES["recall"](TOKENS, Path()).vocabulary,
        hidden_size=64,
        num_attention_heads=4,
        num_hidden_layers=1,
        intermediate_size=128,
        dropout=0.0,
        position_embedding="none",
        normalization="pre",
        scale_embedding=True,
        init_std=0.1,
        attention={"mechanism": "full", "positions": "relative", "bias": False},
        stack={"stack": "recurrent", **options},
    )
    return LongspanForCausalLM(config)


def read(model: LongspanForCausalLM, ids: Tensor) -> tuple[Tensor, Tensor | float]:
    """The logits of the last segment, and what compressions have lost, while training."""
    cache, lost, decoded = None, 0.0, None
    for part in ids.split(SEGMENT, 1):
        decoded = model.decoder(part, cache=cache, use_cache=True)
        cache = decoded.cache
        lost = lost if decoded.stack_loss is None else lost + decoded.stack_loss
    assert decoded is not None
    assert decoded.last_hidden_state is not None
    return model.lm_head(decoded.last_hidden_state), lost


def recall(options: dict[str, Any], seed: int, steps: int, held_out: int) -> dict[str, float]:
    """Train one model; the share of right answers by distance."""
    model, probe = recall_model(options, seed).train(), PROBES["recall"](TOKENS, Path())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    for step in progress_bar(range(steps), doing="training"):
        ids, labels, _ = rows_of(probe, seed, step * ROWS, ROWS)
        logits, lost = read(model, ids)
        loss = cross_entropy(logits.flatten(0, 1), labels[:, -SEGMENT:].flatten()) + lost
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    ids, labels, distances = rows_of(probe, HELD_OUT, 0, held_out)
    with torch.no_grad():
        right = read(model, ids)[0].argmax(-1) == labels[:, -SEGMENT:]
    distances = distances.reshape(held_out, -1)[:, -SEGMENT:]
    groups = {
        f"to {NEAR}": distances <= NEAR,
        f"to {MIDDLE}": (distances > NEAR) & (distances <= MIDDLE),
        "further": distances > MIDDLE + SEGMENT,
    }
    return {name: 100 * float(right[which].double().mean()) for name, which in groups.items()}


def scores_of(words: str, seeds: int, steps: int) -> list[dict[str, float]]:
    """The scores of all seeds of an arm; those that are missing are measured and added to the file."""
    file = RESULTS / "compressive.jsonl"
    scores = []
    for seed in range(1, seeds + 1):
        run = {"arm": words, "seed": seed, "steps": steps}
        done = [row["right"] for row in finished(file) if all(row[name] == value for name, value in run.items())]
        scores.append(done[0] if done else recall(ARMS[words], seed, steps, 256))
        if not done:
            add_run(file, {**run, "right": scores[-1]})
    return scores


def our_segment(sizes: dict[str, int], *, learns: bool) -> Callable[[], Any]:
    """A segment of ours behind full memories."""
    config = LongspanConfig(
        vocab_size=256,
        hidden_size=sizes["width"],
        num_attention_heads=8,
        num_hidden_layers=2,
        intermediate_size=4 * sizes["width"],
        dropout=0.0,
        position_embedding="none",
        normalization="pre",
        attention={"mechanism": "full", "positions": "relative", "bias": False},
        stack={
            "stack": "recurrent",
            "memory_tokens": sizes["segment"],
            "compressed_tokens": sizes["compressed"],
            "rate": 4,
        },
    )
    model = LongspanForCausalLM(config).train(learns)
    memory: dict[str, Any] = {"cache": None}

    def run() -> None:
        with torch.set_grad_enabled(learns):
            ids = torch.randint(3, 256, (1, sizes["segment"]))
            output = model(ids, labels=ids if learns else None, cache=memory["cache"], use_cache=True)
            memory["cache"] = output.cache
            if learns:
                output.loss.backward()

    return run


def their_segment(sizes: dict[str, int], *, learns: bool) -> Callable[[], Any]:
    """A segment of the peer's."""
    from compressive_transformer_pytorch import CompressiveTransformer

    model = CompressiveTransformer(
        num_tokens=256,
        dim=sizes["width"],
        depth=2,
        seq_len=sizes["segment"],
        mem_len=sizes["segment"],
        cmem_len=sizes["compressed"],
        cmem_ratio=4,
        heads=8,
        gru_gated_residual=True,
    ).train(learns)
    memory: dict[str, Any] = {"memories": None}

    def run() -> None:
        with torch.set_grad_enabled(learns):
            ids = torch.randint(3, 256, (1, sizes["segment"]))
            logits, memory["memories"], lost = model(ids, memories=memory["memories"])
            if learns:
                (cross_entropy(logits[0, :-1], ids[0, 1:]) + lost).backward()

    return run


def speed(segments: list[int], rounds: int) -> Iterator[list[str]]:
    """A row for each length of segment: milliseconds of both."""
    for length in segments:
        sizes = {"width": 512, "segment": length, "compressed": length // 4}
        for learns in (False, True):
            sides = {"ours": our_segment(sizes, learns=learns)}
            if importlib.util.find_spec("compressive_transformer_pytorch") is not None:
                sides["theirs"] = their_segment(sizes, learns=learns)
            seconds = paired_seconds(sides, rounds=rounds, warm_ups=3, clock=time.process_time)
            cells = [
                f"{1000 * seconds[name]:.0f}" if name in seconds else "not installed" for name in ("ours", "theirs")
            ]
            yield [str(length), "training" if learns else "reading", *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, and no page")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    steps, seeds = arguments.steps, arguments.seeds
    lines = []
    for words, options in ARMS.items():
        scores = [recall(options, 1, 20, 8)] if arguments.quick else scores_of(words, seeds, steps)
        cells = [
            " / ".join(f"{score[group]:.0f}" for score in scores) for group in (f"to {NEAR}", f"to {MIDDLE}", "further")
        ]
        lines.append([words, *cells])
        print(*lines[-1], sep=" | ", flush=True)
    times = list(speed([64] if arguments.quick else [512, 1024], 2 if arguments.quick else 7))
    if arguments.quick:
        print(lines, times)
        return
    text = [
        f"`python benchmarks/compressive.py`; {machine()}.",
        "## Recall beyond the memory",
        f"One layer of width 64, rows of {TOKENS} tokens in segments of {SEGMENT}, {steps} steps of {ROWS} rows, "
        f"{seeds} seeds, each a number: right answers in per cent by the distance of the fact; chance is 12.5. "
        "The rate is 3; a question is asked up to 15 tokens behind the last memory.",
        table(["each layer reads", f"to {NEAR}", f"to {MIDDLE}", f"beyond {MIDDLE + SEGMENT}"], lines),
        "## A segment",
        "Milliseconds of one core, two layers of width 512, eight heads, a memory of a segment and a quarter as many "
        "compressed states at a rate of 4, float32, the sides in turns; training with backward, the compression's loss "
        "included.",
        table(["segment", "", "ours", "compressive-transformer-pytorch"], times),
    ]
    write_page("compressive", "A compressed memory", text)


if __name__ == "__main__":
    main()
