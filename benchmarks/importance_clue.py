"""The importance tagger as a clue of the summariser's sentence scorer: one further column, to be tried.

Part of `dialogue_bundled.py`. A small network reads the encoder's state of each token, which stays as it is, and learns
whether the token belongs to a word whose lemma the summary names (the labels of the task `importance`); the clue is
its mean probability over a sentence. Documents are halved, and each half is tagged by the tagger of the other, so that
the scorer is not fitted on what a tagger knows by heart; documents to be measured are tagged by the mean of both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

sys.path.append(str(Path(__file__).parents[1] / "tools" / "bundled"))

import summary_weights  # pyright: ignore[reportMissingImports]

from longspan.models.heads.sentence_network import sums_by_sentence
from longspan.tasks.summaries.importance import labels_of
from longspan.tasks.tokenizers import encode_sentences
from longspan_documents.summaries import picker
from longspan_documents.summaries.clues import Sentences, clues, standardised

HIDDEN, STEPS, BATCH, RATE, DECAY = 64, 300, 4096, 2e-3, 1e-2
TAKEN = 1500
"""Tokens of a document that a tagger is trained on, at most."""

Tagger = Callable[[Tensor], Tensor]


@dataclass(eq=False)
class Tokens:
    """A document's tokens.

    Attributes:
        states: `(T, E)` float16, of the encoder.
        owners: `(T,)`, the sentence that each belongs to.
        sentences: N.
        labels: `(T,)` bool, whether each is part of a word that the summary names.
    """

    states: Tensor
    owners: Tensor
    sentences: int
    labels: Tensor

    def means(self, tagger: Tagger) -> np.ndarray:
        """The mean probability of each sentence's tokens, `(N,)`."""
        with torch.no_grad():
            chances = tagger(self.states.float()).sigmoid()
        sums = torch.zeros(self.sentences).index_add(0, self.owners, chances)
        counts = torch.zeros(self.sentences).index_add(0, self.owners, torch.ones_like(chances))
        return (sums / counts.clamp(min=1)).numpy()


def tokens_of(texts: Sequence[str], references: Sequence[str], encoder: Any) -> Tokens:
    """The tokens of a document's sentences, read in it."""
    found = encoder.tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=True)
    # As the encoder reads them; a sentence without a token is one unknown one.
    encoded = encode_sentences(list(texts), encoder.tokenizer)
    # Lemmas are looked up once for the whole text, a line for each sentence.
    starts = np.cumsum([0, *(len(text) + 1 for text in texts)])
    places = [
        (first + begin, first + end)
        for first, each in zip(starts.tolist(), found["offset_mapping"], strict=False)
        for begin, end in each or [(0, 0)]
    ]
    lengths = torch.tensor([len(ids) for ids in encoded])
    owners = torch.arange(len(encoded)).repeat_interleave(lengths)
    ids = torch.tensor([token for each in encoded for token in each])
    labels = [label == 1 for label in labels_of(places, "\n".join(texts), " ".join(references))]
    states: list[Tensor] = []

    def keep(found: Tensor) -> Tensor:
        states.append(found.half())
        return found

    sums_by_sentence(encoder.model.model.encoder, ids, owners, keep)
    return Tokens(torch.cat(states), owners, len(encoded), torch.tensor(labels))


def train_tagger(documents: Sequence[Tokens], weights: Sequence[float], seed: int) -> Tagger:
    """A network with one hidden layer; each document is drawn by its weight, and of it each token alike."""
    torch.manual_seed(seed)
    draw = np.random.default_rng(seed)
    states, labels, shares = [], [], []
    for each, weight in zip(documents, weights, strict=True):
        rows = torch.from_numpy(draw.permutation(len(each.states))[:TAKEN])
        states.append(each.states[rows])
        labels.append(each.labels[rows])
        shares.append(np.full(len(rows), weight / len(rows)))
    known, label, cumulated = torch.cat(states), torch.cat(labels).float(), np.cumsum(np.concatenate(shares))
    network = nn.Sequential(nn.Linear(known.shape[1], HIDDEN), nn.GELU(), nn.Dropout(0.1), nn.Linear(HIDDEN, 1))
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    for _ in range(STEPS):
        rows = torch.from_numpy(np.searchsorted(cumulated, draw.random(BATCH) * cumulated[-1]))
        loss = binary_cross_entropy_with_logits(network(known[rows].float())[:, 0], label[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    network.eval()
    return lambda hidden: network(hidden)[:, 0]


def separation(tagger: Tagger, documents: Sequence[Tokens]) -> float:
    """The mean over documents of the area under the curve: how often an important token is above another."""
    areas = []
    for each in documents:
        with torch.no_grad():
            ranks = tagger(each.states.float()).argsort().argsort().double() + 1
        right = each.labels
        count, others = int(right.sum()), int((~right).sum())
        if count and others:
            areas.append(float((ranks[right].sum() - count * (count + 1) / 2) / (count * others)))
    return 100 * float(np.mean(areas))


@contextmanager
def with_clue(means: dict[tuple[str, ...], np.ndarray]):
    """While it lasts, fitting and picking know two further clues, the means of each document and these standardised."""

    def more(document: Sentences, worth: np.ndarray) -> np.ndarray:
        own = means[tuple(document.texts)]
        return np.concatenate(
            [clues(document, worth), np.stack([own, standardised(own)], 1).astype(np.float32)], axis=1
        )

    summary_weights.clues = picker.clues = more  # pyright: ignore[reportPrivateImportUsage]
    try:
        yield
    finally:
        summary_weights.clues = picker.clues = clues  # pyright: ignore[reportPrivateImportUsage]
