"""OpenDocument texts: headings, lists, tables and notes; nothing that is deleted or hidden."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from longspan.errors import InputError
from longspan_documents.text.reading import read, sentences_of

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


def written(body: str, manifest: str = "", styles: str = "") -> bytes:
    spaces = " ".join(f'xmlns:{name}="{ODF}{name}:1.0"' for name in ("office", "text", "table", "style"))
    content = f"<office:document-content {spaces}><office:body><office:text>{body}</office:text></office:body>"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        made.writestr("META-INF/manifest.xml", manifest)
        made.writestr("content.xml", f"{content}</office:document-content>")
        if styles:
            made.writestr("styles.xml", f"<office:document-styles {spaces}>{styles}</office:document-styles>")
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
        (b"Words.", "is not an OpenDocument text, despite its name"),
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


STYLES = """<office:master-styles><style:master-page style:name="Standard">
<style:header><text:p>Contract 12, page <text:page-number>3</text:page-number> of the edition</text:p></style:header>
<style:header-left style:display="false"><text:p>Not shown.</text:p></style:header-left>
<style:footer><text:p>Page <text:page-number>3</text:page-number></text:p><text:p>Mill Ltd</text:p></style:footer>
</style:master-page><style:master-page style:name="First"><style:footer><text:p>Mill Ltd</text:p></style:footer>
</style:master-page></office:master-styles>"""


def test_heads_and_feet_are_read_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "a.odt"
    path.write_bytes(written("<text:p>The gate is open.</text:p>", styles=STYLES))
    assert [block.text for block in read(path).blocks] == ["The gate is open."]
    assert [(block.kind, block.text) for block in read(path, page_headers=True).blocks] == [
        ("note", "Contract 12, page 3 of the edition"),
        ("paragraph", "The gate is open."),
        ("note", "Mill Ltd"),
    ]


def table(*rows: tuple[str, ...]) -> str:
    cells = ("".join(f"<table:table-cell>{cell}</table:table-cell>" for cell in row) for row in rows)
    return f"<table:table>{''.join(f'<table:table-row>{row}</table:table-row>' for row in cells)}</table:table>"


def test_tables_that_lay_out_a_page_and_tables_of_data(tmp_path: Path) -> None:
    path, long = tmp_path / "a.odt", "The keeper wrote down what he saw of the river in each of the nights of winter."
    p = "<text:p>{}</text:p>".format
    note = (
        '<text:note text:note-class="footnote"><text:note-citation>1</text:note-citation><text:note-body>'
        f"{p('Since May.')}</text:note-body></text:note>"
    )
    inner = table((p("Year"), p("Tons")), (p("1920"), p("4" + note)))
    body = table((p(long) + p("He sleeps."), p("Short."))) + table((p("Rye"), inner))
    body += table(('<text:h text:outline-level="2">Work</text:h>' + p("Keeper"), p("Left")), (p("a"), p("b")))
    path.write_bytes(written(body))
    assert [(block.kind, block.text) for block in read(path).blocks] == [
        ("paragraph", long),
        ("paragraph", "He sleeps."),
        ("paragraph", "Short."),
        ("paragraph", "Rye"),
        ("table", "| Year | Tons |\n| 1920 | 4 |"),
        ("note", "Since May."),
        ("heading", "Work"),
        ("paragraph", "Keeper"),
        ("paragraph", "Left"),
        ("paragraph", "a"),
        ("paragraph", "b"),
    ]


def test_transcripts_whose_turns_are_lines_of_a_paragraph(tmp_path: Path) -> None:
    path = tmp_path / "a.odt"
    turn = "<text:p>0:0:{0}.0 --&gt; 0:0:{0}.9<text:line-break/>{1}<text:line-break/>{2}</text:p>".format
    said = [("Ada", "Is it open?"), ("Bo", "Yes, since noon.")] * 3
    path.write_bytes(written("".join(turn(number, *one) for number, one in enumerate(said))))
    assert [(one.speaker, one.text) for one in sentences_of(read(path))] == said
