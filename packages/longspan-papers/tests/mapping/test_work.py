"""Verbs that need a model: their rows say what single calls say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import longspan
from longspan import InputError, map_documents
from longspan.models import LongspanConfig, LongspanForCoreference, LongspanForSequenceClassification
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.mapping.work import VERBS, verb_of
from longspan_papers.coreference.resolving import load_resolver
from longspan_papers.coreference.rows import synthetic_documents
from longspan_papers.coreference.task import Coreference

Rows = list[dict[str, Any]]
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny classifier and a tiny model of coreference, never trained."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    tokenizer = train_tokenizer(Coreference().corpus(synthetic_documents(2, seed=0)), 300)
    sizes = {"vocab_size": len(tokenizer), "init_std": 0.3, **SIZES}
    labels = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
    head = {"head": "coreference", "hidden_width": 8, "span_width": 3, "singletons": True}
    LongspanForSequenceClassification(LongspanConfig(**sizes, **labels)).save_pretrained(folder / "classifier")
    LongspanForCoreference(LongspanConfig(**sizes, head=head)).save_pretrained(folder / "resolver")
    for name in ("classifier", "resolver"):
        tokenizer.save_pretrained(folder / name)
    return folder


def test_labels(
    models: Path, rows: Rows, write_lines: Callable[..., Path], read_parts: Callable[[Path], Rows], tmp_path: Path
) -> None:
    model = str(models / "classifier")
    map_documents("classify", write_lines(rows[:5]), tmp_path / "out", model=model, workers=0)
    for row in read_parts(tmp_path / "out"):
        single = longspan.classify(row["text"], model)
        assert row["error"] is None
        assert row["label"] == single.label
        assert row["probability"] == pytest.approx(single.probability)
        shares = {one["label"]: one["probability"] for one in row["probabilities"]}
        assert shares == pytest.approx(single.probabilities)
        assert (row["tokens"], row["of_tokens"]) == (single.tokens, single.of_tokens)


def test_clusters(models: Path, read_parts: Callable[[Path], Rows], tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_text("Ada met Carl. She didn't see him.\n\nCarl's dog barked.\n")
    model = str(models / "resolver")
    map_documents("coref", tmp_path / "story.txt", tmp_path / "out", model=model, workers=0)
    (row,) = read_parts(tmp_path / "out")
    single = load_resolver(model).resolve(tmp_path / "story.txt")
    assert single.clusters
    assert [[(one["start"], one["end"]) for one in cluster] for cluster in row["clusters"]] == single.clusters
    assert all(single.text[one["start"] : one["end"]] == one["text"] for each in row["clusters"] for one in each)


def test_another_models_files_are_another_job(
    models: Path, rows: Rows, write_lines: Callable[..., Path], tmp_path: Path
) -> None:
    folder, path = tmp_path / "model", write_lines(rows[:2])
    folder.mkdir()
    for file in (models / "classifier").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    map_documents("classify", path, tmp_path / "out", model=folder, workers=0)
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    with pytest.raises(InputError, match=r"the files of its model .* have changed"):
        map_documents("classify", path, tmp_path / "out", model=folder, workers=0)


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_says_its_columns(name: str) -> None:
    given = {"answer": {"question": "who?"}, "classify": {"model": "x"}, "coref": {"model": "x"}}
    verb = verb_of(name, given.get(name, {}))
    assert verb.columns()
    assert "error" not in verb.columns()
    assert verb.reads == ()
