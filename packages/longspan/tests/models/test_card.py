"""Every saved folder says what it holds; a README of somebody else is never touched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import transformers
import yaml

import longspan
from longspan import LongspanConfig
from longspan.models.card import KINDS, MARK

SIZES: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}


def published() -> Any:
    return transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SIZES, pad_token_id=1))


def front(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---\n")[1])


@pytest.mark.parametrize("name", KINDS)
def test_the_card_loads_its_own_model(name: str, tmp_path: Path) -> None:
    chosen = SIZES | ({"decoder_layers": 1} if name.endswith("Generation") else {})
    mechanism = "full" if name.endswith("PrefixLM") else "longformer"
    model = getattr(longspan.models, name)(LongspanConfig(attention=mechanism, **chosen))
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    known = front(card)
    assert known["library_name"] == "longspan"
    assert known["tags"] == ["longspan", "long-context", mechanism]
    assert "base_model" not in known
    assert "license" not in known
    code = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(code) == 1
    place: dict[str, Any] = {"folder": str(tmp_path)}
    exec(code[0], place)
    assert type(place["model"]).__name__ == name
    assert f"{sum(p.numel() for p in model.parameters()):,}" in card


def test_it_says_where_a_model_came_from_and_how_it_was_lengthened(tmp_path: Path) -> None:
    theirs = published()
    theirs.config.name_or_path = "somebody/roberta-tiny"
    longspan.from_transformers(theirs).save_pretrained(tmp_path / "same")
    card = (tmp_path / "same/README.md").read_text()
    assert front(card)["base_model"] == "somebody/roberta-tiny"
    assert "a published `roberta` model `somebody/roberta-tiny`" in card
    long = longspan.lengthen(theirs, max_tokens=96)
    long.save_pretrained(tmp_path / "long")
    card = (tmp_path / "long/README.md").read_text()
    assert front(card)["base_model"] == "somebody/roberta-tiny"
    assert front(card)["tags"] == ["longspan", "long-context", "longformer", "poolingformer"]
    assert str(long.report) in card
    assert "38 → 96 tokens" in card
    assert "largest difference of states" in card


def test_a_place_on_this_machine_is_no_name_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published().save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    for place in (tmp_path / "model", "./model", "model"):
        longspan.from_transformers(place).save_pretrained(tmp_path / "out")
        card = (tmp_path / "out/README.md").read_text()
        assert "base_model" not in front(card)
        assert str(tmp_path) not in card


def test_a_card_of_somebody_else_stays(tmp_path: Path) -> None:
    model = longspan.from_transformers(published())
    (tmp_path / "README.md").write_text("mine\n")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine\n"
    (tmp_path / "README.md").write_text(f"an earlier card\n{MARK}\n")
    model.save_pretrained(tmp_path)
    assert "an earlier card" not in (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").unlink()
    model.save_pretrained(tmp_path, is_main_process=False)
    assert not (tmp_path / "README.md").exists()
