"""What does each noise of dialogue denoising teach? Models trained with one noise, tested on every noise alone.

    OMP_NUM_THREADS=1 python benchmarks/noise_skills.py [--seeds 1 2 3 4 5]    # about forty minutes on one core

Real dialogues and short runs could not rank the noises (`results/dialogue.md`: the models hardly read their source). So
the dialogues are made up such that every noise can be undone with certainty: a dialogue has six turns of four words,
each word tells its speaker and its place in the dialogue ("B13"), and each turn has two sentences. Names are to be told
from words, the parts of a split turn belong to one speaker, a merged turn falls apart where the speaker changes, a
hidden word stands between two known ones, and the places tell the order of the turns. The window is the whole dialogue,
without marks.

An encoder-decoder of two layers each, 64 wide, writes the dialogue as it was. Each model is trained with no noise, with
one of the five, or with all of them as published, and tested with each. Runs stand in `results/noise-skills.jsonl`;
those that are there are not done again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from longspan.data.turns import Turn
from longspan.models import LongspanConfig, LongspanForConditionalGeneration
from longspan.models.losses import IGNORED
from longspan.tasks.metrics.bootstrap import bootstrap, bootstrap_difference
from longspan_papers.dialogue.noises import NOISES, NoiseConfig, below
from longspan_papers.dialogue.noising import noise
from measure import RESULTS, add_run, finished, machine, shown, table, write_page

FILE = RESULTS / "noise-skills.jsonl"
SPEAKERS, TURNS, WORDS = "ABCD", 6, 4
PADDING, BEGIN, END, LINE = "<pad>", "<s>", "</s>", "<line>"
VOCABULARY = [
    *(PADDING, BEGIN, END, LINE, "[MASK]", ".", "[MASK_SPEAKER]:"),
    *(f"{speaker}:" for speaker in SPEAKERS),
    # A dialogue begins with one of the first places, so that no place stands in one turn only.
    *(f"{speaker}{place}" for speaker in SPEAKERS for place in range((TURNS + 1) * WORDS)),
]
IDS = {word: index for index, word in enumerate(VOCABULARY)}
NOTHING, ALL = "none", "all"
SKILLS: dict[str, dict[str, float]] = {
    NOTHING: {},
    "speakers": {"speaker_share": 0.5},
    "split": {"split": 1.0},
    "merge": {"merge": 1.0},
    "infill": {"infill_share": 0.15},
    "permute": {"permute": 1.0},
    ALL: {"speaker_share": 0.5, "split": 0.5, "merge": 0.5, "infill_share": 0.15, "permute": 1.0},
}
"""Name → noise; each is as strong as published, where one of splitting and merging happens."""
UPDATES, BATCH, RATE, TESTED = 1000, 32, 2e-3, 256


def dialogue(rng: Random) -> list[Turn]:
    """A made-up dialogue; no speaker has two turns in sequence."""
    place, speaker, turns = below(rng, WORDS), "", []
    for _ in range(TURNS):
        others = [other for other in SPEAKERS if other != speaker]
        speaker = others[below(rng, len(others))]
        words = [f"{speaker}{place + index}" for index in range(WORDS)]
        turns.append(Turn(speaker, f"{' '.join(words[: WORDS // 2])}. {' '.join(words[WORDS // 2 :])}."))
        place += WORDS
    return turns


def encode(text: str) -> list[int]:
    """The ids of a dialogue's words; full stops and ends of lines are words of their own."""
    words = text.replace(".", " .").replace("\n", f" {LINE} ").split()
    return [IDS[word] for word in [*words, END]]


def make(rng: Random, count: int, skill: str) -> dict[str, Tensor]:
    """`input_ids`, `attention_mask` `(B, S)` and `labels` `(B, T)` of so many dialogues with a noise."""
    off = dict.fromkeys(NOISES.values(), 0.0)
    config = NoiseConfig(window_share=1.0, markers=False, **(off | SKILLS[skill]))
    pairs = [noise(dialogue(rng), rng, config) for _ in range(count)]
    sources = padded([encode(pair.source) for pair in pairs], IDS[PADDING])
    labels = padded([encode(pair.target) for pair in pairs], IGNORED)
    return {"input_ids": sources, "attention_mask": (sources != IDS[PADDING]).long(), "labels": labels}


def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Rows of unequal length, filled up on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def build(seed: int) -> LongspanForConditionalGeneration:
    """The model of all arms."""
    torch.manual_seed(seed)
    config = LongspanConfig(
        vocab_size=len(VOCABULARY),
        pad_token_id=IDS[PADDING],
        bos_token_id=IDS[BEGIN],
        eos_token_id=IDS[END],
        decoder_start_token_id=IDS[BEGIN],
        is_encoder_decoder=True,
        hidden_size=64,
        num_attention_heads=4,
        num_hidden_layers=2,
        decoder_layers=2,
        intermediate_size=128,
        max_position_embeddings=128,
        position_embedding="sinusoidal",
        scale_embedding=True,
        init_std=0.125,
        normalization="pre",
        dropout=0.0,
        attention="full",
    )
    return LongspanForConditionalGeneration(config)


@torch.no_grad()
def restored(model: nn.Module, batch: dict[str, Tensor]) -> float:
    """The share of dialogues that greedy decoding writes exactly as they were.

    It does so just where every word is the likeliest one behind the true words before it, so nothing is decoded.
    """
    right = model.eval()(**batch).logits.argmax(-1) == batch["labels"]
    model.train()
    return float((right | (batch["labels"] == IGNORED)).all(1).float().mean())


def run(arm: str, seed: int) -> dict[str, Any]:
    """Train one model, and test it on every noise."""
    model, rng, start = build(seed), Random(seed), time.process_time()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    for update in range(1, UPDATES + 1):
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, update / 100) * (1 - update / (UPDATES + 1))
        optimizer.zero_grad()
        loss = model(**make(rng, BATCH, arm)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    scores = {skill: round(100 * restored(model, make(Random(0), TESTED, skill)), 2) for skill in SKILLS}
    seconds = round(time.process_time() - start, 1)
    return {"arm": arm, "seed": seed, "loss": round(loss.item(), 4), "restored": scores, "seconds": seconds}


def scores(rows: Sequence[dict[str, Any]], arm: str, skill: str) -> list[float]:
    """The score of every seed."""
    return [row["restored"][skill] for row in rows if row["arm"] == arm]


def report(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The page's parts."""
    arms = [arm for arm in SKILLS if scores(rows, arm, arm)]
    lines = [[f"**{arm}**", *(shown(bootstrap(scores(rows, arm, skill))) for skill in SKILLS)] for arm in arms]
    singles = [arm for arm in arms if arm not in (NOTHING, ALL)]
    own = []
    for skill in singles:
        trained = scores(rows, skill, skill)
        others = {arm: scores(rows, arm, skill) for arm in singles if arm != skill}
        best = max(others, key=lambda arm: statistics.mean(others[arm]), default=None)
        if best is not None and len(others[best]) == len(trained) == len(scores(rows, NOTHING, skill)):
            gains = [bootstrap_difference(trained, base) for base in (scores(rows, NOTHING, skill), others[best])]
            own.append([skill, *(shown(gain, signed=True) for gain in gains), best])
    seeds = ", ".join(str(seed) for seed in sorted({row["seed"] for row in rows}))
    return [
        f"{machine()}, which did other work as well.",
        f"Dialogues of {TURNS} turns with {WORDS} words each, all of whose noise can be undone with certainty. "
        f"{UPDATES:,} updates of {BATCH} dialogues, AdamW at {RATE}; {TESTED} dialogues are tested for each noise. "
        "Percent of the dialogues that greedy decoding restores without any error, with 95 % bootstrap intervals over "
        f"seeds {seeds}. Rows: the noise of training; columns: that of the test.",
        table(["trained with", *SKILLS], lines),
        "What a noise adds to its own skill, in points, paired by seed: over training without noise, and over the best "
        "of the other four.",
        table(["skill", "over none", "over the best other", "which is"], own),
    ]


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--page", action="store_true", help="write the page of what there is, and run nothing")
    options = parser.parse_args()
    done = {(row["arm"], row["seed"]) for row in finished(FILE)}
    for seed in [] if options.page else options.seeds:
        for arm in SKILLS:
            if (arm, seed) not in done:
                row = run(arm, seed)
                print(json.dumps(row), flush=True)
                add_run(FILE, row)
    write_page("noise-skills", "What each noise teaches", report(sorted(finished(FILE), key=lambda row: row["seed"])))


if __name__ == "__main__":
    main()
