"""What every test shares: repeatable randomness, few threads, no network, and the optional folder of real data."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before any test module imports transformers: nothing may try to reach the Hub, and progress bars stay quiet.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
import torch
from hypothesis import settings
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from working_set import mark_further_cases

# Tiny tensors gain nothing from many threads, and several pytest workers share the cores.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

# What modules and many thousands of tests are made of stays, and no search in it for garbage would find any while they
# are collected: `_imported_once` begins to search.
gc.disable()

# Deadlines measure the machine, not the code; a fixed seed makes a red run red again.
settings.register_profile("longspan", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("longspan")


SLOW_SHARE = pytest.StashKey[float]()
LONGEST = (
    *("training/test_processes.py", "peers/test_common.py", "tests/test_site.py", "ops/test_flex.py"),
    *("contract/test_divided_rows.py", "mapping/test_kills.py"),
)
"""Files whose tests take longest. They come first: while one that is begun last runs, the other workers have none."""


@pytest.hookimpl(tryfirst=True)  # before `-m` and `-k` leave tests out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest come first; those marked `gpu` are skipped where there is no CUDA device; the `slow` ones counted."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONGEST))
    mark_further_cases(items)
    root = Path(__file__).parent
    files = [path for tests in ("tests", "packages/*/tests") for path in root.glob(f"{tests}/**/test_*.py")]
    if len({item.path for item in items}) > 0.9 * len(files):  # the whole suite, but for modules that skip
        config.stash[SLOW_SHARE] = sum("slow" in item.keywords for item in items) / len(items)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, and this machine has none")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def slow_share(pytestconfig: pytest.Config) -> float:
    """The share of all tests that are marked `slow`; skipped unless the whole suite was collected."""
    if SLOW_SHARE not in pytestconfig.stash:
        pytest.skip("counted when the whole suite is collected")
    return pytestconfig.stash[SLOW_SHARE]


@pytest.fixture(autouse=True, scope="module")
def _imported_once() -> None:
    """Each training collects garbage, and need not look through half a million objects of imported modules for it."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # modules are made by the thousand, and hold few circles


def pytest_unconfigure() -> None:
    """Objects that were frozen would be reported as leaks by Triton's bindings when Python ends."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    """Every test starts from the same random state and the same registered names, whatever ran before it."""
    # Without a CUDA device `torch.manual_seed` formats the stack at every call, for an error that might come later.
    torch.manual_seed(0) if torch.cuda.is_available() else torch.default_generator.manual_seed(0)
    homes = {
        "longspan.patterns.text": "KINDS",
        "longspan.attention": "MECHANISMS",
        "longspan.models.heads": "HEADS",
        "longspan.tasks": "TASKS",
        "longspan.data.sources": "READERS",
    }
    tables = [getattr(sys.modules[home], name) for home, name in homes.items() if home in sys.modules]
    before = [dict(table) for table in tables]
    yield
    for table, kept in zip(tables, before, strict=True):
        for name in set(table) - set(kept):
            del table[name]


class Memory(TorchDispatchMode):
    """Follows every tensor that an operation makes: elements of the largest, and the most bytes alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.alive = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
                self.count(tensor.untyped_storage())
        self.peak = max(self.peak, self.alive)
        return result

    def count(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self.known:
            self.known.add(storage._cdata)
            self.alive += storage.nbytes()
            weakref.finalize(storage, self.forget, storage._cdata, storage.nbytes())

    def forget(self, address: int, size: int) -> None:
        self.known.discard(address)
        self.alive -= size


@pytest.fixture
def memory() -> type[Memory]:
    """`with memory() as made:` follows the tensors that are made."""
    return Memory


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real documents named by the environment variable LONGSPAN_DATA; the test is skipped without it."""
    name = os.environ.get("LONGSPAN_DATA")
    if not name:
        pytest.skip("needs real documents: set LONGSPAN_DATA to the folder that holds them")
    folder = Path(name)
    if not folder.is_dir():
        pytest.fail(f"LONGSPAN_DATA={name!r} is not a folder; point it at the data or unset it")
    return folder


@pytest.fixture(scope="session")
def make_pdf() -> Callable[..., bytes]:
    """Make `make_pdf(*pages)`, a small PDF file by hand, one line of text per line of each page."""

    def make(*pages: str) -> bytes:
        kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
        objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>"]
        objects.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
        for page in pages:
            lines = " ".join(f"({line}) Tj 0 -14 Td" for line in page.split("\n") if line)
            stream = f"BT /F1 12 Tf 72 700 Td {lines} ET"
            objects.append(
                f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {len(objects) + 2} 0 R"
                " /Resources << /Font << /F1 3 0 R >> >> >>"
            )
            objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
        data, places = b"%PDF-1.4\n", []
        for number, body in enumerate(objects, 1):
            places.append(len(data))
            data += f"{number} 0 obj\n{body}\nendobj\n".encode()
        table = "".join(f"{place:010d} 00000 n \n" for place in places)
        end = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
        return data + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{end}".encode()

    return make


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty disk of one megabyte, mounted in a folder of its own; the test is skipped where that is not allowed."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        not shutil.which("mount")
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("needs the right to mount a disk of one megabyte")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(scope="session")
def on_a_terminal() -> Callable[..., str]:
    """`on_a_terminal(command)` → what it writes to a terminal of 80 columns; options are those of `Popen`."""

    def run(command: list[str], **options: Any) -> str:
        import fcntl
        import pty
        import struct
        import termios

        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, **options) as process:
            os.close(theirs)
            written = b""
            while True:
                try:
                    some = os.read(ours, 65536)
                except OSError:  # how the end of a terminal shows on Linux
                    break
                if not some:
                    break
                written += some
        os.close(ours)
        assert process.returncode == 0, written
        return written.decode()

    return run


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window and without a network, whose log the tests read; skipped where it is absent."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="pages are opened with selenium, of the 'dev' extra")
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    driver_path = shutil.which("chromedriver")
    if program is None or driver_path is None:
        pytest.skip("no Chromium with its driver here; on Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    # No name resolves: what is neither on the disk nor served here cannot be loaded.
    names = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", names):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path))
    driver.command_executor.client_config.timeout = 1500  # for what never ends, at any load
    driver.set_page_load_timeout(1200)
    driver.set_script_timeout(1200)
    yield driver
    driver.quit()
