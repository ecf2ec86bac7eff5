"""Telling transformers of our models and pipelines, whichever is imported first, and never before it is there."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2Model

import longspan
from longspan.attention import MECHANISMS
from longspan.imports import Table, after_import, late_names
from longspan.stacks import STACKS
from longspan.tasks import TASKS

CHECK = """
import sys
from collections.abc import Iterator
from transformers import AutoModel, GPT2Config, GPT2Model
assert type(AutoModel.from_pretrained("ours")).__name__ == "LongspanModel"
config = GPT2Config(n_layer=1, n_embd=4, n_head=2, vocab_size=9, bos_token_id=0, eos_token_id=1)
assert GPT2Model._from_config(config, attn_implementation="longspan").config._attn_implementation == "longspan"
from transformers.pipelines import PIPELINE_REGISTRY
assert {"long-summarization", "long-question-answering"} <= set(PIPELINE_REGISTRY.get_supported_tasks())
watching = [finder for finder in sys.meta_path if type(finder).__module__ == "longspan.imports"]
assert not [finder for finder in watching if "transformers" in finder.packages], "it watches on"
"""
ORDERS = {
    "ours first": "import sys, longspan; assert 'transformers' not in sys.modules and 'torch' not in sys.modules",
    "ours last": "from transformers import AutoModel; import longspan",
    "one of our modules": "from longspan.models import LongspanModel",
    "another part of theirs": "import longspan; from transformers import Trainer",
    "lazy and untouched": "import transformers, longspan",
    "reloaded": "import importlib, longspan; longspan.MECHANISMS; importlib.reload(longspan)",
    "a name of ours used": "import longspan; longspan.attend; longspan.answer; longspan.patterns",
}
FIRST = "ours first"
"""The one before which PyTorch must not have been imported."""
EACH = """
import gc, os, sys
import accelerate, huggingface_hub, torch._dynamo
assert not {"transformers", "longspan"}.intersection(name.partition(".")[0] for name in sys.modules)
gc.freeze()  # what is shared is not looked through when a process ends
for code in sys.argv[1:]:
    child = os.fork()
    if not child:
        exec(code, {"__name__": "__main__"})
        sys.exit()
    if os.waitpid(child, 0)[1]:
        sys.exit(f"failed: {code}")
"""
"""Each code in a process of its own, forked from one that has imported what transformers imports, and none of it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    config = longspan.LongspanConfig(vocab_size=9, hidden_size=4, num_attention_heads=2, intermediate_size=4)
    longspan.LongspanModel(config).save_pretrained(folder / "ours")
    return folder


def test_transformers_knows_our_models_that_came_first(folder: Path) -> None:
    result = _run(f"{ORDERS[FIRST]}\n{CHECK}", folder=folder)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_transformers_knows_our_models_whatever_came_first(folder: Path) -> None:
    codes = [f"{code}\n{CHECK}" for order, code in ORDERS.items() if order != FIRST]
    result = _run(EACH, *codes, folder=folder)
    assert result.returncode == 0, result.stderr


def test_attention_is_imported_without_the_compiler() -> None:
    """It takes longer to import than everything else together."""
    used = "import sys, longspan; longspan.attend; longspan.MECHANISMS['fusion']"
    result = _run(f"{used}; assert 'torch._dynamo' not in sys.modules", folder=Path.cwd())
    assert result.returncode == 0, result.stderr


def _run(code: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_the_attention_is_known_here_too() -> None:
    config = GPT2Config(n_layer=1, n_embd=4, n_head=2, vocab_size=9, bos_token_id=0, eos_token_id=1)
    model = GPT2Model._from_config(config, attn_implementation="longspan")
    assert model.config._attn_implementation == "longspan"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose `part` is imported by `whole` in the middle, when `whole` has no `late` yet."""
    name = "half_imported_package"
    (tmp_path / name).mkdir()
    for file, text in {
        "__init__": "",
        "part": "value = 1",
        "whole": f"from {name} import part\nlate = 2",
        "broken": "raise ZeroDivisionError",
    }.items():
        (tmp_path / name / f"{file}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    before, watching = set(sys.modules), list(sys.meta_path)
    yield name
    sys.meta_path[:] = watching
    for module in set(sys.modules) - before:
        del sys.modules[module]


def test_the_action_waits_until_nothing_is_half_imported(package: str) -> None:
    seen: list[int] = []

    def act() -> None:
        seen.append(importlib.import_module(f"{package}.whole").late)

    after_import([f"{package}.part"], act)
    after_import([f"{package}.part"], act)  # the same again changes nothing
    importlib.import_module(package)
    assert seen == []
    importlib.import_module(f"{package}.whole")
    assert seen == [2]
    importlib.reload(sys.modules[f"{package}.part"])
    assert seen == [2]
    after_import([f"{package}.part"], act)  # it is there: at once
    assert seen == [2, 2]


def test_a_module_that_fails_changes_nothing(package: str) -> None:
    seen: list[str] = []
    after_import([f"{package}.part"], lambda: seen.append("done"))
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(f"{package}.broken")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{package}.missing")
    assert seen == []
    found = importlib.import_module(f"{package}.part")
    assert seen == ["done"]
    assert "exec_module" not in vars(found.__loader__)


def test_what_the_action_raises_is_seen_once(package: str) -> None:
    def fail() -> None:
        raise LookupError("told")

    after_import([f"{package}.part"], fail)
    with pytest.raises(LookupError, match="told"):
        importlib.import_module(f"{package}.part")
    assert importlib.import_module(f"{package}.part").value == 1


def test_two_may_wait_at_once(tmp_path: Path) -> None:
    """Neither asks the other for a module for ever, and each is told of its own."""
    for name in ("first_library", "second_library"):
        (tmp_path / f"{name}.py").write_text("")
    code = """
from longspan.attention import MECHANISMS
from longspan.imports import Table, after_import, late_names
from longspan.stacks import STACKS
told = []
def one(): told.append("first")
def two(): told.append("second")
after_import(("first_library",), one)
after_import(("second_library",), two)
import longspan.settings, second_library
assert told == ["second"], told
import first_library
assert told == ["second", "first"], told
"""
    result = _run(code, folder=tmp_path)
    assert result.returncode == 0, result.stderr


def test_a_table_imports_what_is_asked_for(package: str) -> None:
    table: Table[int] = Table(
        "of this test", {"one": f"{package}.part:value", "bad": f"{package}.broken:value", "own": 3}
    )
    assert list(table) == ["one", "bad", "own"]
    assert "one" in table
    assert table.get("two") is None
    assert f"{package}.part" not in sys.modules
    assert (table["one"], table["own"]) == (1, 3)
    assert f"{package}.part" in sys.modules
    with pytest.raises(ZeroDivisionError):
        dict(table)
    del table["bad"]
    assert dict(table) == {"one": 1, "own": 3}


def test_names_of_a_package_are_imported_when_they_are_asked_for(package: str) -> None:
    get = late_names(package, [f"{package}.part:value"])
    whole = importlib.import_module(package)
    assert f"{package}.part" not in sys.modules
    assert get("value") == 1 == whole.value
    with pytest.raises(AttributeError, match="half_imported_package' has no attribute 'late'"):
        get("late")


@pytest.mark.slow
def test_a_transformer_xl_run_imports_no_other_system(tmp_path: Path) -> None:
    """Not the table of BART's weights, nothing of summaries, and of other systems only what their heads are called."""
    pytest.importorskip("yaml")
    code = (
        "import sys\nfrom longspan.cli import main\n"
        f"arguments = ['train', 'transformer-xl-enwik8', '--smoke', '--output', {str(tmp_path / 'run')!r}]\n"
        "assert main(arguments) == 0\nprint(*sys.modules)"
    )
    result = _run(code, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    modules = [name for name in result.stdout.split() if name.startswith("longspan.")]
    others = ("tasks.summaries", "data.summaries", "data.questions", "inference", "checkpoints.architectures.bart")
    assert not [name for name in modules if name.startswith(tuple(f"longspan.{other}" for other in others))]
    assert not [name for name in modules if name.startswith("longspan_papers.") and name.count(".") > 2]
    kinds = {kind.__module__ for table in (MECHANISMS, STACKS) for kind in table.values()}
    used = {"longspan.attention.full", "longspan.stacks.recurrent", "longspan.stacks.sequential"}
    assert kinds.intersection(modules) == used
    assert len(modules) <= 200, modules


def test_the_order_of_a_table_does_not_depend_on_what_was_imported() -> None:
    before = list(TASKS)
    assert TASKS["natural_questions"].name == "natural_questions"
    assert list(TASKS) == before
    assert before.index("summarization") < before.index("extraction") < before.index("coreference")
