"""Documents of every kind in, text out; every bad file gives one clear sentence."""

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from counted import lines_run
from longspan.data.text.documents import check_not_path
from longspan.data.text.reading import read
from longspan.data.text.sentences import split_sentences
from longspan.errors import InputError


def write(folder: Path, name: str, data: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.rst", "a", "a.TXT"])
def test_plain_text_of_any_name(tmp_path: Path, name: str) -> None:
    assert read(write(tmp_path, name, "Grüße.\r\nZwei\rDrei\n")).text == "Grüße.\nZwei\nDrei\n"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks_tell_the_encoding(tmp_path: Path, encoding: str) -> None:
    assert read(write(tmp_path, "a.txt", "Grüße, 你好".encode(encoding))).text == "Grüße, 你好"
    assert read(write(tmp_path, "b.txt", b"\xfe\xff" + "Grüße".encode("utf-16-be"))).text == "Grüße"


def test_other_encodings_are_named_not_guessed(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "Grüße".encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.txt is not utf-8 \(byte 0xfc at 2\).*--encoding latin-1"):
        read(path)
    assert read(path, encoding="latin-1").text == "Grüße"
    assert read(write(tmp_path, "b.txt", "你好。".encode("gb18030")), encoding="gb18030").text == "你好。"
    with pytest.raises(InputError, match="encoding='klingon' is unknown"):
        read(path, encoding="klingon")
    with pytest.raises(InputError, match="is not ascii"):
        read(path, encoding="ascii")


def test_utf16_without_mark_is_an_error_that_helps(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "plain".encode("utf-16-le"))
    with pytest.raises(InputError, match=r"zero bytes.*--encoding utf-16-le"):
        read(path)
    assert read(path, encoding="utf-16-le").text == "plain"


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    for data, text in ((b"Hello.\r\n", "Hello.\n"), (b"<!DOCTYPE html><p>One</p><p>Two", "One\n\nTwo")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert read("-").text == text
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(InputError, match="standard input is empty"):
        read("-")


def test_json_is_no_document_but_for_raw_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = '{"text": "One sentence."}\n{"text": "Another."}\n'
    for name in ("rows.jsonl", "rows.NDJSON", "row.json", "rows"):
        path = write(tmp_path, name, rows)
        with pytest.raises(InputError, match=rf"{name} holds JSON, not a document; save the text"):
            read(path)
        assert read(path, raw=True).text == rows
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n" + rows.encode())))
    with pytest.raises(InputError, match="standard input holds JSON"):
        read("-")
    for name, text in (("about.txt", rows), ("braces", "{1, 2} is a set.\n"), ("list", "[1] Smith, 2010.\n")):
        assert read(write(tmp_path, name, text)).text == text


def test_html_keeps_the_text_and_its_blocks(tmp_path: Path) -> None:
    page = """<!doctype html><html><head><title>T</title><style>p{}</style></head><body><nav>menu</nav><!-- no -->
    <h1>Head</h1><p>One <b>t</b>wo &amp; three,\nfour.<br>Line<p>Unclosed<ul><li>a<li>b</ul><pre>x = 1\n  y</pre>
    <table><tr><td>1</td><td>2</td></tr></table><script>var x</script><footer>f</footer></body></html>"""
    blocks = ["Head", "One two & three, four.\nLine", "Unclosed", "- a\n- b", "x = 1\n  y", "| 1 | 2 |"]
    assert read(write(tmp_path, "a.html", page)).text.split("\n\n") == blocks
    assert read(write(tmp_path, "noname", page)).text.split("\n\n") == blocks


def test_html_main_part_and_declared_encoding(tmp_path: Path) -> None:
    page = "<html><meta charset='iso-8859-1'><div>advertisement</div><main><p>Grüße</p></main></html>"
    assert read(write(tmp_path, "a.htm", page.encode("latin-1"))).text == "Grüße"
    two = "<article>One</article><article>Two</article>"
    assert read(write(tmp_path, "b.html", two)).text == "One\n\nTwo"


@pytest.mark.slow
def test_the_work_of_unclosed_tags_grows_with_their_number(tmp_path: Path) -> None:
    lines = []
    for tags in (500, 5_000):
        path = write(tmp_path, "a.html", "<p>word " * tags)
        assert read(path).text.count("word") == tags
        lines.append(lines_run(read, path))
    assert lines[1] < 11 * lines[0]


def test_markdown_keeps_the_words(tmp_path: Path) -> None:
    source = (
        '---\ntitle: x\n---\n# A title #\nText with a [link](http://a.b/c "t"), **bold** and `code` &amp; more.\n'
        "![picture](x.png)\n<!-- hidden -->\n\n- item\n\n* * *\n```python\nprint(1)\n```\n"
    )
    document = read(write(tmp_path, "a.md", source))
    assert document.text == source
    assert document.title == "A title"
    assert [(block.kind, block.text) for block in document.blocks] == [
        ("boilerplate", "---\ntitle: x\n---"),
        ("heading", "A title"),
        ("paragraph", "Text with a link, bold and code & more. picture"),
        ("item", "item"),
        ("code", "print(1)"),
    ]
    places = [source[slice(*document.blocks[2].body.span(start, end))] for start, end in [(0, 4), (12, 16), (18, 22)]]
    assert places == ["Text", "link", "bold"]


def test_pdf_pages_become_text(make_pdf: Callable[..., bytes], tmp_path: Path) -> None:
    text = read(write(tmp_path, "a.pdf", make_pdf("First line, a bro-\nken word.", "Second page."))).text
    assert text == "First line, a broken\nword.\n\nSecond page."
    assert read(write(tmp_path, "noname", make_pdf("Known by its contents."))).text == "Known by its contents."


def test_pdf_without_text_and_encrypted_pdf(make_pdf: Callable[..., bytes], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.pdf holds no text on its 2 pages.*text recognition"):
        read(write(tmp_path, "a.pdf", make_pdf("", "")))
    # Standard security handler, revision 2: no password opens it, since its check values are made up.
    lock = b"<< /Filter /Standard /V 1 /R 2 /P -4 /O <" + b"41" * 32 + b"> /U <" + b"42" * 32 + b"> >>"
    locked = make_pdf("Secret.").replace(b"/Root 1 0 R", b"/Root 1 0 R /ID [<00><00>] /Encrypt " + lock)
    with pytest.raises(InputError, match=r"b\.pdf is encrypted"):
        read(write(tmp_path, "b.pdf", locked))
    with pytest.raises(InputError, match=r"c\.pdf cannot be read as PDF"):
        read(write(tmp_path, "c.pdf", "not a pdf at all"))


@pytest.mark.slow
def test_every_damaged_pdf_gives_an_input_error(make_pdf: Callable[..., bytes], tmp_path: Path) -> None:
    whole = make_pdf("First line.", "Second page.")
    for cut in range(20, len(whole), 97):
        with contextlib.suppress(InputError):  # any other error fails; some cuts can be mended and read
            assert "sentence" not in read(write(tmp_path, "cut.pdf", whole[:cut])).text


def test_a_missing_library_names_the_extra(
    make_pdf: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    with pytest.raises(InputError, match=r"pip install 'longspan\[documents\]'"):
        read(write(tmp_path, "a.pdf", make_pdf("Text.")))


@pytest.mark.slow
def test_ten_megabytes_on_one_line(tmp_path: Path) -> None:
    """So many that only work in proportion to them comes to an end; how it grows is counted with fewer."""

    def check(count: int) -> None:
        path = write(tmp_path, "line.txt", "A sentence of seven words stands here. " * count)
        assert len(split_sentences(read(path).text)) == count

    assert lines_run(check, 20_000) < 11 * lines_run(check, 2_000)
    check(256_000)


@pytest.mark.parametrize(
    "text",
    [
        "paper.pdf",
        "Paper.DOCX",
        "a/b/notes.md",
        "C:\\papers\\paper.pdf",
        "film.srt",
        "~/paper.txt",
        "Makefile",
        "my notes",
    ],
)
def test_a_line_that_is_the_name_of_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("Makefile", "my notes"):
        write(tmp_path, name, "all:")
    with pytest.raises(InputError, match="the name of a file; give Path"):
        check_not_path(text, "text")


@pytest.mark.parametrize(
    "text",
    [
        *("", "pdf", ".pdf", "A hedge.", "setup.py", "README", "Run setup.py", "All of it stands in README.md"),
        *("/etc/passwd is explained in docs/guide.html", "paper.pdf\n", " paper.pdf", "paper.pdf\nnotes.md"),
        *("a.pdf b.pdf", "folder", "x" * 5000 + ".pdf", "half \ud800", "zero \0"),
    ],
)
def test_a_text_may_speak_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    check_not_path(text, "text")


def test_an_address_is_to_be_downloaded_first() -> None:
    with pytest.raises(InputError, match="download the file and give its Path"):
        check_not_path("https://example.org/paper.pdf", "text")
