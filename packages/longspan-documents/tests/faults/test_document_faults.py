"""Documents that cannot be read, encodings that cannot be, questions that ask nothing, rows with half characters."""

from __future__ import annotations

import gzip
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TEXT = "A first sentence stands here. A second one follows it. A third ends it."
HALF = '{"text": "cut \\ud83d here"}\n'
SUMMARY_HALF = '{"document": "cut \\ud83d here", "summary": "a b c"}\n'
QUESTION = {"example_id": 7, "question_text": "why \ud83d?", "document_text": "a b"}


def pdf(body: str) -> bytes:
    return f"%PDF-1.4\n{body}\n%%EOF\n".encode("latin-1")


def summarize(name: str, data: str | bytes, says: str | list[str], *options: str, **more: Any) -> dict[str, Any]:
    return {"files": {name: data}, "run": ["summarize", name, *options], "says": says, **more}


CODECS = {
    "undefined": "undefined",
    "Undefined in capitals": "UNDEFINED",
    "punycode": "punycode",
    "idna": "idna",
    "base64": "base64",
    "hex": "hex",
    "rot13": "rot13",
    "zlib": "zlib",
    "bz2": "bz2",
    "unicode-escape": "unicode-escape",
    "raw_unicode_escape": "raw_unicode_escape",
    "empty": "",
    "blank": " ",
    "a path": "../../etc/passwd",
    "a zero byte": "utf\0-8",
    "an escape sequence": "\x1b[31m",
    "a line end": "utf-9\nerror: all is well",
    "half a character": "\ud83d",
    "thousands of letters": "a" * 20_000,
}
DECLARED = ("undefined", "punycode", "idna", "rot13", "base64", "unicode-escape", "klingon", "x" * 40)
DAMAGED = {
    "nothing but its first line": "",
    "a catalogue without pages": "1 0 obj\n<< /Type /Catalog >>\nendobj\ntrailer\n<< /Root 1 0 R >>",
    "pages that are their own child": "1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n2 0 obj\n<< /Type /Pages "
    "/Kids [2 0 R] /Count 1 >>\nendobj\ntrailer\n<< /Root 1 0 R >>",
    "a billion pages": "1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n2 0 obj\n<< /Type /Pages /Kids [] "
    "/Count 999999999 >>\nendobj\ntrailer\n<< /Root 1 0 R >>",
    "brackets a hundred thousand deep": "1 0 obj\n" + "[" * 100_000 + "\nendobj\ntrailer\n<< /Root 1 0 R >>",
    "a cross-reference far away": "startxref\n99999999999999999999",
}

CASES: dict[str, dict[str, Any]] = {
    **{
        f"encoding: {name}": summarize("a.txt", TEXT, "encoding", "--encoding", codec) for name, codec in CODECS.items()
    },
    "answer: encoding": {
        "files": {"a.txt": TEXT},
        "run": ["answer", "a.txt", "why?", "--encoding", "undefined"],
        "says": ["encoding='undefined'", "utf-8"],
    },
    **{
        f"charset: {name[:16]}": summarize("a.html", f"<html><meta charset={name}><p>{TEXT}</html>", [name, "a.html"])
        for name in DECLARED
    },
    **{f"pdf: {name}": summarize("a.pdf", pdf(body), "a.pdf") for name, body in DAMAGED.items()},
    "pdf: a text": summarize("a.pdf", TEXT, ["a.pdf", "PDF"]),
    "pdf: a picture": summarize("a.pdf", b"\x89PNG\r\n\x1a\n" + bytes(99), ["a.pdf is an image", "--ocr"]),
    "pdf: empty": summarize("a.pdf", b"", "a.pdf is empty"),
    "cp1252 looks like it": summarize("a.txt", ("“Grüße” aus dem Süden – für alle. " * 5).encode("cp1252"), "cp1252"),
    "koi8-r looks like it": summarize(
        "a.txt", ("Сурки живут в горах и спят всю зиму. " * 5).encode("koi8_r"), "koi8_r"
    ),
    "latin-1, too short to tell": summarize("a.txt", "Grüße".encode("latin-1"), "--encoding latin-1"),
    "utf-8 cut in a character": summarize("a.txt", "Grü".encode()[:-1], "a.txt is not utf-8"),
    "a half character in utf-8": summarize("a.txt", b"cut \xed\xa0\xbd here", "a.txt is not utf-8"),
    "utf-16 with a half character": summarize("a.txt", b"\xff\xfea\0\x3d\xd8b\0", "utf-16"),
    "utf-16 of odd length": summarize("a.txt", b"\xff\xfea\0b", "utf-16"),
    "utf-32 beyond Unicode": summarize("a.txt", b"\xff\xfe\0\0\0\0\x22\0", "utf-32"),
    "utf-7": summarize("a.txt", b"a\xff", "utf-7", "--encoding", "utf-7"),
    "an image": summarize("a.txt", b"\x89PNG\r\n\x1a\n" + bytes(50), ["a.txt is an image", "--ocr"]),
    "binary": summarize("a.txt", bytes(range(256)) * 20, "binary file"),
    "zero bytes": summarize("a.txt", b"a\0b\0", "zero bytes"),
    "Word": summarize("a.docx", b"PK\x03\x04" + bytes(60), "a.docx is damaged"),
    "gzip": summarize("a.txt.gz", gzip.compress(b"a"), "gzip"),
    "empty Markdown": summarize("a.md", "---\ntitle: a\n---\n", "no text"),
    "Markdown of comments": summarize("a.md", "<!-- a -->\n", "no text"),
    "HTML of scripts": summarize("a.html", "<html><script>a</script></html>", "no text"),
    "HTML cut in a tag": summarize("a.html", "<html><body class=", "no text"),
    "HTML of comments": summarize("a.html", "<!--" * 400_000, "no text"),
    "HTML of open tags": summarize("a.html", "<a " * 600_000, "no text"),
    "HTML without words": summarize("a.html", "<div>" * 100_000, "no text"),
    "white space": summarize("a.txt", " \n" * 500_000, "no text"),
    "a folder": {"files": {"b/a.txt": TEXT}, "run": ["summarize", "b"], "says": "b is a directory"},
    "a dead link": {"links": {"a.txt": "nowhere"}, "run": ["summarize", "a.txt"], "says": "a.txt does not exist"},
    "a link to itself": {"links": {"a.txt": "a.txt"}, "run": ["summarize", "a.txt"], "says": "a.txt"},
    "a link to a device": {"links": {"a.txt": "/dev/zero"}, "run": ["summarize", "a.txt"], "says": "a device"},
    **{
        f"{verb}: {device}": {"run": [verb, device, *rest], "says": [device, "a device"]}
        for device in ("/dev/zero", "/dev/random", "/dev/full", "/dev/null", "/dev/tty")
        for verb, rest in (("summarize", []), ("answer", ["why?"]))
        if Path(device).exists()
    },
    "a name of zero bytes": {"run": ["summarize", "a\0b"], "says": "null"},
    "a name of line ends": {"run": ["summarize", "a\nerror: b\r\nc.txt"], "says": "a error: b c.txt"},
    "a name of escapes": {"run": ["summarize", "\x1b]0;title\x07\x9b31m.txt"], "says": "title"},
    "a name that runs backwards": {"run": ["answer", "a\u202etxt.exe", "why?"], "says": "txt.exe"},
    "a name that is no UTF-8": {"run": ["summarize", "a\udcff.txt"], "says": "does not exist"},
    "a name too long": {"run": ["summarize", "a" * 5000], "says": "aaa"},
    "an empty name": {"run": ["summarize", ""], "says": "names no file"},
    "standard input: empty": {"run": ["summarize", "-"], "stdin": b"", "says": "standard input is empty"},
    "standard input: binary": {"run": ["summarize", "-"], "stdin": bytes(range(256)) * 9, "says": "standard input"},
    "standard input: damaged PDF": {"run": ["answer", "-", "why?"], "stdin": b"%PDF-1.4\n", "says": "standard input"},
    "standard input: encoding": {
        "run": ["summarize", "-", "--encoding", "ascii"],
        "stdin": "ü".encode(),
        "says": "standard input is not ascii",
    },
    "question: half a character": {
        "files": {"a.txt": TEXT},
        "run": ["answer", "a.txt", "why \ud83d?"],
        "says": ["the question", "half a character at 4"],
    },
    "question: not UTF-8": {
        "files": {"a.txt": TEXT},
        "run": ["answer", "a.txt", "why \udcff?"],
        "says": ["the question", "half a character"],
    },
    "question: blank": {"files": {"a.txt": TEXT}, "run": ["answer", "a.txt", " \t\n"], "says": "asks nothing"},
    "question: the second is blank": {
        "files": {"a.txt": TEXT},
        "run": ["answer", "a.txt", "-q", "why?", "-q", ""],
        "says": "asks nothing",
    },
    "an option with an escape": {"files": {"a.txt": TEXT}, "run": ["summarize", "a.txt", "--\x1b[2J"], "says": "[2J"},
    "a verb with an escape": {"run": ["\x1b[2Jsummarise"], "says": "summarise"},
    "language with an escape": summarize("a.txt", TEXT, "language", "--language", "\x1b[1m"),
    "model with an escape": summarize("a.txt", TEXT, "model", "--model", "./\x1b[1m\nmodel"),
    "picture with an escape": summarize("a.txt", TEXT, "picture", "--picture", "\x1b[1m.docx"),
    "tokenizer: half a character": {
        "files": {"a.jsonl": json.dumps({"text": TEXT}) + "\n" + HALF},
        "run": ["tokenizer", "a.jsonl", "--output", "made"],
        "says": ["a.jsonl, line 2", "half a character at 4"],
    },
    "tokenizer: half a character, escaped large": {
        "files": {"a.jsonl": '{"text": "\\uDE00"}\n'},
        "run": ["tokenizer", "a.jsonl", "--output", "made"],
        "says": ["a.jsonl, line 1", "half a character at 0"],
    },
    "train: half a character in the document": {
        "files": {"a.jsonl": SUMMARY_HALF},
        "recipe": {"data.train": "a.jsonl", "generation.max_tokens": 8},
        "run": ["train", "recipe.yaml"],
        "says": ["a.jsonl, line 1", "document", "half a character"],
    },
    "train: half a character in the summary": {
        "files": {"a.jsonl": '{"document": "a b c", "summary": "x \\udfff"}\n'},
        "recipe": {"data.train": "a.jsonl", "generation.max_tokens": 8},
        "run": ["train", "recipe.yaml"],
        "says": ["a.jsonl, line 1", "summary", "half a character"],
    },
    "train: half a character in the id": {
        "files": {"a.jsonl": '{"id": "\\ud800", "document": "a b c", "summary": "x y"}\n'},
        "recipe": {"data.train": "a.jsonl", "generation.max_tokens": 8},
        "run": ["train", "recipe.yaml"],
        "says": ["a.jsonl, line 1", "id", "half a character"],
    },
    "evaluate: half a character in the document": {
        "files": {"a.jsonl": SUMMARY_HALF},
        "checkpoint": "scorer",
        "run": ["evaluate", "model", "--data", "a.jsonl"],
        "says": ["a.jsonl, line 1", "half a character"],
    },
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fault(case: dict[str, Any], check_fault: Callable[..., str]) -> None:
    check_fault(**case)


def test_named_pipes_and_sockets(check_fault: Callable[..., str], tmp_path: Path, monkeypatch: Any) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    check_fault(["summarize", "pipe.txt"], ["pipe.txt is a named pipe", "-"])
    monkeypatch.chdir(tmp_path)  # a socket's whole path may be too long
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.txt")
        check_fault(["answer", "socket.txt", "why?"], "socket.txt is a socket")


def test_a_file_too_large_to_be_a_document(check_fault: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longspan_documents.text.kinds.source.LARGEST", 1 << 20)
    for run, more in ((["summarize", "a.txt"], {}), (["summarize", "-"], {"stdin": b"a " * (1 << 19) + b"b"})):
        check_fault(run, "longer than 1 MiB", files={"a.txt": "a " * (1 << 19) + "b"}, **more)
