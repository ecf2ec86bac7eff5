"""Documents of every kind in, text out; every bad file gives one clear sentence."""

import contextlib
import io
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest

from counted import lines_run
from longspan.data.text.sentences import split_sentences
from longspan.errors import InputError
from longspan_documents.inference.answer import open_documents
from longspan_documents.text.reading import read


def write(folder: Path, name: str, data: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.text", "a", "a.TXT"])
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


WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"


def archive(**parts: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for name, text in parts.items():
            file.writestr(name, text)
    return data.getvalue()


@pytest.fixture
def every_kind(make_pdf: Callable[..., bytes], tmp_path: Path) -> Path:
    """A folder with a text and a file of every kind that a library of the extra reads."""
    write(tmp_path, "a.txt", "Plain words.")
    write(tmp_path, "a.rst", ("Grüße. " * 40).encode("latin-1"))  # the encoding of which is guessed
    write(tmp_path, "a.html", "<p>Some words.</p>")
    write(tmp_path, "a.md", "# Some\n\nwords")
    write(tmp_path, "a.pdf", make_pdf("Some words."))
    write(tmp_path, "a.docx", archive(**{"[Content_Types].xml": WORD, "_rels/.rels": "<Relationships/>"}))
    write(tmp_path, "a.epub", archive(**{"mimetype": "application/epub+zip", "META-INF/container.xml": "<c/>"}))
    return tmp_path


class Broken(MetaPathFinder):
    """Finds some packages and cannot import them, as one that is built for another system."""

    def __init__(self, *packages: str) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self.packages:
            raise ImportError("libthing.so.1: cannot open shared object file", name=name)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Make `without(*packages)`: as if these had not been imported yet, nor anything that may depend on them."""
    before = dict(sys.modules)

    def forget(*packages: str) -> None:
        for name in list(sys.modules):
            if name.partition(".")[0] in packages:
                del sys.modules[name]

    yield forget
    sys.modules.clear()
    sys.modules.update(before)


@pytest.mark.parametrize("problem", ["missing", "broken"])
def test_a_library_that_cannot_be_imported_is_one_sentence(
    every_kind: Path, monkeypatch: pytest.MonkeyPatch, without: Callable[..., None], problem: str
) -> None:
    libraries = ("charset_normalizer", "lxml", "pypdfium2", "markdown_it", "trafilatura")
    without(*libraries)
    if problem == "broken":
        monkeypatch.setattr(sys, "meta_path", [Broken(*libraries), *sys.meta_path])
    else:
        for library in libraries:
            sys.modules[library] = None  # pyright: ignore[reportArgumentType]
    kinds = ["a.html", "a.md", "a.pdf", "a.docx", "a.epub"]
    for name in [*kinds, "a.rst"] if problem == "broken" else kinds:
        with pytest.raises(InputError) as raised:
            read(every_kind / name)
        sentence = str(raised.value)
        assert name in sentence
        assert "pip install" in sentence
        assert "longspan[documents]" in sentence
        assert "\n" not in sentence
        assert problem == "missing" or "cannot be imported (libthing.so.1: cannot open shared object" in sentence
    documents, notes = open_documents([every_kind])
    assert [document.name for document in documents] == [str(every_kind / "a.txt")]
    assert len(notes) == 6
    assert all(note.startswith(f"passed over: {every_kind}") for note in notes)


def test_what_a_library_depends_on_is_named(tmp_path: Path, without: Callable[..., None]) -> None:
    without("trafilatura", "justext", "lxml_html_clean")
    sys.modules.pop("lxml.html.clean", None)
    sys.modules["lxml_html_clean"] = None  # pyright: ignore[reportArgumentType]
    path = write(tmp_path, "a.html", "<p>Some words.</p>")
    with pytest.raises(InputError, match=r"a\.html: .* needs trafilatura, .*lxml_html_clean.*longspan\[documents\]"):
        read(path)
    without("trafilatura", "justext")
    sys.modules["justext"] = None  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"a\.html: .* needs justext, which is missing; .*longspan\[documents\]"):
        read(path)


@pytest.mark.slow
def test_ten_megabytes_on_one_line(tmp_path: Path) -> None:
    """So many that only work in proportion to them comes to an end; how it grows is counted with fewer."""

    def check(count: int) -> None:
        path = write(tmp_path, "line.txt", "A sentence of seven words stands here. " * count)
        assert len(split_sentences(read(path).text)) == count

    assert lines_run(check, 20_000) < 11 * lines_run(check, 2_000)
    check(256_000)
