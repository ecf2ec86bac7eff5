"""Distillation: documents in pieces, loose texts alone, a teacher's vectors beside them, and a model that learns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from longspan.data.taught import read_taught
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForSentenceEmbedding
from longspan.tasks.embeddings.distillation import Distillation, made_up
from longspan.training.tokenizers import train_tokenizer

TASK = Distillation(window_words=20, windows=2, loose_texts=4)


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
    assert np.array_equal(body.vectors, vectors[1:4])
    assert np.array_equal(loose.vectors, vectors[[0, 4]])
    (only,) = read_taught(tmp_path, "validation")
    assert only.texts == ("Three.",)
    assert np.array_equal(only.vectors, vectors[5:6])


def test_a_folder_without_shards_or_a_shard_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no shards of taught texts"):
        list(read_taught(tmp_path, "train"))
    write_shard(tmp_path, "shard-0", [{"source": "x", "split": "train", "parts": [["text", ["One."]]]}], 3)
    with pytest.raises(InputError, match=r"vectors of shape \(3, 8\) for 1 texts"):
        list(read_taught(tmp_path, "train"))


def test_every_text_of_a_document_is_in_one_piece_and_every_loose_text_is_there() -> None:
    rows = made_up(dimensions=8)
    groups = TASK.groups(rows, seed=3)
    pieces = [row for group in groups for row in group if len(row) > 1]
    inside = sorted(text for piece in pieces for text, _ in piece)
    assert inside == sorted(text for row in rows if row.document for text in row.texts)
    alone = [row[0][0] for group in groups for row in group if len(row) == 1]
    assert {text for row in rows if not row.document for text in row.texts} <= set(alone)
    assert all(sum(len(text.split()) for text, _ in piece) <= 20 for piece in pieces)
    vectors = {text: vector for row in rows for text, vector in zip(row.texts, row.vectors, strict=True)}
    assert all(np.array_equal(vectors[text], vector) for group in groups for row in group for text, vector in row)
    assert [len(group) for group in TASK.groups(rows, seed=3)] == [len(group) for group in groups]


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
    for _ in range(8):
        for index in range(len(data)):
            batch = collate([data[index]])
            assert TASK.loss_weight(batch) == int((batch["labels"] != 0).any(-1).sum())
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    after = TASK.evaluate(model, tokenizer, rows, batch_size=1).scores
    assert set(after) == {"cosine", "loose_cosine"}
    for name in after:
        assert abs(before[name]) < 30
        assert after[name] > 80
