"""The weights by which `longspan summarize` picks sentences: `longspan_documents/bundled/summary.safetensors`.

    LONGSPAN_DATA=… python tools/bundled/summary_weights.py [--encoder DIR] [--without KIND …] [--output FILE]

Fitted on documents whose licences let a model be shipped that was trained on them, with the summaries that their
authors or readers wrote; each kind of document counts the same, and within it each document. `--without` leaves kinds
out, to measure how the rest does on a kind that it never saw. The vectors of sentences come from the bundled encoder.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor, nn
from torch.nn.functional import gelu

import longspan_documents
from longspan.data.summaries.readers import read_rows
from longspan.data.summaries.rows import SummaryRow
from longspan.data.text.sentences import contents_of, split_sentences, split_words
from longspan.progress import progress_bar
from longspan_documents.inference.embed import Encoder, load_encoder
from longspan_documents.inference.summarize import embedded_sentences
from longspan_documents.summaries.clues import Sentences, clues, standardised
from longspan_documents.summaries.picker import BOUND, abstract_features
from longspan_documents.summaries.selection import TIMES, WordTable, with_length, word_table, worth_of_sentences
from longspan_documents.text.blocks import Block, Document, Traced
from longspan_documents.text.reading import document_of, sentences_of

OUTPUT = Path(longspan_documents.__file__).parent / "bundled" / "summary.safetensors"
KINDS = {
    "papers": ("permissive/train-pmc_cc_by",),
    "python": ("permissive/train-python_peps",),
    "chains": tuple(
        f"permissive/train-{name}"
        for name in (
            *("bitcoin_bips", "cardano_cips", "ethereum_eips", "ethereum_ercs", "filecoin_fips"),
            "near_neps",
        )
    ),
    "clouds": tuple(
        f"permissive/train-{name}" for name in ("kubernetes_keps", "openshift_enhancements", "tekton_teps")
    ),
    "languages": tuple(f"permissive/train-{name}" for name in ("go_proposals", "rust_rfcs", "swift_evolution")),
    "meetings": ("qmsum",),
    "stories": ("squality",),
}
"""Kind of document → where its rows come from."""
NO_ABSTRACT = "meetings", "stories"
"""Kinds of documents that do not open with a summary of themselves."""
MOST = 300
"""Documents of a kind."""
MEANING = 16
"""Numbers to which the scorer brings the vector of a sentence."""
HIDDEN = 64
STEPS, BATCH, RATE, DECAY, DROPOUT = 1200, 2048, 2e-3, 1e-2, 0.1
MIX = 0.06
"""How much the scorer counts beside the words."""
FUNCTION_SHARE = 0.5
"""What any word of the summary counts in a label, beside content words and pairs."""


@dataclass(frozen=True)
class Taught:
    """A document with its reference summaries, its kind, and what it weighs in the fit."""

    kind: str
    document: Sentences
    table: WordTable
    references: tuple[str, ...]
    weight: float


def document_of_row(row: SummaryRow) -> Document:
    """The row as a document that was read: with its own headings where it has them, else as plain text."""
    if not row.headings:
        return document_of(row.source)
    text, blocks, start = row.source, [], 0
    for index, piece in enumerate(row.pieces):
        kind = "heading" if index in row.headings else "paragraph"
        blocks.append(Block(kind=kind, body=Traced.whole(piece, start), level=kind == "heading"))
        start += len(piece) + len(row.separator)
    return Document(text=text, blocks=tuple(blocks), title=row.title or None)


def gathered(row: SummaryRow, encoder: Encoder) -> Sentences:
    """The sentences of a row with their vectors."""
    document = document_of_row(row)
    return embedded_sentences(document, sentences_of(document, row.language), encoder)[0]


def taught(kinds: Sequence[str], encoder: Encoder, data: Path, most: int) -> list[Taught]:
    """Documents of these kinds; each kind weighs 1."""
    found = []
    for kind in kinds:
        rows = [row for name in KINDS[kind] for row in read_rows(_source(name, data), limit=most)]
        rows = rows[:: max(1, len(rows) // most)][:most]
        for row in progress_bar(rows, doing=f"reading {kind}"):
            document = gathered(row, encoder)
            if len(document):
                found.append(Taught(kind, document, word_table(document), row.references, 1 / len(rows)))
    return found


def _source(name: str, data: Path) -> str:
    return str(data / f"{name}.jsonl.xz") if "/" in name else name


def fit_words(documents: Sequence[Taught]) -> dict[str, np.ndarray]:
    """The regressions of words: how likely a summary of a given length names each so many times."""
    numbers, weights = [], []
    labels: list[list[np.ndarray]] = [[] for _ in TIMES]
    for each in documents:
        for reference in each.references:
            named = Counter(contents_of(reference))
            times = np.array([named[word] for word in each.table.words])
            numbers.append(with_length(each.table, len(split_words(reference))))
            weights.append(np.full(len(times), each.weight / max(len(times), 1) / len(each.references)))
            for place, least in enumerate(TIMES):
                labels[place].append(times >= least)
    known, weight = np.concatenate(numbers), np.concatenate(weights)
    mean, spread = known.mean(0), known.std(0) + 1e-6
    known = np.c_[(known - mean) / spread, np.ones(len(known))]
    fitted = np.stack([logistic(known, np.concatenate(label), weight / weight.mean()) for label in labels], axis=1)
    return {"words.mean": mean, "words.spread": spread, "words.weight": fitted}


def logistic(known: np.ndarray, label: np.ndarray, weight: np.ndarray, penalty: float = 1e-3) -> np.ndarray:
    """Weighted logistic regression by Newton's method."""
    found = np.zeros(known.shape[1])
    for _ in range(25):
        chance = 1 / (1 + np.exp(-np.clip(known @ found, -30, 30)))
        slope = known.T @ (weight * (chance - label)) / len(known) + penalty * found
        bend = (known * (weight * chance * (1 - chance))[:, None]).T @ known / len(known)
        step = np.linalg.solve(bend + penalty * np.eye(len(found)), slope)
        found -= step
        if np.abs(step).max() < 1e-6:
            break
    return found


def labels_of(each: Taught) -> np.ndarray:
    """How much of its content words, word pairs and words a sentence shares with the summaries, `(N,)`."""
    total = np.zeros(len(each.document))
    for reference in each.references:
        words = split_words(reference)
        content, pairs, any_word = set(contents_of(reference)), set(pairwise(words)), set(words)
        for index, (text, kept) in enumerate(zip(each.document.texts, each.document.contents, strict=True)):
            if len(kept) < 2:
                continue
            said = split_words(text)
            total[index] += sum(word in content for word in set(kept)) / (len(said) / 2 + 4)
            total[index] += sum(pair in pairs for pair in pairwise(said)) / (len(said) + 4)
            total[index] += FUNCTION_SHARE * sum(word in any_word for word in said) / (len(said) + 4)
    return standardised(total)


class Scorer(nn.Module):
    """Clues and a vector → a score; the names of its weights are those of the file."""

    def __init__(self, clues: int, dimensions: int) -> None:
        super().__init__()
        self.vector = nn.Linear(dimensions, MEANING)
        self.hidden = nn.Linear(clues + MEANING, HIDDEN)
        self.score = nn.Linear(HIDDEN, 1)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, clues: Tensor, vectors: Tensor) -> Tensor:
        meaning = self.dropout(self.vector(vectors))
        return self.score(self.dropout(gelu(self.hidden(torch.cat([clues, meaning], -1)))))[..., 0]


def fit_scorer(documents: Sequence[Taught], words: dict[str, np.ndarray], seed: int = 0) -> dict[str, np.ndarray]:
    """The network that scores sentences, by least squares against `labels_of`."""
    from longspan_documents.summaries.picker import Picker

    picker = Picker(words)
    found, vectors, labels, weights = [], [], [], []
    for each in documents:
        length = int(np.median([len(split_words(reference)) for reference in each.references]))
        chances = picker.chances(with_length(each.table, length))
        found.append(clues(each.document, worth_of_sentences(each.document, each.table, chances[:, 0])))
        vectors.append(each.document.vectors)
        labels.append(labels_of(each))
        weights.append(np.full(len(each.document), each.weight / len(each.document)))
    known, weight = np.concatenate(found), np.concatenate(weights)
    mean, spread = known.mean(0), known.std(0) + 1e-6
    columns = [np.clip((known - mean) / spread, -BOUND, BOUND), np.concatenate(vectors), np.concatenate(labels)]
    tensors = [torch.from_numpy(np.asarray(column, np.float32)) for column in columns]
    torch.manual_seed(seed)
    scorer = _trained(Scorer(known.shape[1], tensors[1].shape[1]), tensors, weight, seed)
    weights_of = {name: value.numpy() for name, value in scorer.state_dict().items()}
    weights_of["score.weight"], weights_of["score.bias"] = weights_of["score.weight"][0], weights_of["score.bias"][0]
    return {"clues.mean": mean, "clues.spread": spread, **weights_of}


def _trained(scorer: Scorer, columns: Sequence[Tensor], weight: np.ndarray, seed: int) -> Scorer:
    known, vectors, labels = columns
    draw = np.random.default_rng(seed)
    cumulated = np.cumsum(weight)
    optimizer = torch.optim.AdamW(scorer.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    for _ in progress_bar(range(STEPS), doing="fitting the scorer"):
        # Each kind of document is drawn as often as any other, and each document of a kind.
        rows = torch.from_numpy(np.searchsorted(cumulated, draw.random(BATCH) * cumulated[-1]))
        loss = (scorer(known[rows], vectors[rows]) - labels[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return scorer.eval()


def describe_kinds(documents: Sequence[Taught]) -> dict[str, np.ndarray]:
    """What kinds of text there are: mean and spread of their numbers, the spread half of all kinds'."""
    found = [np.array([one.document.kind for one in documents if one.kind == kind]) for kind in KINDS]
    found = [numbers for numbers in found if len(numbers)]
    usual = np.sqrt(np.mean([numbers.var(0) for numbers in found], axis=0))
    spread = [(numbers.std(0) + usual) / 2 + 1e-6 for numbers in found]
    return {"kinds.mean": np.stack([numbers.mean(0) for numbers in found]), "kinds.spread": np.stack(spread)}


def fit_opening(documents: Sequence[Taught]) -> dict[str, np.ndarray]:
    """The regression that tells whether a text opens with its own abstract: these documents with and without it."""
    rows, labels, weights = [], [], []
    for each in documents:
        given = [] if each.kind in NO_ABSTRACT else [one.text for one in split_sentences(each.references[0])]
        for abstract in [[], given] if given else [[]]:
            contents = [*map(contents_of, abstract), *each.document.contents]
            features = abstract_features([*abstract, *each.document.texts], contents)
            if features is not None:
                rows.append(np.concatenate([features, each.document.kind]))
                labels.append(bool(abstract))
                weights.append(each.weight)
    known, weight = np.array(rows), np.array(weights)
    mean, spread = known.mean(0), known.std(0) + 1e-6
    known = np.c_[np.clip((known - mean) / spread, -BOUND, BOUND), np.ones(len(known))]
    fitted = logistic(known, np.array(labels), weight / weight.mean(), 1e-2)
    return {"opening.mean": mean, "opening.spread": spread, "opening.weight": fitted}


def fit(documents: Sequence[Taught]) -> dict[str, np.ndarray]:
    """All weights of a `Picker`."""
    words = fit_words(documents)
    found: dict[str, Any] = {**words, **fit_scorer(documents, words), "mix": np.array(MIX)}
    found |= {**describe_kinds(documents), **fit_opening(documents)}
    return {name: np.ascontiguousarray(value, np.float32) for name, value in found.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the data folder")
    parser.add_argument("--encoder", help="folder of another encoder")
    parser.add_argument("--without", nargs="*", default=[], choices=list(KINDS))
    parser.add_argument("--most", type=int, default=MOST, help="documents of a kind")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    kinds = [kind for kind in KINDS if kind not in options.without]
    documents = taught(kinds, load_encoder(options.encoder), options.data, options.most)
    save_file(fit(documents), options.output)
