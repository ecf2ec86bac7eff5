"""transformers' own tests, as its source package brings them: fetched once, and imported without what it leaves out.

A release's wheel has no tests, and its source package only those files that lie directly in `tests/`: the mixins that
every model of transformers runs. They import a few helpers from folders that are not in the package; what stands in
their place is made here, and nothing else of the package is unpacked.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers

PACKAGE = "tests_of_transformers"
COMMON = {"output_hidden_states": True, "return_dict": False, "dtype": "float16", "chunk_size_feed_forward": 5}
COMMON |= {"architectures": ["BertModel"], "id2label": {0: "label"}, "label2id": {"label": "0"}}
COMMON |= {"problem_type": "regression", "name_or_path": ""}
"""What every configuration takes: the keys of the same name in transformers' `tests/utils/test_configuration_utils.py`
that its configurations still have."""


class NotThere(Exception):
    """Why the tests cannot be had here."""


def unpacked(cache: Path) -> Path:
    """The folder with the tests of the installed version; the package index is asked once.

    Raises:
        NotThere: the index has no source package of this version, or there is no index.
    """
    folder = cache / f"transformers-{transformers.__version__}"
    if not folder.is_dir():
        archive = _downloaded(cache)
        part = cache / f"{folder.name}.part"
        part.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as package:
            for member in package:
                path = Path(member.name)
                if member.isfile() and path.suffix == ".py" and path.parts[1:-1] == ("tests",):
                    source = package.extractfile(member)
                    assert source is not None
                    (part / path.name).write_bytes(source.read())
        (part / "__init__.py").touch()
        part.rename(folder)
    return folder


def _downloaded(cache: Path) -> Path:
    """The source package, by pip."""
    wanted = f"transformers=={transformers.__version__}"
    command = [sys.executable, "-m", "pip", "download", wanted, "--no-deps", "--no-binary", "transformers"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(cache)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        raise NotThere(f"pip download {wanted} did not end in two minutes") from None
    found = sorted(cache.glob(f"transformers-{transformers.__version__}.tar.gz"))
    if done.returncode or not found:
        raise NotThere(f"pip has no source package of {wanted}: {' '.join(done.stderr.split())[-200:]}")
    return found[0]


def imported(folder: Path, name: str) -> ModuleType:
    """One of the test files as a module."""
    if PACKAGE not in sys.modules:
        _stand_in(PACKAGE, __path__=[str(folder)])
        _stand_in(f"{PACKAGE}.exporters", __path__=[])
        _stand_in(f"{PACKAGE}.exporters.test_export", ExportTesterMixin=type("ExportTesterMixin", (), {}))
        _stand_in(f"{PACKAGE}.generation", __path__=[])
        _stand_in(f"{PACKAGE}.generation.test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))
        _stand_in(f"{PACKAGE}.utils", __path__=[])
        _stand_in(f"{PACKAGE}.utils.test_configuration_utils", config_common_kwargs=COMMON | {"dtype": torch.float16})
        sys.modules.setdefault("parameterized", _stand_in("parameterized", parameterized=Parameterized))
    return importlib.import_module(f"{PACKAGE}.{name}")


def _stand_in(name: str, **content: Any) -> ModuleType:
    module = sys.modules[name] = ModuleType(name)
    vars(module).update(content)
    return module


class Parameterized:
    """The one function of the library `parameterized` that these tests use: a method for each row of arguments."""

    @staticmethod
    def expand(rows: Iterable[Any], **_: Any) -> Callable[[Callable[..., None]], None]:
        def add(test: Callable[..., None]) -> None:
            methods = sys._getframe(1).f_locals  # the body of the class
            for number, row in enumerate(rows):
                arguments = row if isinstance(row, tuple) else (row,)
                methods[f"{test.__name__}_{number}"] = lambda self, given=arguments: test(self, *given)

        return add
