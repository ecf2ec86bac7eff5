"""Weights in several files with an index: opened wherever those in one file are, and written where it is asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import longspan
import longspan.models
from installed import needs_documents
from longspan.checkpoints.folder import INDEX, WEIGHTS, weight_files
from longspan.checkpoints.loading import load_model
from longspan.checkpoints.sources import load_any
from longspan.cli import main
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForMaskedLM, LongspanModel
from longspan.training.tokenizers import train_tokenizer
from tiny_writers import TEXT, write_folder

SMALL = "6KB"
SIZES: dict[str, Any] = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40, "num_hidden_layers": 2}


def in_several(folder: Path) -> Path:
    """A copy of a model's folder whose weights lie in several files, as transformers writes them."""
    place = folder.with_name(f"{folder.name}-several")
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    kind: Any = getattr(transformers, name, None) or getattr(longspan.models, name)
    shutil.copytree(folder, place, ignore=shutil.ignore_patterns(WEIGHTS))
    kind.from_pretrained(folder).save_pretrained(place, max_shard_size=SMALL)
    names = weight_files(place)
    assert INDEX in names
    assert len(names) > 3
    assert WEIGHTS not in names
    return place


def same_weights(one: Any, other: Any) -> None:
    """Two models hold the same numbers under the same names."""
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name


@pytest.fixture
def ours() -> LongspanForMaskedLM:
    """A model of ours, whose output layer is tied to its embeddings."""
    return LongspanForMaskedLM(LongspanConfig(vocab_size=61, **SIZES, attention="longformer")).eval()


@pytest.mark.parametrize(
    "name",
    [
        "BertForMaskedLM",
        "RobertaForSequenceClassification",
        "BartForConditionalGeneration",
        "LEDForConditionalGeneration",
    ],
)
def test_published_weights(name: str, published: Callable[..., Any], tmp_path: Path) -> None:
    published(name).save_pretrained(tmp_path / "one")
    one, several = (load_any(place) for place in (tmp_path / "one", in_several(tmp_path / "one")))
    same_weights(one, several)
    same_weights(longspan.from_transformers(one), load_model(tmp_path / "one-several"))


def test_our_own(ours: LongspanForMaskedLM, tmp_path: Path) -> None:
    ours.save_pretrained(tmp_path / "one")
    place = in_several(tmp_path / "one")
    same_weights(ours, load_model(place))
    same_weights(ours, LongspanForMaskedLM.from_pretrained(place))
    same_weights(ours.base_model, LongspanModel.from_pretrained(place))


def test_a_model_says_how_large_its_files_may_be(ours: LongspanForMaskedLM, tmp_path: Path) -> None:
    ours.max_shard_size = SMALL
    ours.save_pretrained(tmp_path / "several")
    ours.save_pretrained(tmp_path / "one", max_shard_size="1GB")
    assert (INDEX in weight_files(tmp_path / "several"), weight_files(tmp_path / "one")) == (True, {WEIGHTS})
    same_weights(load_model(tmp_path / "several"), load_model(tmp_path / "one"))


def test_lengthened(published: Callable[..., Any], tmp_path: Path) -> None:
    published("RobertaForMaskedLM").save_pretrained(tmp_path / "one")
    options: dict[str, Any] = {"attention": "longformer", "max_tokens": 128}
    torch.manual_seed(1)
    one = longspan.lengthen(tmp_path / "one", **options)
    torch.manual_seed(1)
    same_weights(one, longspan.lengthen(in_several(tmp_path / "one"), **options))


@pytest.mark.variant
@needs_documents
def test_the_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What each says of a model in several files is what it says of the same in one."""
    write_folder(tmp_path / "t5", "T5")
    tokenizer = train_tokenizer([TEXT] * 9, 300)
    config = transformers.BertConfig(vocab_size=len(tokenizer), pad_token_id=1, initializer_range=0.3, **SIZES)
    for name in ("BertModel", "BertForQuestionAnswering", "BertForSequenceClassification"):
        torch.manual_seed(2)
        getattr(transformers, name)(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    (tmp_path / "snail.txt").write_text(TEXT * 4)
    document = str(tmp_path / "snail.txt")
    commands = {
        "t5": ["summarize", document, "--model"],
        "BertModel": ["embed", document, "--model"],
        "BertForQuestionAnswering": ["answer", document, "Where does the snail sleep?", "--json", "--model"],
        "BertForSequenceClassification": ["classify", document, "--model"],
    }
    for name, command in commands.items():
        said = []
        for place in (tmp_path / name, in_several(tmp_path / name)):
            code = main([*command, str(place)])
            told = capsys.readouterr()
            assert code == 0, told.err
            said.append(told.out.replace(str(place), ""))
        assert _without_time(said[0]) == _without_time(said[1]), name
        assert said[0].strip()


def _without_time(said: str) -> str:
    return "\n".join(line for line in said.splitlines() if '"seconds"' not in line)


def broken(place: Path, how: str) -> None:
    """Damage a folder with several files."""
    shards = sorted(file for file in place.iterdir() if file.name.startswith("model-"))
    if how == "missing":
        shards[1].unlink()
    elif how == "short":
        shards[1].write_bytes(shards[1].read_bytes()[:-5])
    elif how == "swapped":
        held = shards[0].read_bytes()
        shards[0].write_bytes(shards[1].read_bytes())
        shards[1].write_bytes(held)
    elif how == "surplus":
        shutil.copy(shards[0], place / "model-00001-of-00002.safetensors")
    elif how == "twice":
        both = {**load_file(shards[0]), **load_file(shards[1])}
        save_file(both, shards[1], metadata={"format": "pt"})
    elif how == "not finite":
        tensors = load_file(shards[1])
        next(iter(tensors.values())).view(-1)[0] = float("nan")
        save_file(tensors, shards[1], metadata={"format": "pt"})
    elif how == "no index":
        (place / INDEX).unlink()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("missing", r"model-00002-of-\d+\.safetensors' is named by the index but is missing; fetch"),
        ("short", r"model-00002-of-\d+\.safetensors' is damaged or cut short .*; fetch"),
        ("swapped", r"model-0000.-of-\d+\.safetensors' lacks .*, which it has according to the index; fetch"),
        ("surplus", r"model-00001-of-00002\.safetensors' is not in the index of its folder, .*; remove"),
        ("twice", r"model-00002-of-\d+\.safetensors' contains .*, which is in model-00001-of-.* according to"),
        ("not finite", "are damaged: .* holds NaN or infinity"),
        ("no index", f"holds model-00001-of-.* but neither {WEIGHTS} nor {INDEX}; give"),
    ],
)
def test_damage_is_one_sentence(how: str, words: str, published: Callable[..., Any], tmp_path: Path) -> None:
    published("RobertaForMaskedLM").save_pretrained(tmp_path / "one")
    place = in_several(tmp_path / "one")
    broken(place, how)
    with pytest.raises(InputError, match=words) as error:
        load_model(place)
    assert "\n" not in str(error.value)
