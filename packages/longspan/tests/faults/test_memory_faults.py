"""Too little memory, in every verb: one sentence that says so, and nothing half-written."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from forked import forked
from longspan.cli import COMMANDS, main
from longspan.errors import InputError, is_out_of_memory, memory_sentence, one_sentence
from longspan.models import LongspanConfig, LongspanModel
from longspan.planning.plan import memory_here, what_fits
from longspan.planning.source import Planned
from longspan.training.arguments import trainer_arguments
from longspan.training.optimisation import Optimisation

LIMITED = """
import resource, sys
import longspan.checkpoints.loading
from longspan.cli import COMMANDS, main
from longspan.models import LongspanForCausalLM
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 2**20, held + 2**20))
sys.exit(main(sys.argv[1:]))
"""
"""A process that has imported what it needs and gets one MiB more."""
VERBS = {
    "summarize": ["summarize", "a.txt"],
    "answer": ["answer", "a.txt", "what stands here?"],
    "choose": ["choose", "a.txt", "what?", "--model", "scorer", "-c", "a", "-c", "b"],
    "index": ["index", "a.txt", "--model", "reader", "--output", "out"],
    "embed": ["embed", "a.txt", "--output", "v.safetensors"],
    "generate": ["generate", "writer", "a", "--max-tokens", "3"],
    "train": ["train", "small-mlm-window", "--smoke", "--output", "out"],
    "evaluate": ["evaluate", "reader", "--data", "synthetic", "--limit", "2", "--output", "out"],
    "lengthen": ["lengthen", "roberta", "--max-tokens", "128", "--output", "out"],
}


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux says how much a process holds")
@pytest.mark.parametrize("verb", VERBS)
def test_a_limit_on_memory_is_said_in_one_sentence(
    verb: str, tmp_path: Path, made_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("A first sentence stands here. A second one follows it. " * 50, encoding="utf-8")
    for name in ("scorer", "reader", "writer", "roberta"):
        (tmp_path / name).symlink_to(made_checkpoints[name])
    (tmp_path / "limited.py").write_text(LIMITED)
    before = sorted(tmp_path.iterdir())
    done = forked(1, tmp_path / "limited.py", *VERBS[verb])
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in done.stderr
    assert done.returncode == 2, done
    assert len(errors) == 1
    assert "memory ran out" in errors[0]
    assert "a smaller model or batch" in errors[0]
    assert sorted(tmp_path.iterdir()) == before


def _torch() -> None:
    torch.empty(2**58)


def _python() -> None:
    bytearray(2**62)


def _mapped() -> None:
    raise OSError(12, "Cannot allocate memory")


def _library() -> None:
    raise ImportError("libx.so: failed to map segment from shared object")


@pytest.mark.parametrize("greedy", [_torch, _python, _mapped, _library])
def test_what_libraries_say_is_known(
    greedy: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((RuntimeError, MemoryError, OSError, ImportError)) as raised:
        greedy()
    assert is_out_of_memory(raised.value)
    if greedy is _torch:
        assert f"({2**60 / 1e6:,.1f} MB more were asked for)" in memory_sentence(raised.value)
    with (
        pytest.raises(InputError, match="the model cannot be read: memory ran out"),
        one_sentence("the model cannot be read"),
    ):
        greedy()
    monkeypatch.setitem(COMMANDS, "mechanisms", lambda: greedy())
    assert main(["mechanisms"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: memory ran out")
    assert err.count("\n") == 1


def test_a_training_that_runs_out_says_what_a_plan_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def train(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1 GiB."
        )

    monkeypatch.setattr("longspan.training.train.train", train)
    assert main(["train", "small-mlm-window", "--output", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "memory ran out (2.00 GiB more were asked for)" in err
    assert "by `longspan plan`, float32 fits into" in err
    config = LongspanConfig(vocab_size=50, hidden_size=32, num_attention_heads=2, position_embedding="none")
    planned = Planned(name="a model", config=config, model_class=LongspanModel, tokens=4096)
    said = what_fits(planned, 8, train=True, room=60 << 20)
    assert said.startswith("by `longspan plan`, float32 needs")
    assert "a batch of" in said


def test_a_training_of_a_published_model_that_runs_out_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """There is no plan of a model that is not in a folder here, which is not what went wrong."""

    def train(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("longspan.training.train.train", train)
    assert main(["train", "led-arxiv-4k", "--output", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: memory ran out (2.00 GiB more were asked for)")
    assert "no folder here" not in err


def test_a_gpu_that_runs_out_in_other_verbs_says_what_a_plan_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], made_checkpoints: dict[str, Path]
) -> None:
    """Where a model is named; else that memory ran out, and where."""

    def generate(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.50 GiB.")

    monkeypatch.setitem(COMMANDS, "generate", generate)
    folder = str(made_checkpoints["writer"])
    for arguments, advised in ((["generate", folder, "a"], True), (["generate", "nowhere", "a"], False)):
        assert main(arguments) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: memory ran out (3.50 GiB more were asked for) on the GPU; give less text at once")
        assert ("by `longspan plan`, float32 fits into" in err) == advised
        assert err.count("\n") == 1


@pytest.mark.parametrize("verb", ["generate", "classify", "train"])
def test_a_processor_that_runs_out_says_what_a_plan_fits(
    verb: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    made_checkpoints: dict[str, Path],
    tmp_path: Path,
) -> None:
    """By what the allocator itself raises, of a petabyte."""

    def greedy(*arguments: object, **options: object) -> None:
        torch.empty(2**50, dtype=torch.uint8)

    folder = str(made_checkpoints["writer"])
    command = {
        "generate": ["generate", folder, "a"],
        "classify": ["classify", folder, "a"],
        "train": ["train", "small-mlm-window", "--output", str(tmp_path / "out")],
    }[verb]
    if verb == "train":
        monkeypatch.setattr("longspan.training.train.train", greedy)
    else:
        monkeypatch.setitem(COMMANDS, verb, greedy)
    monkeypatch.setattr("longspan.planning.plan.memory_here", lambda: 60 << 20)
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: memory ran out ({2**50 / 1e6:,.1f} MB more were asked for); give less text at once")
    said = r"by `longspan plan`, float32 .*a batch of [\d,]+.* \(rows of [\d,]+ tokens\)\.$"
    assert re.search(said, err.strip()), err
    assert not (tmp_path / "out").exists()


def test_the_least_limit_on_memory_is_the_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    groups = [tmp_path / "max", tmp_path / "limit", tmp_path / "absent"]
    groups[0].write_text("max\n")
    groups[1].write_text(f"{3 << 30}\n")
    monkeypatch.setattr("longspan.planning.plan.CONTROL_GROUPS", groups)
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 21}[name])
    resource = pytest.importorskip("resource")
    unlimited = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (unlimited[kind], resource.RLIM_INFINITY))
    assert memory_here() == 3 << 30
    groups[1].write_text(f"{2**63 - 4096}\n")  # what version 1 says where there is no limit
    assert memory_here() == 8 << 30
    unlimited[resource.RLIMIT_AS] = 5 << 20
    assert memory_here() == 5 << 20


def test_a_gpu_without_bfloat16_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    with pytest.raises(InputError, match="bf16 is true, but Tesla T4 has no bfloat16; set it to false"):
        trainer_arguments(Optimisation(steps=2, bf16=True), None, tmp_path)


def test_what_is_a_fault_of_ours_stays_one() -> None:
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(InputError("file 'out of memory.txt' is empty"))
    wrapped = RuntimeError("the worker failed")
    wrapped.__cause__ = MemoryError()
    assert is_out_of_memory(wrapped)
