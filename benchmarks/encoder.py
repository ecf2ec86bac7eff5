"""A whole LED-base encoder against its peers: `python benchmarks/encoder.py [--lengths 4096 8192 16384]`.

Peers, on the same random weights and tokens, in one run: transformers' LED encoder (512 tokens on each side, the first
one global), and the same BART encoder with full attention by `scaled_dot_product_attention`. Forward passes, training
steps (forward, backward, optimiser), peak memory of a training step, and beam-5 generation of 128 tokens. Our encoder
must agree with LED before a time is printed. Writes `results/encoder.md`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BartConfig, BartModel, LEDConfig, LEDForConditionalGeneration

import longspan
from longspan.models.transformers_names import enable_checkpointing
from measure import check_close, machine, paired_seconds, peak_bytes, table, write_page

SHAPE: dict[str, Any] = {
    "vocab_size": 50265,
    "d_model": 768,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 0.15}


def led_model() -> LEDForConditionalGeneration:
    """LED-base with random weights."""
    torch.manual_seed(0)
    config = LEDConfig(**SHAPE, attention_window=[1024] * 6, max_encoder_position_embeddings=16384)
    return LEDForConditionalGeneration(config).eval()


def our_model(source: LEDForConditionalGeneration) -> nn.Module:
    """The same weights in a Longspan model."""
    return longspan.from_transformers(source).eval()


def full_encoder(dtype: torch.dtype) -> nn.Module:
    """A BART encoder of the same shape with full attention."""
    torch.manual_seed(0)
    config = BartConfig(**SHAPE, max_position_embeddings=16384, attn_implementation="sdpa")
    return BartModel(config).get_encoder().to(dtype).eval()


def batch(length: int) -> dict[str, Tensor]:
    """One document of random tokens with the first one global."""
    ids = torch.randint(10, 50000, (1, length), generator=torch.Generator().manual_seed(1))
    marks = torch.zeros(1, length, dtype=torch.int64)
    marks[:, 0] = 1
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "global_attention_mask": marks}


def encoders(dtype: torch.dtype) -> dict[str, Callable[[dict[str, Tensor]], Tensor]]:
    """The three encoders, each a function of a batch."""
    led = led_model().to(dtype)
    ours, full = our_model(led).get_encoder(), full_encoder(dtype)
    theirs = led.get_encoder()

    def without_globals(tokens: dict[str, Tensor]) -> Tensor:
        return full(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state

    return {
        "ours": lambda tokens: ours(**tokens).last_hidden_state,
        "LED": lambda tokens: theirs(**tokens).last_hidden_state,
        "full": without_globals,
    }


def forward_rows(lengths: list[int], dtype: torch.dtype) -> list[list[str]]:
    sides, rows = encoders(dtype), []
    with torch.no_grad():
        for run in sides.values():
            run(batch(1024))
        for length in lengths:
            outputs: dict[str, Tensor] = {}
            tokens = batch(length)
            runs = {
                name: lambda name=name, run=run, tokens=tokens, outputs=outputs: outputs.update({name: run(tokens)})
                for name, run in sides.items()
            }
            seconds = paired_seconds(runs, rounds=1, warm_ups=0)
            check_close(f"LED encoder at {length}", outputs["ours"], outputs["LED"], TOLERANCE[dtype])
            rows.append(_row("forward", length, dtype, seconds))
    return rows


def training_step(encoder: nn.Module, tokens: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Forward, backward and update of an encoder on a made-up loss."""
    encoder(**tokens).last_hidden_state.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def trainable(side: str, dtype: torch.dtype, *, checkpointing: bool = False) -> tuple[nn.Module, torch.optim.Optimizer]:
    """An encoder in training mode with its optimiser."""
    led = led_model()
    model = led if side == "LED" else our_model(led)
    encoder = (full_encoder(dtype) if side == "full" else model.get_encoder()).to(dtype)  # type: ignore[operator]
    if checkpointing:
        enable_checkpointing(model)  # type: ignore[arg-type]
        model.train()
    encoder.train()
    return encoder, torch.optim.SGD(encoder.parameters(), lr=1e-6)


def training_rows(lengths: list[int], dtype: torch.dtype) -> list[list[str]]:
    made = {name: trainable(name, dtype) for name in ("ours", "LED", "full")}
    rows = []
    for length in lengths:
        runs = {}
        for name, (encoder, optimizer) in made.items():
            tokens = batch(length)
            if name == "full":
                del tokens["global_attention_mask"]
            runs[name] = lambda e=encoder, t=tokens, o=optimizer: training_step(e, t, o)
        rows.append(_row("training step", length, dtype, paired_seconds(runs, rounds=1, warm_ups=0)))
    return rows


def training_memory(side: str, length: int, checkpointing: bool) -> Iterator[None]:
    """For `peak_bytes`: one float32 training step."""
    encoder, optimizer = trainable(side, torch.float32, checkpointing=checkpointing)
    training_step(encoder, batch(1024), optimizer)
    yield
    training_step(encoder, batch(length), optimizer)
    yield


def memory_rows(length: int) -> list[list[str]]:
    kinds = {"LED": ("LED", False), "ours": ("ours", False), "ours, checkpointing": ("ours", True)}
    found = {name: peak_bytes(training_memory, side, length, more) for name, (side, more) in kinds.items()}
    return [[name, f"{size / 2**30:.2f} GiB", f"{size / found['LED']:.2f}"] for name, size in found.items()]


def generation_rows(length: int, dtype: torch.dtype) -> list[list[str]]:
    led = led_model().to(dtype)
    models = {"ours": our_model(led), "LED": led}
    settings = {"num_beams": 5, "max_new_tokens": 128, "min_new_tokens": 128, "do_sample": False}
    tokens = batch(length)
    produced: dict[str, Tensor] = {}

    def generate(name: str) -> None:
        produced[name] = models[name].generate(**tokens, **settings)  # type: ignore[operator]

    seconds = paired_seconds({name: lambda name=name: generate(name) for name in models}, rounds=1, warm_ups=0)
    if dtype == torch.float32 and not torch.equal(produced["ours"], produced["LED"]):
        raise SystemExit("the two models generate different tokens; no timing is reported")
    rates = {name: 128 / value for name, value in seconds.items()}
    row = [
        f"{length:,}",
        _name(dtype),
        *(f"{rates[name]:.2f}" for name in models),
        f"{rates['ours'] / rates['LED']:.2f}×",
    ]
    print("generation", *row, sep=" | ", flush=True)
    return [row]


def _row(kind: str, length: int, dtype: torch.dtype, seconds: dict[str, float]) -> list[str]:
    peers = [f"{seconds[name]:.2f} s ({seconds[name] / seconds['ours']:.2f}×)" for name in ("LED", "full")]
    row = [kind, f"{length:,}", _name(dtype), f"{seconds['ours']:.2f} s", *peers]
    print(*row, sep=" | ", flush=True)
    return row


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192, 16384])
    parser.add_argument("--dry", action="store_true", help="write no page")
    options = parser.parse_args()
    trained = [length for length in options.lengths if length <= 8192]
    longest = max(trained, default=options.lengths[0])
    rows: list[list[str]] = []
    for dtype in (torch.float32, torch.bfloat16):
        rows += forward_rows(options.lengths, dtype)
        rows += training_rows(trained, dtype)
    generation = [row for dtype in (torch.float32, torch.bfloat16) for row in generation_rows(longest, dtype)]
    memory = memory_rows(longest)
    for row in memory:
        print(*row, sep=" | ")
    if options.dry:
        return
    speed = ["pass", "tokens", "type", "ours", "transformers' LED (ratio)", "full attention (ratio)"]
    tokens = ["source tokens", "type", "ours, tokens/s", "LED, tokens/s", "ratio"]
    parts = [
        f"LED-base shape: 6 layers, 768 wide, 12 heads, 512 tokens on each side, one global token, random weights, "
        f"batch 1. {machine()}. A ratio above 1 means that ours is that much faster; outputs agreed first.",
        table(speed, rows),
        "Generation with 5 beams of 128 tokens, encoder included; in float32 both sides produced the same tokens.",
        table(tokens, generation),
        f"Peak memory that a float32 training step at {longest:,} tokens adds.",
        table(["encoder", "peak", "share of LED"], memory),
    ]
    print(write_page("encoder", "A long encoder, whole", parts))


if __name__ == "__main__":
    main()
