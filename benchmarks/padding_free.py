"""Padded batches against packed rows: tokens per second of the same documents by the same model, on one processor.

    LONGSPAN_DATA=… OMP_NUM_THREADS=1 python benchmarks/padding_free.py [--documents 16] [--rounds 3]

Abstracts of SciTLDR and papers of PubMed in equal parts, papers cut at the model's longest text. Logits, loss and
gradients of both sides are compared before anything is timed; times are the processor's. The page is
`results/padding-free.md`.
"""

from __future__ import annotations

import argparse
import random
import time
from functools import partial
from itertools import islice
from typing import Any

import torch

from longspan import LongspanConfig, LongspanForMaskedLM
from longspan.data.corpus.sources import Corpus
from longspan.tasks.predicting import pad, without_padding
from longspan_documents.inference.encoders import bundled_encoder
from measure import RESULTS, check_close, machine, paired_seconds, table

LONGEST = 2048
SIDES = ("padded", "packed")
WINDOW = {"left_tokens": 64, "right_tokens": 64}
MECHANISMS: dict[str, dict[str, Any]] = {
    "full": {"mechanism": "full"},
    "longformer, first token global": {"mechanism": "longformer", **WINDOW},
    "poolingformer": {"mechanism": "poolingformer", **WINDOW},
}
SIZES = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}


def main() -> None:
    """Compare, time and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--documents", type=int, default=16, help="documents in a batch")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    encoder = bundled_encoder()
    texts = documents(encoder.tokenizer, options.documents)
    batches = {side: batch(texts, side) for side in SIDES}
    lengths = sorted(map(len, texts))
    real, padded = sum(lengths), len(texts) * lengths[-1]
    rows = []
    for name, attention in MECHANISMS.items():
        rows.append([name, *measured(attention, batches, len(encoder.tokenizer), real, options.rounds)])
        print(*rows[-1], sep=" | ", flush=True)
    head = ["attention", *(f"{what}, {side}" for what in ("forward", "forward + backward") for side in SIDES)]
    head = [*head[:3], "ratio", *head[3:], "ratio"]
    page = f"""# Padded batches and packed rows

{len(texts)} documents, abstracts of SciTLDR and papers of PubMed in equal parts, of {lengths[0]} to {lengths[-1]}
tokens (half have up to {lengths[len(lengths) // 2]}): {real:,} tokens, or {padded:,} padded. A masked language model of
4 layers, width 256, in float32. Thousands of real tokens per second of processor time, one thread, the sides by turns
in one process; logits, loss and gradients were compared first. Made by `benchmarks/padding_free.py` on {machine()}.

{table(head, rows)}
"""
    (RESULTS / "padding-free.md").write_text(page, encoding="utf-8")


def documents(tokenizer: Any, count: int) -> list[list[int]]:
    """Token ids of so many documents, mixed."""
    texts: list[str] = []
    for source in ("scitldr_a", "pubmed"):
        corpus = Corpus(
            source=source,
            split="validation",
            limit=None,
            text_field=None,
            text_unit="file",
            text_split="file",
            on_error="raise",
        )
        texts += [piece for piece, _ in islice(corpus.pieces(), count // 2)]
    random.Random(1).shuffle(texts)
    return [tokenizer(text)["input_ids"][:LONGEST] for text in texts]


def batch(texts: list[list[int]], side: str) -> dict[str, Any]:
    """All documents, 15 % of whose tokens are to be guessed."""
    draw = random.Random(2)
    features = [{"input_ids": ids, "labels": [one if draw.random() < 0.15 else -100 for one in ids]} for ids in texts]
    collate = partial(pad, fillers={"input_ids": 0, "labels": -100})
    return collate(features) if side == "padded" else without_padding(collate, features)


def measured(
    attention: dict[str, Any], batches: dict[str, dict[str, Any]], vocabulary: int, real: int, rounds: int
) -> list[str]:
    """Thousands of tokens per second of both sides and their ratio, without and with backward."""
    torch.manual_seed(1)
    rule = "first" if attention["mechanism"] == "longformer" else "none"
    config = LongspanConfig(
        vocab_size=vocabulary,
        max_position_embeddings=LONGEST,
        attention=attention,
        global_tokens=rule,
        dropout=0.0,
        **SIZES,
    )
    model = LongspanForMaskedLM(config)

    def states(side: str) -> torch.Tensor:
        model.eval()
        with torch.no_grad():
            return model(**batches[side], only_masked=True).logits

    def learn(side: str) -> torch.Tensor:
        model.train()
        model.zero_grad()
        loss = model(**batches[side]).loss
        loss.backward()
        return loss.detach()

    check_close("logits", states("padded"), states("packed"), 1e-4)
    losses, gradients = [], []
    for side in SIDES:
        losses.append(learn(side))
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]))
    check_close("loss", *losses, 1e-5)
    check_close("gradients", *gradients, 1e-4)
    cells = []
    for run in (states, learn):
        seconds = paired_seconds(
            {side: partial(run, side) for side in SIDES}, rounds=rounds, warm_ups=0, clock=time.process_time
        )
        cells += [f"{real / seconds[side] / 1000:.2f}" for side in SIDES]
        cells.append(f"{seconds['padded'] / seconds['packed']:.2f}")
    return cells


if __name__ == "__main__":
    main()
