"""Worker processes: what they say, and what becomes of documents that end them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longspan import InputError, map_documents
from longspan_documents.mapping.documents import Progress

Rows = list[dict[str, Any]]
Write = Callable[..., Path]
Read = Callable[[Path], Rows]


@pytest.mark.slow
def test_two_workers_give_what_one_process_gives(
    rows: Rows, write_lines: Write, read_parts: Read, tmp_path: Path
) -> None:
    path = write_lines(rows)
    told: list[Progress] = []
    map_documents("embed", path, tmp_path / "here", workers=0)

    def interrupt(progress: Progress) -> None:
        if progress.done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_documents("embed", path, tmp_path / "there", workers=2, report=interrupt, part_rows=4)
    left = [file.name for file in (tmp_path / "there").iterdir()]
    assert all(name == "_job.json" or name.startswith("part-") for name in left)
    map_documents("embed", path, tmp_path / "there", workers=2, report=told.append, part_rows=4)
    for here, there in zip(read_parts(tmp_path / "here"), read_parts(tmp_path / "there"), strict=True):
        np.testing.assert_allclose(here.pop("vector"), there.pop("vector"), atol=1e-6)
        assert here == there
    done = [one.done for one in told]
    assert (min(done), max(done)) == (4 * (len(left) - 1), 20)


DEADLY = """
import os, signal
from pathlib import Path
from longspan_documents.mapping import work

ready = work.Embed.ready

def with_deadly_documents(self):
    do = ready(self)

    def then(document, row):
        once = Path({once!r})
        if "deadly" in document or ("unlucky" in document and not once.exists()):
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return do(document, row)

    return then

work.Embed.ready = with_deadly_documents
"""
"""What Python runs first in each worker: one document always ends it, as running out of memory does, another once."""


@pytest.mark.slow
def test_a_document_that_ends_its_process_is_a_row_with_an_error(
    rows: Rows, write_lines: Write, read_parts: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first/sitecustomize.py").write_text(DEADLY.format(once=str(tmp_path / "once")))
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    rows[3]["text"] += " It is deadly."
    rows[1]["text"] += " It is unlucky."
    mapped = map_documents("embed", write_lines(rows[:10]), tmp_path / "out", workers=1, part_rows=5)
    assert (mapped.rows, mapped.errors) == (10, 1)
    done = read_parts(tmp_path / "out")
    assert [row["id"] for row in done] == list(range(10))
    assert [row["id"] for row in done if row["error"]] == [3]
    assert [row["id"] for row in done if row["vector"] is None] == [3]
    assert done[3]["error"] == (
        "this document was left out, since its process was ended by SIGKILL, as the system does when memory runs out"
    )


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_one_sentence(rows: Rows, write_lines: Write, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no-such-folder"):
        map_documents("embed", write_lines(rows), tmp_path / "out", workers=2, model="no-such-folder")
