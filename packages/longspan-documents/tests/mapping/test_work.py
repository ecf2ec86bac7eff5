"""Verbs that need a model: their rows say what single calls say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import longspan
from installed import needs_papers
from longspan import InputError, map_documents
from longspan.models import LongspanConfig, LongspanForSequenceClassification
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.mapping.work import VERBS, verb_of

Rows = list[dict[str, Any]]
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def tokenizer() -> Any:
    return train_tokenizer(["Ada met Carl. She didn't see him. Carl's dog barked at the bees."] * 9, 300)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny classifier, never trained."""
    folder = tmp_path_factory.mktemp("classifier")
    torch.manual_seed(0)
    words = tokenizer()
    labels = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
    config = LongspanConfig(vocab_size=len(words), init_std=0.3, **SIZES, **labels)
    LongspanForSequenceClassification(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def resolver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of coreference, never trained."""
    from longspan.models import LongspanForCoreference

    folder = tmp_path_factory.mktemp("resolver")
    torch.manual_seed(0)
    words = tokenizer()
    head = {"head": "coreference", "hidden_width": 8, "span_width": 3, "singletons": True}
    config = LongspanConfig(vocab_size=len(words), init_std=0.3, head=head, **SIZES)
    LongspanForCoreference(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def test_labels(
    classifier: Path, rows: Rows, write_lines: Callable[..., Path], read_parts: Callable[[Path], Rows], tmp_path: Path
) -> None:
    model = str(classifier)
    map_documents("classify", write_lines(rows[:5]), tmp_path / "out", model=model, workers=0)
    for row in read_parts(tmp_path / "out"):
        single = longspan.classify(row["text"], model)
        assert row["error"] is None
        assert row["label"] == single.label
        assert row["probability"] == pytest.approx(single.probability)
        shares = {one["label"]: one["probability"] for one in row["probabilities"]}
        assert shares == pytest.approx(single.probabilities)
        assert (row["tokens"], row["of_tokens"]) == (single.tokens, single.of_tokens)


@needs_papers
def test_clusters(resolver: Path, read_parts: Callable[[Path], Rows], tmp_path: Path) -> None:
    from longspan_papers.coreference.resolving import load_resolver

    (tmp_path / "story.txt").write_text("Ada met Carl. She didn't see him.\n\nCarl's dog barked.\n")
    model = str(resolver)
    map_documents("coref", tmp_path / "story.txt", tmp_path / "out", model=model, workers=0)
    (row,) = read_parts(tmp_path / "out")
    single = load_resolver(model).resolve(tmp_path / "story.txt")
    assert single.clusters
    assert [[(one["start"], one["end"]) for one in cluster] for cluster in row["clusters"]] == single.clusters
    assert all(single.text[one["start"] : one["end"]] == one["text"] for each in row["clusters"] for one in each)


def test_another_models_files_are_another_job(
    classifier: Path, rows: Rows, write_lines: Callable[..., Path], tmp_path: Path
) -> None:
    folder, path = tmp_path / "model", write_lines(rows[:2])
    folder.mkdir()
    for file in classifier.iterdir():
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
