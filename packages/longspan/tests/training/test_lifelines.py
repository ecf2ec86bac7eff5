"""The port on which the first of several processes notices the end of the others can be set."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from forked import forked
from longspan.training.lifelines import PORT_VARIABLE

SCRIPT = """
import json, os, sys
import torch
from longspan.errors import InputError
from longspan.training import lifelines
rank, said = int(os.environ["RANK"]), []
for value in json.loads(sys.argv[1]):
    # Of the first process only.
    os.environ[lifelines.PORT_VARIABLE] = value if rank == 0 else "of another process"
    try:
        with lifelines.ended_together():
            torch.distributed.barrier()
            listening = [one.getsockname()[1] for one in lifelines._open] if rank == 0 else []
            said.append(listening[:1] or [one.getpeername()[1] for one in lifelines._open])
    except InputError as error:
        said.append(str(error))
with open(f"{sys.argv[2]}/{rank}.json", "w") as file:
    json.dump(said, file)
"""


@pytest.mark.slow
def test_the_port_can_be_set_and_a_bad_one_is_refused_in_each_process(tmp_path: Path) -> None:
    """Both processes go on after each refusal, so that neither waits for the other."""
    (tmp_path / "script.py").write_text(SCRIPT)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        used = taken.getsockname()[1]
        values = [str(port), "any", "0", "65536", "-1", "2950０", "9" * 5000, str(used), "", str(port)]
        done = forked(2, tmp_path / "script.py", json.dumps(values), str(tmp_path))
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert first[0] == first[-1] == [port]
    for value, sentence in zip(values[1:6], first[1:6], strict=True):
        assert sentence == f"{PORT_VARIABLE}={value!r} is not a port; set it to a number from 1 to 65535, or unset it"
    assert len(first[6]) < 200
    reason = "(address already in use); set it to a free one, or unset it"
    assert first[7] == f"{PORT_VARIABLE}={used} is a port that the first process cannot listen on {reason}"
    assert first[8][0] not in {0, port, used}  # a free one
