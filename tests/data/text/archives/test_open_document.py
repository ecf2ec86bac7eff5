"""OpenDocument texts: headings, lists, tables and notes; nothing that is deleted or hidden."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from longspan.data.text.reading import read
from longspan.errors import InputError

ODF = "urn:oasis:names:tc:opendocument:xmlns:"
BODY = """
<text:tracked-changes><text:changed-region><text:p>Deleted.</text:p></text:changed-region></text:tracked-changes>
<text:h text:outline-level="1">The gate</text:h>
<text:p>It is <text:span>opened</text:span><text:s/>at<text:tab/>noon<text:note text:note-class="footnote">
<text:note-citation>1</text:note-citation><text:note-body><text:p>By the keeper.</text:p></text:note-body>
</text:note>.</text:p>
<text:list><text:list-item><text:p>a lamp</text:p><text:list><text:list-item><text:p>with oil</text:p></text:list-item>
</text:list></text:list-item></text:list>
<table:table table:name="T"><table:table-row><table:table-cell><text:p>Rye</text:p></table:table-cell>
<table:table-cell><text:p>4</text:p></table:table-cell></table:table-row></table:table>
<text:p><text:hidden-text>Hidden.</text:hidden-text></text:p>
<text:p>It is closed.<office:annotation><text:p>A comment.</text:p></office:annotation></text:p>
<text:table-of-content><text:p>Contents</text:p></text:table-of-content>"""


def written(body: str, manifest: str = "") -> bytes:
    spaces = " ".join(f'xmlns:{name}="{ODF}{name}:1.0"' for name in ("office", "text", "table", "style"))
    content = f"<office:document-content {spaces}><office:body><office:text>{body}</office:text></office:body>"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        made.writestr("META-INF/manifest.xml", manifest)
        made.writestr("content.xml", f"{content}</office:document-content>")
    return data.getvalue()


def test_a_text(tmp_path: Path) -> None:
    path = tmp_path / "a.odt"
    path.write_bytes(written(BODY))
    assert [(block.kind, block.level, block.text) for block in read(path).blocks] == [
        ("heading", 1, "The gate"),
        ("paragraph", 0, "It is opened at noon."),
        ("note", 0, "By the keeper."),
        ("item", 1, "a lamp"),
        ("item", 2, "with oil"),
        ("table", 0, "| Rye | 4 |"),
        ("paragraph", 0, "It is closed."),
    ]


def test_damaged_locked_and_empty_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.odt"
    cases = [
        (written("<text:p>Words.")[:200], "is damaged"),
        (written("<text:p>Words."), "is damaged"),
        (written("<text:p>Words.</text:p>", "<manifest:encryption-data/>"), "locked with a password"),
        (written(""), "holds no text"),
        (b"Words.", "is not an OpenDocument text, whatever its name says"),
    ]
    for data, message in cases:
        path.write_bytes(data)
        with pytest.raises(InputError, match=message):
            read(path)


def test_a_trap_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.odt"
    path.write_bytes(written("<text:p>" + " " * (80 << 20) + "</text:p>"))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(InputError, match="more than 64 MiB"):
        read(path)
