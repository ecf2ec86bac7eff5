"""The network is asked only for names that a user gave: paths stay paths, and files name nothing that is fetched."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longspan import DocumentIndex, InputError
from longspan.checkpoints.sources import is_path
from longspan.cli import main
from longspan.training.recipe_file import load_recipe
from longspan.training.shipped import shipped_recipes
from longspan.training.train import train
from longspan_documents.inference.indexing.store import Contents, read_contents

TEXT = "The roses were planted in 1921 by Anna Weber. They flower in June.\n"
ELSEWHERE = "somebody/some-model"


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What asks for another machine, by name or address; it is refused. transformers and the Hub's library may ask."""
    found: list[Any] = []

    def refuse(*given: Any, **_: Any) -> None:
        place = [one for one in given if not isinstance(one, socket.socket)]
        found.append(place)
        raise OSError("there is no network in this test")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in ("getaddrinfo", "create_connection", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a document, a table, and an empty folder."""
    folder = tmp_path / "here"
    (folder / "models").mkdir(parents=True)
    (folder / "a.txt").write_text(TEXT, encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


def reader(folder: Path) -> Path:
    """A tiny decomposed model of questions, which can index and be lengthened."""
    import torch

    from longspan.models import LongspanConfig, LongspanForQuestionAnswering
    from longspan.training.tokenizers import train_tokenizer

    tokenizer = train_tokenizer([TEXT], 300, 128)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    stack = {"stack": "decomposed", "lower_layers": 3}
    torch.manual_seed(0)
    config = LongspanConfig(vocab_size=len(tokenizer), max_position_embeddings=128, stack=stack, **sizes)
    LongspanForQuestionAnswering(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


PATHS = ("runs/x", "./x", "../x", "~/x", "/nowhere/x", "models/x", "a/b/c", "x/", "./a/b", "runs", ".\\x", "~")


@pytest.mark.parametrize("name", PATHS)
def test_what_is_a_path(name: str, here: Path) -> None:
    assert is_path(name)


@pytest.mark.parametrize("name", ["gpt2", ELSEWHERE, "runs-of-mine/x", "a.b/c-d_e.f"])
def test_what_is_a_name(name: str, here: Path) -> None:
    assert not is_path(name)


VERBS: dict[str, list[str]] = {
    "summarize": ["summarize", "a.txt", "--model", "PLACE"],
    "answer": ["answer", "a.txt", "who?", "--model", "PLACE"],
    "choose": ["choose", "who?", "a.txt", "--model", "PLACE", "-c", "Anna", "-c", "Karl"],
    "classify": ["classify", "a.txt", "--model", "PLACE"],
    "coref": ["coref", "a.txt", "--model", "PLACE"],
    "embed": ["embed", "a.txt", "--model", "PLACE"],
    "importance": ["importance", "a.txt", "--model", "PLACE"],
    "generate": ["generate", "PLACE", "The roses"],
    "index": ["index", "a.txt", "--output", "out", "--model", "PLACE"],
    "evaluate": ["evaluate", "PLACE", "--data", "a.txt"],
    "lengthen": ["lengthen", "PLACE", "--max-tokens", "512", "--output", "out"],
    "plan": ["plan", "PLACE"],
    "train": ["train", "dialogled-qmsum", "model.from=PLACE", "data.train=synthetic", "data.validation=synthetic"],
    "tokenizer": [
        *("train", "small-mlm-window", "tokenizer.train=null", "tokenizer.from=PLACE"),
        *("data.train=a.txt", "data.validation=a.txt"),
    ],
    "teacher": [
        *("train", "deformer-squad", "--smoke", "task.distillation={teacher: PLACE}", "--output", "out"),
    ],
}


@pytest.mark.parametrize("place", ["runs/x", "./x", "../x", "models/x", "a/b/c"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_path_is_looked_up_nowhere(
    verb: str, place: str, here: Path, asked: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("PLACE", place) for word in VERBS[verb]]) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert place.removeprefix("./") in error, error
    assert "reached" not in error
    assert asked == []
    assert not (here / "out").exists()
    assert not (here / "runs").exists()


def test_a_name_of_the_user_is_asked_for(here: Path, asked: list[Any], capfd: pytest.CaptureFixture[str]) -> None:
    """Or the tests above would show nothing."""
    assert main(["summarize", "a.txt", "--model", ELSEWHERE]) == 2
    assert "cannot be reached" in capfd.readouterr().err
    assert asked


def on_runs() -> list[str]:
    """The recipes that build on a folder of `runs/`."""
    from longspan.training.shipped import read_recipe

    starts = {name: read_recipe(file)["model"].get("from") for name, file in shipped_recipes().items()}
    return [name for name, start in starts.items() if str(start).startswith("runs/")]


@pytest.mark.parametrize("name", on_runs())
def test_a_recipe_says_what_to_train_first(name: str, here: Path, asked: list[Any]) -> None:
    recipe = load_recipe(name)
    before = str(recipe.model.source).removeprefix("runs/")
    with pytest.raises(InputError, match=rf"model\.from is 'runs/{before}', which is not here; ") as error:
        train(recipe, here / "out")
    assert (f"train recipe {before!r} first: `longspan train {before}`" in str(error.value)) == (
        before in shipped_recipes()
    )
    assert asked == []
    assert sorted(path.name for path in here.iterdir()) == ["a.txt", "models"]


def test_a_run_that_has_not_ended_is_said(here: Path, asked: list[Any]) -> None:
    (here / "runs" / "dialogled").mkdir(parents=True)
    (here / "runs" / "dialogled" / "recipe.yaml").write_text("name: dialogled\n", encoding="utf-8")
    with pytest.raises(InputError, match="the run in 'runs/dialogled' has not ended"):
        train(load_recipe("dialogled-qmsum"), here / "out")


@pytest.mark.slow
def test_training_from_a_run_with_adapters_asks_nobody(here: Path, asked: list[Any]) -> None:
    pytest.importorskip("peft")
    train(load_recipe("dialogue-small", ["optimisation.steps=1"], smoke=True), "runs/dialogue-small")
    changes = ["model.from=runs/dialogue-small", "optimisation.steps=1", "optimisation.lora={}"]
    changes += ["task.max_source_tokens=64", "task.max_target_tokens=16", "generation.min_tokens=0"]
    train(load_recipe("dialogue-small-qmsum", changes, smoke=True), "runs/second")
    assert asked == []


def rewritten(folder: Path, source: str) -> None:
    """Another `made_by.source`, under right checksums."""
    contents, _ = read_contents(folder)
    Contents({**contents.made_by, "source": source}, contents.shards).write(folder)


@pytest.fixture
def index(here: Path, asked: list[Any]) -> Path:
    reader(here / "model")
    assert main(["index", "a.txt", "--output", "library", "--model", "model"]) == 0
    assert asked == []
    return here / "library"


@pytest.mark.parametrize("source", [ELSEWHERE, "gpt2", "runs/x", "../x"])
@pytest.mark.parametrize(
    "verb", [["answer", "who planted the roses?", "--index", "library"], ["index", "--output", "library"]]
)
def test_an_index_names_no_model_to_fetch(
    source: str, verb: list[str], index: Path, here: Path, asked: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    rewritten(index, source)
    (here / "b.txt").write_text("The pond was dug in 1934.\n", encoding="utf-8")
    command = [*verb, "b.txt"] if verb[0] == "index" else verb
    assert main(command) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert f"was made by the model {source!r}, which is no folder here" in error
    assert "--model" in error
    assert asked == []
    assert main([*command, "--model", "model"]) == 0
    assert asked == []


def test_an_index_finds_the_model_that_was_fetched_before(index: Path, here: Path, asked: list[Any]) -> None:
    """A Hub name that a user gave when the index was made: the copy in the cache serves, and the Hub is not asked."""
    copy = here.parent / "cache" / "models--somebody--some-model"
    shutil.copytree(here / "model", copy / "snapshots" / "0123")
    (copy / "refs").mkdir()
    (copy / "refs" / "main").write_text("0123")
    rewritten(index, ELSEWHERE)
    assert DocumentIndex(index).answer("who planted the roses?").passages
    assert asked == []


def test_reading_and_making_longer_ask_nobody(here: Path, asked: list[Any], made_checkpoints: dict[str, Path]) -> None:
    """A folder is all that is read, whatever its files name."""
    from longspan.training.tokenizers import train_tokenizer

    shutil.copytree(made_checkpoints["roberta"], here / "roberta")
    train_tokenizer([TEXT], 300, 64).save_pretrained(here / "roberta")
    for file in ("config.json", "tokenizer_config.json"):
        said = json.loads((here / "roberta" / file).read_text(encoding="utf-8"))
        said |= {"_name_or_path": ELSEWHERE, "name_or_path": ELSEWHERE}
        (here / "roberta" / file).write_text(json.dumps(said), encoding="utf-8")
    assert main(["lengthen", "roberta", "--max-tokens", "256", "--output", "long"]) == 0
    assert main(["embed", "a.txt", "--model", "long", "--output", "a.safetensors"]) == 0
    assert main(["plan", "long", "--tokens", "128", "--no-time"]) == 0
    assert asked == []


def test_the_rule_is_told_where_names_are_taken(asked: list[Any]) -> None:
    from longspan.checkpoints.loading import load_model

    call: Callable[..., Any] = load_model
    with pytest.raises(InputError, match=r"'runs/x' does not exist; .*longspan train"):
        call("runs/x")
    assert asked == []
