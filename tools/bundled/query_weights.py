"""The weights by which `longspan summarize --query` tells what a document's sentences and words are to a query.

    LONGSPAN_DATA=… python tools/bundled/query_weights.py [--encoder DIR] [--most 162]

Prints `PLACE`, `SENTENCE` and `WORD` of `longspan_documents.summaries.query`, where they are constants: fifteen
numbers. Fitted on the specific queries of QMSum's training meetings: places against the turns that its annotators
marked, sentences against what they share with the answers, words against those that the answers name.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from summary_weights import Taught, document_of_row, labels_of, logistic

from longspan.data.jsonl import read_jsonl
from longspan.data.summaries.readers import read_rows
from longspan.data.text.sentences import contents_of, split_words
from longspan.data.turns import qmsum_turns
from longspan.progress import progress_bar
from longspan_documents.inference.embed import Encoder, load_encoder
from longspan_documents.inference.summarize import WEIGHTS, embedded_sentences
from longspan_documents.summaries.clues import Sentences, standardised
from longspan_documents.summaries.picker import Picker
from longspan_documents.summaries.query import PLACE, SENTENCE, WORD, query_features, relevance_of, word_features
from longspan_documents.summaries.selection import with_length, word_table
from longspan_documents.text.blocks import Document
from longspan_documents.text.reading import DocumentSentence, sentences_of

PENALTY = 0.02
"""Of the ridge regressions of signs, which have a variance of 1."""


@dataclass(frozen=True)
class Question:
    """A specific query of a meeting.

    Attributes:
        text: what is asked.
        references: the answers.
        marked: `(N,)` bool, which sentences stand in turns that answer it.
    """

    text: str
    references: tuple[str, ...]
    marked: np.ndarray


@dataclass(frozen=True)
class Meeting:
    """A meeting of QMSum as the summariser reads it.

    Attributes:
        document, found: as it was read, and its N sentences.
        turns: `(N,)`, the turn that each stands in, counted as in the file.
        questions: its specific queries.
    """

    document: Document
    found: tuple[DocumentSentence, ...]
    turns: np.ndarray
    questions: tuple[Question, ...]


def meetings(split: str, most: int | None = None) -> Iterator[Meeting]:
    """The meetings of a split, or so many of them spread over it."""
    rows: dict[str, list] = {}
    for row in read_rows("qmsum-queries", split):
        rows.setdefault(row.source, []).append(row)
    records = [record for _, record in read_jsonl(Path(os.environ["LONGSPAN_DATA"]) / "qmsum" / f"{split}.jsonl.gz")]
    pairs = list(zip(records, rows.values(), strict=True))
    for record, of_it in pairs[:: max(1, len(pairs) // (most or len(pairs)))][:most]:
        document = document_of_row(of_it[0])
        found = tuple(sentences_of(document, of_it[0].language))
        turns = _turns_of(record, found)
        queries = record["specific_query_list"]
        questions = [
            Question(row.question, row.references, _inside(turns, query["relevant_text_span"]))
            for row, query in zip(of_it[-len(queries) :], queries, strict=True)
        ]
        yield Meeting(document, found, turns, tuple(questions))


def _turns_of(record: Mapping, found: Sequence[DocumentSentence]) -> np.ndarray:
    """The turn of each sentence; turns without words stand in the file, and not in the document."""
    spoken = [
        (number, turn)
        for number, each in enumerate(record["meeting_transcripts"])
        for turn in qmsum_turns({"meeting_transcripts": [each]})
    ]
    starts = np.cumsum([0, *(len(turn.line) + 1 for _, turn in spoken)])
    places = np.searchsorted(starts, [sentence.start for sentence in found], side="right") - 1
    return np.array([number for number, _ in spoken])[places]


def _inside(turns: np.ndarray, spans: Sequence[Sequence[str]]) -> np.ndarray:
    """Which of the turns are in one of the spans, whose ends belong to them."""
    return np.any([(turns >= int(first)) & (turns <= int(last)) for first, last in spans], axis=0)


class Sums:
    """A weighted ridge regression that sees one document after the other; each weighs the same."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.square = np.zeros((len(self.names),) * 2)
        self.product = np.zeros(len(self.names))
        self.count = 0

    def add(self, found: Mapping[str, np.ndarray], label: np.ndarray) -> None:
        """One document's signs and what they are to tell, `(N,)` each."""
        table = np.stack([found[name] for name in self.names], axis=1)
        self.square += table.T @ table / len(table)
        self.product += table.T @ label / len(table)
        self.count += 1

    def weights(self) -> dict[str, float]:
        """By the name of the sign."""
        penalty = PENALTY * self.count * np.eye(len(self.names))
        solved = np.linalg.solve(self.square + penalty, self.product)
        return {name: round(float(value), 2) for name, value in zip(self.names, solved, strict=True)}


def fit(every: Sequence[tuple[Sentences, Meeting]], encoder: Encoder) -> dict[str, dict[str, float]]:
    """`PLACE` and `SENTENCE`, and `WORD` with the places of the package as they are."""
    picker = Picker.load(WEIGHTS)
    place, sentence = Sums(list(PLACE)), Sums(list(SENTENCE))
    known, labels, weights = [], [], []
    for document, meeting in progress_bar(every, doing="fitting"):
        table = word_table(document)
        for question in meeting.questions:
            vector = encoder.embed([question.text])[0]
            found = query_features(document, question.text, vector)
            place.add(found, standardised(question.marked.astype(float)))
            sentence.add(found, labels_of(Taught("meetings", document, table, question.references, 1.0)))
            chances = picker.chances(with_length(table, len(split_words(question.references[0]))))
            known.append(word_features(table, chances[:, 0], relevance_of(document, question.text, vector)))
            named = set(contents_of(question.references[0]))
            labels.append(np.array([word in named for word in table.words]))
            weights.append(np.full(len(table.words), 1 / len(table.words)))
    weight = np.concatenate(weights)
    solved = logistic(np.concatenate(known), np.concatenate(labels), weight / weight.mean())
    words = {name: round(float(value), 3) for name, value in zip(WORD, solved, strict=True)}
    return {"PLACE": place.weights(), "SENTENCE": sentence.weights(), "WORD": words}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", help="folder of another encoder")
    parser.add_argument("--most", type=int, help="meetings of the training split")
    options = parser.parse_args()
    encoder: Any = load_encoder(options.encoder)
    every = list(meetings("train", options.most))
    bar = progress_bar(every, doing="reading meetings")
    read = [(embedded_sentences(meeting.document, meeting.found, encoder)[0], meeting) for meeting in bar]
    for name, weights in fit(read, encoder).items():
        print(f"{name} = {weights}")
