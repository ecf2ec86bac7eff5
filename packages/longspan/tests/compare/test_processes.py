"""What the processes of cells leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys
from multiprocessing import util
from longspan.compare import processes

if __name__ == "__main__":
    processes.PRELOADED = ()
    processes.processes()
    print(util.get_temp_dir())
    sys.stdout.flush()
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_of_a_killed_ones_socket_is_removed_by_the_next(tmp_path: Path) -> None:
    """In a place with a short name, as the address of a socket has about a hundred letters at most."""
    (tmp_path / "script.py").write_text(SCRIPT)
    with tempfile.TemporaryDirectory() as place:
        for end, code, left in (("killed", -signal.SIGKILL, True), ("well", 0, False)):
            command = [sys.executable, str(tmp_path / "script.py"), end]
            environment = {**os.environ, "TMPDIR": place}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            folder = Path(done.stdout.strip())
            assert done.stderr == ""
            assert folder.is_relative_to(place)
            assert (done.returncode, folder.exists()) == (code, left)
        assert os.listdir(place) == []


LOADER = """
import multiprocessing
from longspan.compare import processes
from torch.utils.data import DataLoader

if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    processes.PRELOADED = ()
    processes.processes()
    print([batch.tolist() for batch in DataLoader([1, 2, 3], num_workers=1)])
"""


def test_data_are_loaded_by_processes_afterwards(tmp_path: Path) -> None:
    """A forked process of the data sends its batches by a socket in the same folder as that of the cells."""
    (tmp_path / "script.py").write_text(LOADER)
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("[[1], [2], [3]]\n", "")


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="this system has no groups of processes")
def test_control_c_at_a_terminal_leaves_the_process_that_imports_alone() -> None:
    code = (
        "import os, signal\n"
        "from multiprocessing import forkserver\n"
        "from longspan.compare.processes import processes, wait_until_ready\n"
        "processes()\n"
        "first = forkserver._forkserver._forkserver_pid\n"
        "signal.signal(signal.SIGINT, lambda number, frame: print('here'))\n"
        "os.killpg(0, signal.SIGINT)\n"  # as a terminal does: to every process of the group
        "wait_until_ready(None)\n"
        "print(first == forkserver._forkserver._forkserver_pid)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, start_new_session=True
    )
    assert (done.stdout, done.stderr) == ("here\nTrue\n", "")
