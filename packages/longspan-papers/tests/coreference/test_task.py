"""The task of coreference: features, pieces, clusters out of antecedents, and scores that do not know the batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from longspan.models import LongspanConfig, LongspanForCoreference
from longspan.training.tokenizers import train_tokenizer
from longspan_papers.coreference.conll import read_conll
from longspan_papers.coreference.rows import CoreferenceRow, synthetic_documents
from longspan_papers.coreference.task import Coreference, clusters_of, collate, document_features

ROW = CoreferenceRow(
    id="a",
    sentences=(("Ada", "met", "Carl", "."), ("She", "saw", "him", "."), ("Stop", "!")),
    speakers=(("x",) * 4, ("y",) * 4, ("", "x")),
    clusters=(((0, 0), (4, 4)), ((2, 2), (6, 6)), ((3, 5),)),
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(Coreference().corpus([ROW, *synthetic_documents(2, seed=0)]), 400)


def test_features_of_a_whole_document(tokenizer) -> None:
    (features,) = document_features(ROW, tokenizer)
    assert (features["input_ids"][0], features["input_ids"][-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    words: list[list[int]] = [[] for _ in ROW.words]
    for token, word in zip(features["input_ids"], features["word_ids"], strict=True):
        if word >= 0:
            words[word].append(token)
    assert tuple(tokenizer.decode(ids).strip() for ids in words) == ROW.words
    by_word = dict(
        zip(features["word_ids"], zip(features["sentence_ids"], features["speaker_ids"], strict=True), strict=True)
    )
    assert [by_word[word] for word in range(10)] == [(0, 0)] * 4 + [(1, 1)] * 4 + [(2, -1), (2, 0)]
    assert by_word[-1] == (-1, -1)
    assert features["labels"] == [[0, 0, 0], [4, 4, 0], [2, 2, 1], [6, 6, 1], [3, 5, 2]]


def test_pieces_end_with_sentences_and_hold_every_word_once(tokenizer) -> None:
    whole = document_features(ROW, tokenizer)[0]
    room = sum(0 <= sentence <= 1 for sentence in whole["sentence_ids"]) + 3
    first, second = document_features(ROW, tokenizer, room)
    assert max(first["word_ids"]) == 7
    assert (second["labels"], second["word_ids"][1], second["sentence_ids"][1]) == ([], 0, 0)
    for limit in range(1, 30):
        pieces = document_features(ROW, tokenizer, limit)
        tokens = [token for piece in pieces for token in piece["input_ids"][1:-1]]
        assert tokens == whole["input_ids"][1:-1]
        assert all(len(piece["input_ids"]) <= max(limit, 2 + 5) for piece in pieces)


def test_a_batch_has_room_for_the_mentions_of_each(tokenizer) -> None:
    empty = CoreferenceRow(id="b", sentences=(("No",),))
    batch = collate([document_features(row, tokenizer)[0] for row in (ROW, empty)], padding=1)
    assert batch["labels"].shape == (2, 5, 3)
    assert (batch["labels"][1] == -1).all()
    assert batch["word_ids"].shape == batch["input_ids"].shape == batch["attention_mask"].shape
    assert (batch["word_ids"][~batch["attention_mask"]] == -1).all()
    assert collate([document_features(empty, tokenizer)[0]], padding=1)["labels"].shape == (1, 1, 3)


def test_clusters_follow_the_best_antecedents() -> None:
    none = float("-inf")
    output = SimpleNamespace(
        mention_starts=torch.tensor([[0, 1, 2, 5, 6, -1]]),
        mention_ends=torch.tensor([[0, 3, 4, 5, 6, -1]]),
        mention_scores=torch.tensor([[1.0, 2.0, 3.0, -1.0, 0.5, none]]),
        antecedents=torch.tensor([[[-1, -1], [0, -1], [1, 0], [2, 0], [0, 1], [-1, -1]]]),
        antecedent_scores=torch.tensor(
            [[[0, none, none], [0, 2.0, none], [0, 0.5, -1.0], [0, -0.5, -2.0], [0, -0.5, -1.0], [0, none, none]]]
        ),
    )
    # 1 joins 0, 2 joins 1 but crosses it with a better score, 3 and 4 join nothing; 4 alone counts as a mention.
    assert clusters_of(output, singletons=False) == [(((0, 0), (2, 4)),)]
    assert clusters_of(output, singletons=True) == [(((0, 0), (2, 4)), ((6, 6),))]


def test_one_mention_has_no_antecedents() -> None:
    output = SimpleNamespace(
        mention_starts=torch.tensor([[2]]),
        mention_ends=torch.tensor([[3]]),
        mention_scores=torch.tensor([[1.0]]),
        antecedents=torch.zeros(1, 1, 0, dtype=torch.long),
        antecedent_scores=torch.zeros(1, 1, 1),
    )
    assert clusters_of(output, singletons=True) == [(((2, 3),),)]
    assert clusters_of(output, singletons=False) == [()]


def test_evaluation_does_not_know_the_batch_and_writes_what_can_be_read(tokenizer, tmp_path: Path) -> None:
    task = Coreference(singletons=True, head_options={"span_width": 4, "hidden_width": 16})
    torch.manual_seed(0)
    fields = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = LongspanConfig(vocab_size=len(tokenizer), init_std=0.3, **fields, **task.model_fields())
    model = LongspanForCoreference(config)
    rows = [*synthetic_documents(3, seed=3, sentences=6), ROW]
    one, three = (task.evaluate(model, tokenizer, rows, batch_size=size) for size in (1, 3))
    assert one.lines == three.lines
    assert one.scores == three.scores
    assert set(task.metrics.names) == set(one.scores)
    file = tmp_path / "predictions.conll"
    file.write_text(one.files["predictions.conll"], encoding="utf-8")
    assert [row.clusters for row in read_conll(file)] == [line["prediction"] for line in one.lines]
    assert Coreference().fitted(config).singletons
