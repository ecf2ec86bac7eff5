"""What sentence-transformers folders say about pooling: read, carried along, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from longspan.checkpoints.pooling import Pooling, carry_pooling, pooling_of
from longspan.errors import InputError

LISTED = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


def folder_of(folder: Path, pooling: dict, modules: object = None, **text: object) -> Path:
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "modules.json").write_text(json.dumps(LISTED if modules is None else modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 256, **text}))
    return folder


def switches(mode: str) -> dict[str, bool]:
    return {f"pooling_mode_{name}_token{'' if name == 'cls' else 's'}": name == mode for name in ("cls", "mean", "max")}


def test_a_plain_folder_means_the_mean(tmp_path: Path) -> None:
    assert pooling_of(tmp_path) == Pooling(mode="mean", lower=False)
    assert not carry_pooling(tmp_path, tmp_path, 99)


@pytest.mark.parametrize("mode", ["cls", "mean", "max"])
def test_modes_are_read_and_carried(mode: Any, tmp_path: Path) -> None:
    source = folder_of(tmp_path / "source", switches(mode), do_lower_case=mode == "cls")
    (tmp_path / "long").mkdir()
    assert carry_pooling(source, tmp_path / "long", 8192)
    for folder in (source, tmp_path / "long"):
        assert pooling_of(folder) == Pooling(mode=mode, lower=mode == "cls")
    said = json.loads((tmp_path / "long" / "sentence_bert_config.json").read_text())
    assert said["max_seq_length"] == 8192
    newer = folder_of(tmp_path / "newer", {"pooling_mode": mode})
    assert pooling_of(newer).mode == mode


DENSE = [*LISTED, {"idx": 3, "path": "3_Dense", "type": "sentence_transformers.models.Dense"}]


def test_layers_behind_the_pooling_are_carried_and_the_encoder_s_weights_are_not(tmp_path: Path) -> None:
    encoder = {"idx": 0, "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}
    source, made = folder_of(tmp_path / "source", switches("mean"), [encoder, *DENSE[1:]]), tmp_path / "long"
    for place in ("0_Transformer", "3_Dense"):
        (source / place).mkdir()
        (source / place / "model.safetensors").write_bytes(place.encode())
    made.mkdir()
    assert carry_pooling(source, made, 8192)
    written = {str(file.relative_to(made)): file.read_bytes() for file in made.rglob("*.safetensors")}
    assert written == {"3_Dense/model.safetensors": b"3_Dense"}


@pytest.mark.parametrize(
    ("pooling", "modules", "sentence"),
    [
        ({"pooling_mode_lasttoken": True}, LISTED, "pools by 'pooling_mode_lasttoken'; known are 'cls', 'mean'"),
        (switches("cls") | switches("mean") | {"pooling_mode_cls_token": True}, LISTED, "'cls' and 'mean'"),
        ({"pooling_mode": 3}, LISTED, "pools by nothing"),
        (switches("mean"), DENSE, "with the module 'Dense'"),
        (switches("mean"), {"idx": 0}, "holds no list of modules"),
        (switches("mean"), [{"path": "../elsewhere", "type": "x.Pooling"}], "does not exist next to it"),
        (switches("mean"), [{"path": "..", "type": "x.Pooling"}], "does not exist next to it"),
    ],
)
def test_what_is_not_known_is_refused(pooling: dict, modules: object, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        pooling_of(folder_of(tmp_path / "source", pooling, modules))
