"""A tiny decomposed model of questions on disk, and documents to index."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from longspan.models import LongspanConfig, LongspanForQuestionAnswering
from longspan.training.tokenizers import train_tokenizer

TEXTS = {
    "garden.md": "# Garden\n\nThe roses were planted in 1921 by Anna Weber. They flower in June.\n\n## Pond\n\nThe "
    "pond was dug in 1934. It holds nine carps.\n",
    "house.md": "# House\n\nThe house was built in 1890 by Karl Weber. It has four rooms and a cellar.\n",
    "trees.md": "# Trees\n\nThe oak is three hundred years old. Its trunk measures five metres.\n",
}


def save_model(folder: Path, seed: int = 0, **fields: object) -> Path:
    tokenizer = train_tokenizer(TEXTS.values(), 300, 128)
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24}
    stack = {"stack": "decomposed", "lower_layers": 3}
    torch.manual_seed(seed)
    options = {"vocab_size": len(tokenizer), "max_position_embeddings": 128, "attention": "full", "stack": stack}
    config = LongspanConfig(**sizes | options | {"init_std": 0.3} | fields)
    LongspanForQuestionAnswering(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("reader"))


@pytest.fixture
def library(tmp_path: Path) -> Path:
    folder = tmp_path / "library"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder
