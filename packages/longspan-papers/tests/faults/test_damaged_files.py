"""Small files with any byte changed and any end missing: they are read, or refused in one sentence."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longspan.data.corpus.files import part_texts
from longspan.data.tables import read_records
from longspan.errors import InputError
from longspan_papers.coreference.conll import conll_text, read_conll
from longspan_papers.coreference.rows import CoreferenceRow
from longspan_papers.dialogue.formats import read_subtitles
from untidied import untidied

WORDS = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"
PARAGRAPH = "<w:p><w:r><w:t>{}</w:t></w:r></w:p>"
LINES = b"".join(json.dumps({"id": number, "text": "words"}).encode() + b"\n" for number in range(3))
XML = '<?xml version="1.0" encoding="{}"?><document><s><time value="00:00:01,000"/>Hello there</s></document>'


def zipped(parts: dict[str, str], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", how) as made:
        for name, body in parts.items():
            made.writestr(name, body)
    return data.getvalue()


def word(body: str, notes: str = "") -> bytes:
    """A Word file by hand, as small as can be: every byte of it is changed."""
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    related = f'<a><Relationship Type="{RELATIONS}{{}}" Target="{{}}"/></a>'.format
    return zipped(
        {
            "[Content_Types].xml": f'<Types><Override ContentType="{kind}"/></Types>',
            "_rels/.rels": related("officeDocument", "word/document.xml"),
            "word/_rels/document.xml.rels": related("footnotes", "footnotes.xml"),
            "word/document.xml": f'<w:document xmlns:w="{WORDS}"><w:body>{body}</w:body></w:document>',
            "word/footnotes.xml": f'<w:footnotes xmlns:w="{WORDS}">{notes}</w:footnotes>',
        }
    )


def book(page: str, spine: str = '<itemref idref="a"/>', how: int = zipfile.ZIP_DEFLATED) -> bytes:
    item = '<item id="a" href="a.xhtml" media-type="application/xhtml+xml"/>'
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<a><rootfile full-path="a.opf"/></a>',
            "a.opf": f"<package><manifest>{item}</manifest><spine>{spine}</spine></package>",
            "a.xhtml": page,
        },
        how,
    )


def texts(data: bytes) -> list[str]:
    return [block.text for block in untidied(data).blocks]


def damaged(data: bytes) -> Iterator[bytes]:
    for place in range(len(data)):
        yield data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]
        yield data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        yield data[:place]


TEXT = b"A sentence stands here. " * 4
FILES: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "a.docx": (word(PARAGRAPH.format("Words.")), lambda path: untidied(path.read_bytes())),
    "a.epub": (book("<p>Words.</p>"), lambda path: untidied(path.read_bytes())),
    "a.jsonl.gz": (gzip.compress(LINES, mtime=0), lambda path: list(read_records(path))),
    "a.jsonl.xz": (lzma.compress(LINES), lambda path: list(read_records(path))),
    "a.json": (b"[" + LINES.strip().replace(b"\n", b",") + b"]", lambda path: list(read_records(path))),
    "a.zip": (zipped({"a": TEXT.decode()}), lambda path: list(part_texts(path, "train", any_size=True))),
    "a.txt.gz": (gzip.compress(TEXT, mtime=0), lambda path: list(part_texts(path, "train", any_size=True))),
    "a.xml": (XML.format("utf-8").encode(), read_subtitles),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * name.endswith((".docx", ".epub"))) for name in FILES]
)
def test_a_damaged_file_is_one_sentence(name: str, tmp_path: Path) -> None:
    data, read = FILES[name]
    path, told = tmp_path / name, list[str]()
    path.write_bytes(data)
    read(path)
    for changed in damaged(data):
        path.write_bytes(changed)
        try:
            read(path)
        except InputError as error:
            told.append(str(error))
    assert len(told) > len(data)  # of three damages of each byte
    assert not [sentence for sentence in told if "\n" in sentence]


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_book_is_packed_as_books_are(how: int) -> None:
    """These two cannot be unpacked a piece at a time, whatever size they tell."""
    with pytest.raises(InputError, match="is packed as no document is"):
        texts(book("<p>Words.</p>", how=how))


@pytest.mark.parametrize("encoding", ["idna", "punycode", "undefined", "hex", "klingon", "unicode_escape"])
def test_an_encoding_that_no_file_has(encoding: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="declares the unknown encoding"):
        texts(book(f'<?xml version="1.0" encoding="{encoding}"?><p>Words.</p>'))
    if encoding != "unicode_escape":  # of which expat knows the letters
        (tmp_path / "a.xml").write_text(XML.format(encoding) + "\u00e9")
        with pytest.raises(InputError, match="is not XML"):
            read_subtitles(tmp_path / "a.xml")


def test_boxes_in_boxes_are_read_once() -> None:
    """Forty levels: each was read once for every level above it, 2⁴⁰ times."""
    inner = PARAGRAPH.format("The innermost.")
    for level in range(40):
        box = f"<w:r><w:txbxContent>{inner}</w:txbxContent></w:r>"
        inner = f"<w:p><w:r><w:t>Level {level}.</w:t></w:r>{box}</w:p>"
    assert texts(word(inner)) == [*(f"Level {level}." for level in reversed(range(40))), "The innermost."]


def test_what_is_named_often_is_read_once() -> None:
    mark = "<w:p><w:r><w:t>A mark.</w:t><w:footnoteReference w:id='1'/></w:r></w:p>"
    note = f"<w:footnote w:id='1'>{PARAGRAPH.format('A note.')}</w:footnote>"
    assert texts(word(mark * 3, note)) == ["A mark.", "A note.", "A mark.", "A mark."]
    assert texts(book("<p>A chapter.</p>", '<itemref idref="a"/>' * 20_000)) == ["A chapter."]


def test_tags_without_words_are_bounded() -> None:
    with pytest.raises(InputError, match="more than 4,000,000 tags and attributes, too much for one document"):
        texts(word("<w:p/>" * 4_000_001))


@pytest.mark.parametrize("name", ["a); part (", "a; part 3", "(a)", "a", "x ; y", ")", ""])
def test_names_of_documents_come_back(name: str, tmp_path: Path) -> None:
    row = CoreferenceRow(id=name, part=7, sentences=(("He", "went"),), speakers=None, clusters=(((0, 0),),))
    (tmp_path / "b.conll").write_text(conll_text([row]))
    (found,) = read_conll(tmp_path / "b.conll")
    assert (found.id, found.part, found.clusters) == (name or "b:1", 7, row.clusters)


def test_the_first_line_of_a_document_is_read_in_one_pass(tmp_path: Path) -> None:
    """A million spaces; a thousand took half a minute."""
    (tmp_path / "b.conll").write_text(f"#begin document {' ' * 1_000_000}x;\nHe\n")
    with pytest.raises(InputError, match="line 2: no line '#begin document'"):
        list(read_conll(tmp_path / "b.conll"))
