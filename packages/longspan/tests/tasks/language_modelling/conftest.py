"""A corpus of four short texts, and its tokens as one stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from longspan.data.corpus.tokens import Stream, token_files
from longspan.tasks.language_modelling.language_model import LanguageModel
from longspan.training.tokenizers import train_tokenizer

TEXTS = ["the cat sat", "on", "a mat — überall", "x" * 40]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Bytes: no vocabulary is left for a merge."""
    return train_tokenizer(TEXTS, 261)


@pytest.fixture
def corpus(tmp_path: Path) -> list[Any]:
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return list(LanguageModel().read(str(tmp_path / "texts.jsonl"), "train", None))


@pytest.fixture
def stream(corpus: list[Any], tokenizer: Any, tmp_path: Path) -> Stream:
    return Stream(token_files(tmp_path / "tokens", corpus, tokenizer), tokenizer.eos_token_id)
