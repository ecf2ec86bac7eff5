"""Distillation: documents in pieces, loose texts alone, a teacher's vectors beside them, and a model that learns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForSentenceEmbedding
from longspan.training.tokenizers import train_tokenizer
from longspan_papers.distillation.rows import TaughtTexts, read_taught, texts_of
from longspan_papers.distillation.task import Distillation, made_up

TASK = Distillation(window_words=20, windows=2, loose_texts=4)


def words_of(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def write_shard(folder: Path, name: str, documents: list[dict[str, object]], count: int) -> np.ndarray:
    (folder / f"{name}.json").write_text(json.dumps(documents), encoding="utf-8")
    vectors = np.eye(count, 8, dtype=np.float16)
    np.save(folder / f"{name}.npy", vectors)
    return vectors


def test_shards_are_read_as_bodies_and_loose_texts(tmp_path: Path) -> None:
    parts = [["title", ["T"]], ["heading", ["H"]], ["text", ["One.", "Two."]], ["abstract", ["A."]]]
    other = {"source": "x", "split": "validation", "parts": [["text", ["Three."]]]}
    vectors = write_shard(tmp_path, "shard-0", [{"source": "x", "split": "train", "parts": parts}, other], 6)
    body, loose = read_taught(tmp_path, "train")
    assert (body.document, body.texts) == (True, ("H", "One.", "Two."))
    assert (loose.document, loose.texts) == (False, ("T", "A."))
    assert np.array_equal(body.teacher_vectors, vectors[1:4])
    assert np.array_equal(loose.teacher_vectors, vectors[[0, 4]])
    (only,) = read_taught(tmp_path, "validation")
    assert only.texts == ("Three.",)
    assert np.array_equal(only.teacher_vectors, vectors[5:6])


def test_passages_of_a_document_come_behind_its_texts(tmp_path: Path) -> None:
    parts = [["heading", ["H"]], ["text", ["One.", "Two."]], ["abstract", ["A."]], ["turn", ["Three."]]]
    first = {"source": "x", "split": "train", "parts": parts, "passages": [[1, 3], [3, 4]]}
    assert texts_of(first) == ["H", "One.", "Two.", "A.", "Three.", "One. Two.", "Three."]
    other = {"source": "x", "split": "train", "parts": [["text", ["Four."]]], "passages": [[0, 1]]}
    vectors = write_shard(tmp_path, "shard-0", [first, other], 9)
    body, _, last = read_taught(tmp_path, "train")
    assert body.texts == ("H", "One.", "Two.", "Three.")
    assert body.passages == ((1, 3), (3, 4))
    assert np.array_equal(body.teacher_vectors, vectors[[0, 1, 2, 4]])
    assert np.array_equal(body.passage_vectors, vectors[5:7])
    assert np.array_equal(last.passage_vectors, vectors[8:9])


def test_pieces_keep_whole_passages_and_batches_their_labels() -> None:
    texts = tuple(f"word{i} word{i}." for i in range(12))
    runs = ((0, 3), (3, 8), (9, 12))
    vectors, of_passages = np.eye(12, 16), np.eye(16)[12:15]
    row = TaughtTexts(texts, vectors, True, runs, of_passages)
    task = Distillation(window_words=12, windows=2, loose_share=1)
    ((one, two),) = [group for group in task.groups([row], 0, words_of) if len(group[0].texts) > 1]
    one, two = sorted((one, two), key=lambda piece: texts.index(piece.texts[0]))
    assert (one.texts, one.passages) == (texts[:6], ((0, 3),))
    assert (two.texts, two.passages) == (texts[6:], ((3, 6),))
    tokenizer = train_tokenizer(texts, 400)
    batch = task.collator(tokenizer)([task.features([one, two], tokenizer)])
    assert batch["passage_ids"].tolist() == [[0, 0, 0, -1, -1, -1], [-1, -1, -1, 0, 0, 0]]
    expected = [np.concatenate([vectors[:6], of_passages[:1]]), np.concatenate([vectors[6:], of_passages[2:]])]
    assert np.array_equal(batch["labels"].numpy(), np.stack(expected))
    assert task.losses().weight(batch) == 14


def test_questions_and_some_passages_of_a_document_are_loose_texts_too() -> None:
    row = TaughtTexts(("Why?", "So.", "How?", "Thus."), np.eye(4, 8), True, ((0, 2), (2, 4)), np.eye(8)[4:6])
    task = Distillation(loose_share=100, windows=1)
    alone = {one.texts[0] for group in task.groups([row], 0, words_of) for one in group if len(one.texts) == 1}
    assert {"Why?", "How?"} <= alone
    every = Distillation(loose_share=1, windows=1).groups([row], 0, words_of)
    found = {one.texts[0]: one.teacher_vectors[0] for group in every for one in group if len(one.texts) == 1}
    assert set(found) == {*row.texts, "Why? So.", "How? Thus."}
    assert np.array_equal(found["How? Thus."], row.passage_vectors[1])


def test_texts_that_the_teacher_was_not_asked_for_teach_nothing() -> None:
    vectors = np.array([[1.0, 0], [0, 0], [0, 1]])
    row = TaughtTexts(("One?", "Two?", "Three."), vectors, True, ((0, 2),), np.ones((1, 2)))
    task = Distillation(loose_share=1, windows=1)
    groups = task.groups([row], 0, words_of)
    assert sorted(one.texts[0] for group in groups for one in group if len(one.texts) == 1) == [
        "One?",
        "One? Two?",
        "Three.",
    ]
    tokenizer = train_tokenizer(row.texts, 400)
    (inside,) = [group for group in groups if len(group[0].texts) == 3]
    assert task.losses().weight(task.collator(tokenizer)([task.features(inside, tokenizer)])) == 3


def test_loose_texts_of_a_group_are_alike_in_length_and_not_filled_up_to_more_than_the_windows() -> None:
    texts = tuple("word " * count for count in (1, 40, 2, 39, 3, 1, 38, 2))
    task = Distillation(window_words=40, windows=2, loose_texts=4)
    groups = task.groups([TaughtTexts(texts, np.eye(8), False)], 0, words_of)
    lengths = sorted(sorted(words_of([one.texts[0] for one in group])) for group in groups)
    assert lengths == [[1, 1, 2, 2], [3, 38], [39, 40]]


def test_a_folder_without_shards_or_a_shard_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no shards of taught texts"):
        list(read_taught(tmp_path, "train"))
    write_shard(tmp_path, "shard-0", [{"source": "x", "split": "train", "parts": [["text", ["One."]]]}], 3)
    with pytest.raises(InputError, match=r"vectors of shape \(3, 8\) for 1 texts"):
        list(read_taught(tmp_path, "train"))


def test_every_text_of_a_document_is_in_one_piece_and_every_loose_text_is_there() -> None:
    rows = made_up(dimensions=8)
    groups = TASK.groups(rows, 3, words_of)
    pieces = [row for group in groups for row in group if len(row.texts) > 1]
    inside = sorted(text for piece in pieces for text in piece.texts)
    assert inside == sorted(text for row in rows if row.document for text in row.texts)
    alone = [row.texts[0] for group in groups for row in group if len(row.texts) == 1]
    assert {text for row in rows if not row.document for text in row.texts} <= set(alone)
    assert all(sum(len(text.split()) for text in piece.texts) <= 20 for piece in pieces)
    vectors = {text: vector for row in rows for text, vector in zip(row.texts, row.teacher_vectors, strict=True)}
    for row in rows:
        joined = (" ".join(row.texts[first:end]) for first, end in row.passages)
        vectors |= zip(joined, row.passage_vectors, strict=True)
    for row in (row for group in groups for row in group):
        assert all(
            np.array_equal(vectors[text], vector) for text, vector in zip(row.texts, row.teacher_vectors, strict=True)
        )
    assert [len(group) for group in TASK.groups(rows, 3, words_of)] == [len(group) for group in groups]


@pytest.mark.slow
def test_a_small_model_learns_the_vectors() -> None:
    rows = made_up(dimensions=8)
    tokenizer = train_tokenizer(TASK.corpus(rows), 400)
    data = TASK.dataset(rows, tokenizer, training=True, seed=0, folder=Path())
    collate = TASK.collator(tokenizer)
    torch.manual_seed(0)
    window = {"mechanism": "longformer", "left_tokens": 4, "right_tokens": 4, "separate_global_projections": False}
    config = LongspanConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        attention=window,
        position_embedding="sinusoidal",
        normalization="pre",
        dropout=0.0,
        init_std=0.1,
        head={"head": "sentence_embedding", "dimensions": 8},
    )
    model = LongspanForSentenceEmbedding(config)
    before = TASK.evaluate(model, tokenizer, rows, batch_size=1).scores
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(16):
        for index in range(len(data)):
            batch = collate([data[index]])
            assert TASK.losses().weight(batch) == int((batch["labels"] != 0).any(-1).sum())
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    after = TASK.evaluate(model, tokenizer, rows, batch_size=1).scores
    assert set(after) == {"cosine", "passage_cosine", "loose_cosine"}
    for name in after:
        assert abs(before[name]) < 30
        assert after[name] > 80
