"""Small files and short commands that ask for gigabytes or hours: refused in one sentence, in little memory."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from longspan.data.corpus.files import text_documents
from longspan.data.jsonl import read_bytes, read_jsonl
from longspan.data.tables import read_records
from longspan.errors import InputError
from longspan_documents.text.pdf import lines, reader
from longspan_documents.text.pdf.blocks import _LEADERS
from longspan_papers.dialogue.noises import _Ranks

MEGABYTES = 300


def long_line(before: bytes = b'{"text": "') -> bytes:
    """A third of a megabyte that unpacks to one line of 300 MB."""
    piece = gzip.compress(b"a" * (1 << 20), mtime=0)
    return gzip.compress(before, mtime=0) + piece * MEGABYTES + gzip.compress(b'"}\n', mtime=0)


def test_a_line_has_a_greatest_length_and_takes_little_memory(tmp_path: Path) -> None:
    """Half a gigabyte, with Python; the line alone has 300 MB, its text as many."""
    (tmp_path / "a.jsonl.gz").write_bytes(long_line())
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom longspan.data.tables import read_records\n"
        "from longspan.errors import InputError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (500_000_000,) * 2)\n"
        "try:\n    list(read_records(Path(sys.argv[1])))\nexcept InputError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.jsonl.gz")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith("line 1: longer than 64 MiB, too long; cut what it holds into parts")


@pytest.mark.parametrize("name", ["a.csv", "quoted.csv", "a.json", "a.jsonl", "a.txt"])
def test_records_of_every_kind_are_bounded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("jsonl", "tables"):
        monkeypatch.setattr(f"longspan.data.{module}.LONGEST", 1 << 20)
    monkeypatch.setattr("longspan.data.jsonl.PIECE", 1 << 16)
    long = "word " * (1 << 19)
    contents = {
        "a.csv": f"text,label\n{long},a\n",
        "quoted.csv": f'text,label\n"{long.replace(" ", chr(10))}",a\n',
        "a.json": f'[{{"text": "{long}"}}]',
        "a.jsonl": f'{{"text": "{long}"}}\n',
        "a.txt": long,
    }
    path = tmp_path / name
    path.write_text(contents[name])
    with pytest.raises(InputError, match=r"(longer|more) than 1 MiB|not CSV \(field larger than field limit"):
        list(map(list, text_documents(path, "line")) if name == "a.txt" else read_records(path))
    with pytest.raises(InputError, match="holds more than 1 MiB, too much to read at once"):
        read_bytes(path, 1 << 20)


def test_long_lines_below_the_bound_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "' + "a" * 3_000_000 + '"}\n{"text": "b"}\n')
    assert [len(record["text"]) for _, record in read_jsonl(tmp_path / "a.jsonl")] == [3_000_000, 1]


def drawn(levels: int, times: int) -> bytes:
    """A PDF whose forms draw each other, each the next one so many times, as one line of text at last."""

    def stream(entries: str, body: str) -> str:
        return f"<< {entries} /Length {len(body)} >>\nstream\n{body}\nendstream"

    def uses(number: int) -> str:
        return f"/Resources << /XObject << /X {number} 0 R >> >>"

    form = "/Type /XObject /Subtype /Form /BBox [0 0 600 800] "
    page = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 5 0 R " + uses(6) + " >>"
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [4 0 R] /Count 1 >>"]
    objects += ["<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>", page, stream("", "/X Do")]
    objects += [stream(form + uses(7 + level), "/X Do " * times) for level in range(levels)]
    objects.append(stream(form + "/Resources << /Font << /F 3 0 R >> >>", "BT /F 12 Tf 72 700 Td (Some words.) Tj ET"))
    data = "%PDF-1.4\n" + "".join(f"{number} 0 obj\n{body}\nendobj\n" for number, body in enumerate(objects, 1))
    return f"{data}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\n%%EOF\n".encode()


def test_what_a_pdf_draws_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten levels of ten are ten thousand million objects in two kilobytes; the process that counts them may end."""
    assert "Some words." in reader.document_from_pdf(drawn(2, 2), "a.pdf").text
    monkeypatch.setattr(lines, "MEMORY", 300 << 20)
    assert len(drawn(10, 10)) < 4_000
    with pytest.raises(InputError, match=r"a\.pdf needs more than 300 MiB of memory to be laid out"):
        reader.document_from_pdf(drawn(10, 10), "a.pdf")


def test_vocabularies_and_stages_are_bounded(check_fault: Callable[..., str], tmp_path: Path) -> None:
    run = ["tokenizer", "a.txt", "--size", "99999999999", "--output", "out"]
    check_fault(run=run, files={"a.txt": "Some words."}, says=["--size", "99999999999", "at most 5000000"])
    check_fault(
        run=["train", "recipe.yaml", "--output", "out"],
        recipe={"stages": [{}] * 5_000},
        says=["stages has 5,000 entries", "at most 100"],
    )


def test_spans_are_drawn_by_rank_among_the_words_that_are_left() -> None:
    """Each draw went through all words: of a line of a megabyte, ten thousand times two hundred thousand."""
    ranks, left, draw = _Ranks(700), list(range(700)), Random(1)
    while left:
        rank = draw.randrange(len(left))
        assert (ranks.count, ranks.place(rank)) == (len(left), left[rank])
        ranks.remove(left.pop(rank))


def test_leaders_of_a_table_of_contents_are_found_in_one_pass() -> None:
    for row, found in (("Chapter 1 ..... 12", True), ("One . . . . . iv", True), ("so on ... 12", False)):
        assert bool(_LEADERS.search(row)) is found
    for row in (". " * 1_000_000 + "y", "." * 1_000_000 + "1" * 1_000_000 + "y"):
        assert not _LEADERS.search(row)
