"""Ray runs the parts of a job, and nothing else: the output is that of one machine, and either engine goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.data", reason="needs Ray Data, of the 'ray' extra")

from pyarrow import parquet

from longspan import InputError, map_documents

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings are its own


def test_ray_and_this_machine_write_the_same_parts(
    rows: list[dict[str, Any]], write_lines: Callable[..., Path], tmp_path: Path
) -> None:
    path = write_lines([*rows, {"id": 20, "text": ""}])
    given = {"verb": "summarize", "inputs": path, "part_rows": 4, "sentences": 1}
    map_documents(output=tmp_path / "here", workers=0, **given)
    mapped = map_documents(output=tmp_path / "there", engine="ray", workers=2, **given)
    assert (mapped.rows, mapped.errors, mapped.written) == (21, 1, 6)
    for file in sorted((tmp_path / "here").glob("part-*")):
        assert parquet.read_table(file).equals(parquet.read_table(tmp_path / "there" / file.name))
    (tmp_path / "there/part-000002.parquet").unlink()
    (tmp_path / "here/part-000003.parquet").unlink()
    assert map_documents(output=tmp_path / "there", workers=0, **given).written == 1
    assert map_documents(output=tmp_path / "here", engine="ray", **given).written == 1


def test_a_model_that_cannot_be_loaded_is_one_sentence(
    rows: list[dict[str, Any]], write_lines: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="no-such-folder"):
        map_documents("embed", write_lines(rows), tmp_path / "out", engine="ray", workers=1, model="no-such-folder")
