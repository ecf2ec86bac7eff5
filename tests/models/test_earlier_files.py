"""Folders that version 0.2 wrote, without `longspan_version`: what they leave out has the form that it had then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

import longspan
from longspan import lengthen
from longspan.attention import LongformerConfig, attention_config
from longspan.attention.bigbird import BigBirdAttention
from longspan.checkpoints.loading import load_model
from longspan.models import LongspanConfig, LongspanForSentenceScoring, LongspanModel
from longspan.models.fields import ModelFields
from longspan.models.heads import head_spec
from longspan.patterns import RandomBlocks
from longspan.stacks import TopDownConfig, stack_config
from longspan_documents.inference.encoders import _read_config

SIZES: dict[str, Any] = {"vocab_size": 61, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40}
SIZES |= {"num_hidden_layers": 3, "max_position_embeddings": 97}
WINDOW = {"mechanism": "longformer", "right_tokens": 4}
SPECS: dict[str, Any] = {
    "attention": [{"layers": "0", **WINDOW}, {"layers": "1-2", **WINDOW, "left_tokens": {"per_layer": [5, 6]}}],
    "stack": {"stack": "top_down", "segment_attention": WINDOW},
    "head": {"head": "sentence_scoring", "layers": 1, "attention": "longformer"},
}


@pytest.fixture
def changed_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if three defaults had been others up to version 0.2: of a mechanism, of a stack and of the model itself."""
    monkeypatch.setattr(LongformerConfig, "earlier_defaults", {"left_tokens": 3})
    monkeypatch.setattr(TopDownConfig, "earlier_defaults", {"kernel": 41})
    monkeypatch.setattr(ModelFields, "earlier_defaults", {"init_std": 0.07})


def written_earlier(folder: Path, **fields: Any) -> Path:
    """A folder with a config.json as version 0.2 wrote it."""
    folder.mkdir(exist_ok=True)
    stored = {"model_type": "longspan", "architectures": ["LongspanModel"], **SIZES, **fields}
    (folder / "config.json").write_text(json.dumps(stored), encoding="utf-8")
    return folder


def windows(config: Any) -> list[int]:
    """The left window of every layer."""
    return [config.layer_attention(layer).left_tokens for layer in range(config.num_hidden_layers)]


def nested(config: Any) -> tuple[int, int, int, float]:
    """What a spec within a stack, the stack, a spec within a head and the model itself have."""
    stack: Any = stack_config(config.stack)
    head: Any = head_spec(config.head)
    inner: Any = attention_config(stack.segment_attention), attention_config(head.attention)
    return inner[0].left_tokens, stack.kernel, inner[1].left_tokens, config.init_std


@pytest.mark.usefixtures("changed_since")
@pytest.mark.parametrize(
    "read",
    [
        LongspanConfig.from_pretrained,
        AutoConfig.from_pretrained,
        lambda folder: LongspanConfig.from_json_file(folder / "config.json"),
        lambda folder: LongspanConfig.from_dict(json.loads((folder / "config.json").read_text())),
        _read_config,
    ],
    ids=["config", "auto", "json", "dict", "bundled"],
)
def test_every_reader_gives_what_a_file_leaves_out_its_earlier_form(read: Any, tmp_path: Path) -> None:
    config = read(written_earlier(tmp_path, **SPECS))
    assert windows(config) == [3, 5, 6]
    assert nested(config) == (3, 41, 3, 0.07)
    by_name = read(written_earlier(tmp_path, attention="longformer"))
    assert windows(by_name) == [3, 3, 3]


@pytest.mark.usefixtures("changed_since")
def test_what_is_built_in_python_has_the_defaults_of_today() -> None:
    for fields in (SIZES, {**SIZES, "longspan_version": None}):
        config = LongspanConfig(**fields, **SPECS)
        assert windows(config) == [256, 5, 6]
        assert nested(config) == (256, 32, 256, 0.02)


@pytest.mark.usefixtures("changed_since")
def test_the_earlier_forms_are_written_out_and_stay(tmp_path: Path) -> None:
    written_earlier(tmp_path / "old", **SPECS)
    config = LongspanConfig.from_pretrained(tmp_path / "old")
    config.save_pretrained(tmp_path / "new")
    stored = json.loads((tmp_path / "new" / "config.json").read_text())
    assert stored["longspan_version"] == longspan.__version__
    assert stored["init_std"] == 0.07
    assert stored["attention"][0]["left_tokens"] == 3
    for again in (
        LongspanConfig.from_pretrained(tmp_path / "new"),
        LongspanConfig.from_dict(config.to_dict()),
        LongspanConfig(**config.to_dict()),
        LongspanConfig.from_dict(config.to_dict() | {"dropout": 0.2}),
    ):
        assert windows(again) == [3, 5, 6]
        assert nested(again) == (3, 41, 3, 0.07)
    # A spec that is new in it is of today.
    assert windows(LongspanConfig.from_dict(config.to_dict() | {"attention": "longformer"})) == [256] * 3


@pytest.mark.usefixtures("changed_since")
def test_a_model_of_an_earlier_folder_keeps_its_forms_when_it_is_made_longer(tmp_path: Path) -> None:
    fields = {"attention": WINDOW, "head": SPECS["head"]}
    LongspanForSentenceScoring(LongspanConfig(**SIZES, **fields)).save_pretrained(tmp_path / "old")
    written_earlier(tmp_path / "old", architectures=["LongspanForSentenceScoring"], **fields)
    loaded = load_model(tmp_path / "old")
    assert windows(loaded.config) == [3] * 3
    assert [layer.attention.config.left_tokens for layer in loaded.model.encoder.layers] == [3] * 3
    longer = lengthen(tmp_path / "old", max_tokens=150, attention=loaded.config.attention)
    longer.save_pretrained(tmp_path / "longer")
    for config in (longer.config, LongspanConfig.from_pretrained(tmp_path / "longer")):
        assert windows(config) == [3] * 3
        assert attention_config(head_spec(config.head).attention).left_tokens == 3  # pyright: ignore
        assert config.init_std == 0.07


def test_a_saved_model_says_which_version_wrote_it(tmp_path: Path) -> None:
    LongspanModel(LongspanConfig(**SIZES)).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["longspan_version"] == longspan.__version__
    assert not hasattr(LongspanConfig.from_pretrained(tmp_path), "longspan_version")


def test_bigbird_draws_as_it_did(tmp_path: Path) -> None:
    """As version 0.2 wrote it, with the options that there were; a file of today keeps the exact draw."""
    spec = {"mechanism": "bigbird", "dropout": 0.0, "block_tokens": 4, "random_blocks": 2, "random": "paper", "seed": 1}
    config = LongspanConfig.from_pretrained(
        written_earlier(tmp_path / "earlier", attention=[{"layers": "0-2", **spec}])
    )
    model = LongspanModel(config)
    patterns = [each.pattern for each in model.modules() if isinstance(each, BigBirdAttention)]
    assert [each.head(1).second for each in patterns] == [RandomBlocks(4, 2, 1025, 4, 1)] * 3
    model.save_pretrained(tmp_path / "saved")
    assert draws(LongspanConfig.from_pretrained(tmp_path / "saved")) == ["average"] * 3
    new = LongspanConfig(**SIZES, attention=spec)
    new.save_pretrained(tmp_path / "new")
    assert draws(LongspanConfig.from_pretrained(tmp_path / "new")) == ["exact"] * 3


def draws(config: Any) -> list[str]:
    """How BigBird draws in every layer."""
    return [config.layer_attention(layer).draw for layer in range(config.num_hidden_layers)]


def test_sinkhorn_of_an_earlier_folder_normalises_columns_first(tmp_path: Path) -> None:
    """At eight blocks the two orders give other matrices; the loaded model computes with the earlier one."""
    spec = {"mechanism": "sinkhorn", "block_tokens": 4, "iterations": 2}
    model = LongspanModel(LongspanConfig(**SIZES, attention={**spec, "first_normalized": "columns"}, init_std=0.5))
    model.save_pretrained(tmp_path)
    ids = torch.randint(3, 61, (2, 32))
    expected = model.eval()(ids).last_hidden_state
    written_earlier(tmp_path, attention=spec, init_std=0.5)
    torch.testing.assert_close(LongspanModel.from_pretrained(tmp_path)(ids).last_hidden_state, expected)
    written_earlier(tmp_path, attention=spec, init_std=0.5, longspan_version="0.3.0")
    today = LongspanModel.from_pretrained(tmp_path)(ids).last_hidden_state
    assert (today - expected).abs().max() > 1e-3
