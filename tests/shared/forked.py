"""Scripts in several processes that have imported everything before they start.

A process spends seconds on its imports and then trains a tiny model in less. `forked` gives each the variables that
torchrun would give it, but forks it from a process that has imported all once, and that lives as long as this one.
What torchrun itself does, starting and ending processes, is tested with `torchrun`.

Run as a script it is the process that forks: it reads a JSON object from each line of its input, and answers with a
list of exit codes.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import re
import runpy
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

IMPORTED = ("transformers.trainer", "longspan.training.train", "longspan.models", "longspan.models.fsdp")


def forked(processes: int, script: Path | list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script, or `["-m", module]`, in so many processes of one thread each; the exit code is the first that is not 0.

    Where one of them ends early, nobody ends the others for it, as torchrun would.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        names |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
        request = {
            "script": script if isinstance(script, list) else [str(script)],
            "arguments": arguments,
            "environment": {**os.environ, **names},
            "folder": os.getcwd(),
            "out": str(out),
            "err": str(err),
        }
        forker = _forker()
        assert forker.stdin is not None
        assert forker.stdout is not None
        forker.stdin.write(json.dumps(request) + "\n")
        forker.stdin.flush()
        codes = json.loads(forker.stdout.readline())
        return subprocess.CompletedProcess(
            [str(script), *arguments],
            next((code for code in codes if code), 0),
            out.read_text(encoding="utf-8"),
            without_leaks(err.read_text(encoding="utf-8")),
        )


def without_leaks(errors: str) -> str:
    """What a process with frozen objects says, without the complaint of Triton's bindings about these at its end."""
    complaint = r"^(nanobind: | - leaked | - \.\.\. skipped|See https://nanobind\.).*\n?"
    return re.sub(complaint, "", errors, flags=re.MULTILINE)


@cache
def _forker() -> subprocess.Popen[str]:
    """The process that forks; it ends when its input does."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    atexit.register(process.communicate)
    return process


def _serve() -> tuple[dict[str, Any], int] | None:
    """Fork for each request; in a process that was forked, the request and its number."""
    answers = os.fdopen(os.dup(1), "w")
    for line in iter(sys.stdin.readline, ""):
        request, children = json.loads(line), dict[int, int]()
        count = int(request["environment"]["WORLD_SIZE"])
        for rank in range(count):
            if child := os.fork():
                children[child] = rank
            else:
                answers.close()
                return request, rank
        codes = [0] * count
        while children:
            child, status = os.wait()
            codes[children.pop(child)] = os.waitstatus_to_exitcode(status)
        answers.write(json.dumps(codes) + "\n")
        answers.flush()
    return None


def _run(request: dict[str, Any], rank: int) -> None:
    """The script as the main module of this process."""
    os.environ.clear()
    os.environ.update(request["environment"], RANK=str(rank), LOCAL_RANK=str(rank))
    os.chdir(request["folder"])
    files = {0: os.open(os.devnull, os.O_RDONLY)}
    for number, name in ((1, "out"), (2, "err")):
        files[number] = os.open(request[name], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number, file in files.items():
        os.dup2(file, number)
        os.close(file)
    first, *module = request["script"]
    sys.argv = [first, *request["arguments"]]
    if module:
        runpy.run_module(module[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


def import_all() -> None:
    """What any command of `longspan` and any training may import."""
    from longspan.cli import COMMANDS

    for name in IMPORTED:
        importlib.import_module(name)
    assert all(COMMANDS.values())


if __name__ == "__main__":
    import_all()
    gc.freeze()  # what is shared by all is not looked through, and so stays shared
    if asked := _serve():
        _run(*asked)
