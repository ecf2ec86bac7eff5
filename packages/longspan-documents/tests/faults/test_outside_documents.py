"""Documents, options and places as somebody outside would get them wrong, with cases of none of the other tables."""

from __future__ import annotations

import bz2
import io
import json
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counted import lines_run
from longspan.cli import main
from longspan_documents.text.reading import read

TEXT = "Marmots live in the mountains. They sleep all winter in burrows. A whistle warns the others of danger.\n"


def page(body: str, head: str = "") -> str:
    return f"<html><head>{head}</head><body><p>{TEXT}</p>{body}</body></html>"


def archive() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("word/document.xml", TEXT)
    return stream.getvalue()


def one(name: str, data: str | bytes | Callable[[], bytes], says: str | list[str], *options: str) -> dict[str, Any]:
    return {"files": {name: data}, "run": ["summarize", name, *options], "says": says}


def ask(*options: str, says: str | list[str]) -> dict[str, Any]:
    return {"files": {"a.txt": TEXT}, "run": ["answer", "a.txt", "where?", *options], "says": says}


def draw(pattern: str, says: str | list[str], *options: str) -> dict[str, Any]:
    return {"run": ["draw", *options, "--", pattern], "says": says}


NO_NUMBERS = {
    "empty": "",
    "a word": "many",
    "a fraction": "2.5",
    "Arabic digits": "\u0663",
    "a superscript": "\u00b2",
    "a comma": "1,000",
    "a power": "1e3",
    "hexadecimal": "0x10",
    "an escape": "\x1b[31m3",
    "a zero byte": "3\0",
}
ENDLESS = "x" * 100_000
DAMAGED_STARTS = random.Random(3).randbytes(3000)

CASES: dict[str, dict[str, Any]] = {
    **{
        f"sentences: {name}": one("a.txt", TEXT, [f"--sentences={value!r}"[:14], "a whole number"], "-n", value)
        for name, value in NO_NUMBERS.items()
    },
    **{
        f"threshold: {name}": ask("--threshold", value, says=["--threshold=", "is not a number"])
        for name, value in NO_NUMBERS.items()
        if name not in {"a fraction", "a power"}
    },
    **{
        f"threshold: {value}": ask("--threshold", value, says=f"--threshold={value!r} {wrong}")
        for value, wrong in {
            **dict.fromkeys(("nan", "inf", "-inf", "1e400"), "is not a finite number; give one"),
            "2": "must be at most 1.0",
            "-1": "must be at least 0.0",
        }.items()
    },
    "tokens: half a character": draw("full", "is not a text", "--tokens", "\ud83d"),
    "tokens: endless": draw("full", "is not a whole number", "--tokens", ENDLESS),
    "sentences: endless": one("a.txt", TEXT, "is not a whole number", "-n", ENDLESS),
    "model: endless": one("a.txt", TEXT, "xxx", "--model", ENDLESS),
    "picture: endless": one("a.txt", TEXT, "no known format", "--picture", ENDLESS),
    "file: endless": {"run": ["summarize", ENDLESS], "says": "check the path"},
    "verb: endless": {"run": [ENDLESS], "says": "longspan --help"},
    "recipe: endless": {"run": ["recipes", ENDLESS], "says": "xxx"},
    "model: empty": one("a.txt", TEXT, "model '' names nothing", "--model", ""),
    "model: blank": ask("--model", " \t", says="names nothing"),
    "model: the home of nobody": one("a.txt", TEXT, "~nobody-of-here/model", "--model", "~nobody-of-here/model"),
    "reader: the home of nobody": ask("--model", "~nobody-of-here", says="~nobody-of-here"),
    "lengthen: empty": {"run": ["lengthen", "", "--output", "made"], "says": "names nothing"},
    "lengthen: the home of nobody": {
        "run": ["lengthen", "~nobody-of-here/bart", "--output", "made"],
        "says": "~nobody-of-here/bart",
    },
    "lengthen: output in the home of nobody": {
        "run": ["lengthen", "./bart", "--output", "~nobody-of-here/made"],
        "says": "~nobody-of-here/made",
    },
    **{
        f"picture: {name}": one("a.txt", TEXT, [name, "no known format"], "--picture", name)
        for name in ("p.pgf", "p.PGF", "p.png.txt", "p.", "png")
    },
    "picture: below a file": one("a.txt", TEXT, "is no folder", "--picture", "a.txt/p.png"),
    "picture: a folder": one("p.png/a.txt", TEXT, "p.png", "--picture", "p.png") | {"run": ["draw", "full", "--out"]},
    "draw: LaTeX": draw("full", "no known format", "--out", "p.pgf"),
    "draw: numbers for causal": draw("causal(3)", "causal in pattern 'causal(3)' takes no numbers"),
    "draw: a name that is none": draw("window(wide=3)", "takes (left, right, dilation)"),
    "draw: Python": draw("window(__import__('os').getpid())", "where a whole number is needed"),
    "draw: or": draw("full or causal", "no pattern"),
    "draw: wide brackets": draw("window\uff084\uff09", "cannot be read"),
    "draw: nothing in brackets": draw("()", "no pattern"),
    "draw: two thousand brackets": draw("(" * 2000 + "full" + ")" * 2000, "cannot be read"),
    "draw: heads of heads": draw("per_head(per_head(full, causal), full)", "must not be per-head themselves"),
    "a zip archive called .txt": one("a.txt", archive, "zip archive"),
    "a zip archive called .html": one("a.html", archive, "zip archive"),
    "a zip archive called .pdf": one("a.pdf", archive, "zip archive"),
    "bzip2": one("a.txt", bz2.compress(TEXT.encode() * 9), "a.txt"),
    "a pickle": one("a.txt", pickle.dumps({"a": TEXT}), "a.txt"),
    "noise": one("a.md", DAMAGED_STARTS, "a.md"),
    "rich text without words": one("a.txt", "{\\rtf1 }", "holds no text"),
    "only a byte order mark": one("a.txt", b"\xef\xbb\xbf", "holds no text"),
    "only a byte order mark of UTF-16": one("a.txt", b"\xff\xfe", "holds no text"),
    **{f"empty {kind}": one(f"a.{kind}", b"", "is empty") for kind in ("htm", "xhtml", "markdown", "docx", "epub", "")},
    "UTF-16 without a mark": one("a.txt", TEXT.encode("utf-16-be"), ["zero bytes", "--encoding"]),
    "HTML in UTF-16 without a mark": one("a.html", page("").encode("utf-16-le"), ["zero bytes", "--encoding"]),
    "GBK": one("a.txt", ("土拨鼠住在山里。它们整个冬天都在睡觉。" * 5).encode("gbk"), ["not utf-8", "--encoding gb"]),
    "EBCDIC": one("a.txt", TEXT.encode("cp500"), "a.txt"),
    "frames": one("a.html", "<frameset>" * 3000 + "<frame src=a>" * 3000, "no text"),
    "ten thousand open frames": one("a.html", "<iframe>" * 10_000 + TEXT, "no text"),
    "a page in a comment": one("a.html", f"<html><!-- {TEXT} --></html>", "no text"),
    "a charset that pages invent": one("a.html", page("", "<meta charset=x-user-defined>"), "x-user-defined"),
    "Markdown of empty marks": one("a.md", "# \n\n- \n\n> \n\n***\n", "no text"),
    "PDF: noise behind its first line": one("a.pdf", b"%PDF-1.7\n" + DAMAGED_STARTS, "cannot be read as PDF"),
    "PDF: without an extension": one("a", b"%PDF-1.7\n%%EOF\n", "cannot be read as PDF"),
}
CASES["picture: a folder"]["run"] = ["draw", "full", "--out", "p.png"]
CASES["picture: a folder"]["says"] = ["'p.png'", "it is a folder"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fault(case: dict[str, Any], check_fault: Callable[..., str]) -> None:
    assert len(check_fault(**case)) < 1300, "nobody reads an endless line"


READ = {
    "a charset in a comment": (page("", "<!-- <meta charset=klingon> -->"), TEXT.strip()),
    "UTF-32 that is none": (page("", "<meta charset=utf-32>"), TEXT.strip()),
    "Unicode": (page("", "<meta charset=unicode>"), TEXT.strip()),
    "quotes of Windows in Latin-1": (
        page("<p>\u201cMarmots\u201d \u2013 \u20ac 5.</p>", "<meta charset=iso-8859-1>").encode("cp1252"),
        "\u201cMarmots\u201d \u2013 \u20ac 5.",
    ),
    "quotes of Windows in ASCII": (
        page("<p>Saas\u2019s \u00fc.</p>", "<meta charset=us-ascii>").encode("cp1252"),
        "Saas\u2019s \u00fc.",
    ),
    "Latin-1 that is no Windows": (
        page("<p>gr\u00fcn\x81</p>", "<meta charset=latin1>").encode("latin-1"),
        "gr\u00fcn",
    ),
    "Windows' name for Japanese": (
        page("<p>\u5c71\u306b\u4f4f\u3080\u3002</p>", "<meta charset=windows-31j>").encode("cp932"),
        "\u5c71\u306b\u4f4f\u3080\u3002",
    ),
    "an old name for Chinese": (
        page("<p>\u571f\u62e8\u9f20\u3002</p>", "<meta charset=x-gbk>").encode("gbk"),
        "\u571f\u62e8\u9f20\u3002",
    ),
    "Hebrew in reading order": (
        page("<p>\u05e9\u05dc\u05d5\u05dd.</p>", "<meta charset=iso-8859-8-i>").encode("iso-8859-8"),
        "\u05e9\u05dc\u05d5\u05dd.",
    ),
    "a picture in the page": (
        page("<img src='data:image/png;base64," + "A" * 500_000 + "' alt='A burrow.'>"),
        "A burrow.",
    ),
    "an entity bomb": ('<!DOCTYPE html [<!ENTITY a "' + "a" * 99 + '">]>' + page("&a;" * 999), TEXT.strip()),
    "a file of the system": (
        '<!DOCTYPE html [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + page("<p>&a;</p>"),
        TEXT.strip(),
    ),
}


@pytest.mark.parametrize("case", READ)
def test_read_as_a_browser_would(case: str, tmp_path: Path) -> None:
    data, says = READ[case]
    (tmp_path / "a.html").write_bytes(data if isinstance(data, bytes) else data.encode())
    text = read(tmp_path / "a.html").text
    assert says in text
    assert "root:" not in text


@pytest.mark.parametrize("kind", ["html", "md"])
def test_many_attributes_are_read_in_linear_time(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    lines = []
    for count in (20_000, 200_000):
        attributes = " ".join(f"a{number:06}=1" for number in range(count))
        path.write_text(f"<p {attributes}>{TEXT}</p>\n<p title='kept'>A second one.</p>")
        lines.append(lines_run(read, path))
        assert read(path).words.split() == [*TEXT.split(), "A", "second", "one."]
    assert lines[1] < 11 * lines[0]


def test_a_shell_that_asks_for_completions_wrongly(monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_LONGSPAN_COMPLETE", "complete_bash")
    for words in ({}, {"COMP_WORDS": "longspan su", "COMP_CWORD": "one"}):
        for name, value in words.items():
            monkeypatch.setenv(name, value)
        assert main([]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("error: _LONGSPAN_COMPLETE is set")


def test_odd_characters_are_whole_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = 'Marmots "live" \\ here\u2028and \u0085there \U0001f43f\ufe0f. They sleep </script> & wake.\n'
    (tmp_path / "a.txt").write_text(odd, encoding="utf-8")
    assert main(["summarize", str(tmp_path / "a.txt"), "-n", "9", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    for sentence in record["sentences"]:
        assert odd[sentence["start"] : sentence["end"]].split() == sentence["text"].split()
