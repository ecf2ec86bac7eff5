"""Does an installed Longspan work? Every verb on a file of every kind, a model that trains one step and writes.

    python tools/smoke.py            with the Python that longspan was installed for, as longspan[all]
    python tools/smoke.py models     where longspan is installed alone, without an extra
    python tools/smoke.py documents  where longspan-documents is beside it, without an extra

About a minute. It needs nothing but the packages: no checkout, no tests, no network. Files and tiny random models are
made in a temporary folder. The first thing that does not work ends it with an exit code of 1.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from base64 import b64decode
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
SENTENCES = [
    "The keeper of the gate lives in a small house beside the river.",
    "He opens the gate in the morning and closes it at night.",
    "Nobody knows why the gate was built where no road leads.",
    "In winter the river freezes, and children walk across the ice.",
    "The keeper counts them and writes their number into a book.",
    "Last year the book was lost in a flood that took the bridge too.",
    "Since then he counts aloud, so that the neighbours remember with him.",
    "A new bridge will be opened in spring by the oldest of the children.",
]
QUESTION = "Who opens the gate in the morning?"
TURNS = "Anna: Where is the book?\nBen: It was lost in the flood.\nAnna: Then count aloud.\nBen: I do so every day.\n"
XHTML = '<html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head><body>{}</body></html>'
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
RELATIONSHIPS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
TABLES = {"csv", "xlsx", "ods"}
"""Kinds of files here without sentences, which have passages alone."""
IMAGES = {"png"}
"""Kinds of files here that only `--ocr` reads, whose extra is not installed: they are refused."""
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="  # one dot
SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
WINDOW = {"mechanism": "longformer", "left_tokens": 8, "right_tokens": 8}
RECIPE = """
name: one-step
task: {name: language_model, max_tokens: 32}
data: {train: [TEXTS], validation: [TEXTS]}
model:
  new:
    hidden_size: 16
    num_hidden_layers: 2
    num_attention_heads: 2
    intermediate_size: 24
    position_embedding: sinusoidal
  attention: {mechanism: longformer, left_tokens: 8}
tokenizer: {train: 280}
optimisation: {steps: 1, batch_size: 2, micro_batch_size: 2, learning_rate: 1.0e-3}
"""


def main() -> None:
    start = time.perf_counter()
    import longspan

    if Path(longspan.__file__).is_relative_to(CHECKOUT / "packages"):
        sys.exit(f"longspan is imported from the checkout {CHECKOUT}: install the wheel, and call this from elsewhere")
    alone = {"models": models_alone, "documents": documents_alone}
    if sys.argv[1:]:
        with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
            alone[sys.argv[1]](Path())
        print(f"smoke: {sys.argv[1]} alone work ({time.perf_counter() - start:.0f} s)")
        return
    names = ("torch", "transformers", "accelerate", "trafilatura", "pypdfium2", "pyarrow", "fastapi", "onnxruntime")
    print("longspan", longspan.__version__, "with", ", ".join(f"{name} {version(name)}" for name in names), flush=True)
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        smoke(Path())
    print(f"smoke: everything works ({time.perf_counter() - start:.0f} s)")


def models_alone(folder: Path) -> None:
    """The package of models where no other is: a model runs, is saved and lengthened; the rest says what to install."""
    import torch

    import longspan

    check(set(longspan.__all__) <= set(dir(longspan)), "longspan lacks a name of its own")
    for name in longspan.__all__:
        getattr(longspan, name)
    model = longspan.LongspanForCausalLM(longspan.LongspanConfig(vocab_size=50, attention=WINDOW, **SIZES)).eval()
    ids = torch.arange(5, 45)[None]
    model.save_pretrained(folder / "model")
    again = longspan.LongspanForCausalLM.from_pretrained(folder / "model").eval()
    check(torch.equal(model(ids).logits, again(ids).logits), "a saved model is another one")
    check(model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False).shape == (1, 44), "generate")
    check("poolingformer" in command("mechanisms"), "mechanisms")
    check(json.loads(command("plan", folder / "model", "--tokens", 512, "--no-time", "--json")), "plan")
    _is_elsewhere("summarize", "documents")
    _is_elsewhere("choose", "papers")


def documents_alone(folder: Path) -> None:
    """The package of documents beside it: files are read and summarised; systems of papers say what to install."""
    files = write_files(folder / "files")
    for kind in ("txt", "md", "html", "pdf", "docx"):
        summary = command("summarize", files[kind], "-n", 2)
        check(sum(sentence in " ".join(summary.split()) for sentence in SENTENCES) == 2, f"{kind}: {summary!r}")
    answer = json.loads(command("answer", files["md"], QUESTION, "--json"))
    check("opens the gate in the morning" in json.dumps(answer), f"answer: {answer!r}")
    _is_elsewhere("choose", "papers")


def _is_elsewhere(name: str, extra: str) -> None:
    """A function and a command of a package that is not installed name the extra that brings it."""
    import longspan

    try:
        getattr(longspan, name)
    except longspan.InputError as error:
        check(f"pip install 'longspan[{extra}]'" in str(error), str(error))
    else:
        raise AssertionError(f"longspan.{name} is here, though longspan-{extra} is not installed")
    said = command(name, "file.txt", code=2)
    check(f"pip install 'longspan[{extra}]'" in said, said)


def smoke(folder: Path) -> None:
    """Every verb; raises at the first that does not work."""
    from longspan.cli import COMMANDS

    used: set[str] = set()

    def run(*words: object, code: int = 0) -> str:
        """What a command writes; it must succeed, or end with this exit code."""
        used.add(str(words[0]))
        return command(*words, code=code)

    files = write_files(folder / "files")
    models = write_models(folder / "models")
    read_documents(run, folder, files)
    use_models(run, folder, files, models)
    train_and_write(run, folder, files)
    compare_and_draw(run, folder)
    used.add("serve")
    ask_the_server(files["txt"])
    if missing := set(COMMANDS) - used:
        raise AssertionError(f"nothing here tries {', '.join(sorted(missing))}")


def command(*words: object, code: int = 0) -> str:
    from longspan.cli import main as longspan

    begin = time.perf_counter()
    out, err = io.StringIO(), io.StringIO()
    line = " ".join(["longspan", *map(str, words)])
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            ended = longspan([str(word) for word in words])
    except BaseException:
        print(f"{line}\n{out.getvalue()}{err.getvalue()}", flush=True)
        raise
    check(ended == code, f"{line}: exit code {ended}\n{out.getvalue()}{err.getvalue()}")
    print(f"{time.perf_counter() - begin:5.1f} s  {line}", flush=True)
    return out.getvalue() + (err.getvalue() if code else "")


def check(holds: object, problem: str) -> None:
    """As `assert`, under `python -O` too."""
    if not holds:
        raise AssertionError(problem)


def read_documents(run: Callable[..., str], folder: Path, files: dict[str, Path]) -> None:
    """What needs no model: each kind of file alone, then the folder of all."""
    check_every_kind(files)
    prose = {kind: path for kind, path in files.items() if kind not in TABLES | IMAGES}
    for kind, path in files.items():
        if kind in IMAGES:
            check("--ocr" in run("chunks", path, code=2), f"{kind}: the refusal names no --ocr")
            continue
        if kind in prose:
            summary = run("summarize", path, "-n", 2)
            check(sum(sentence in " ".join(summary.split()) for sentence in SENTENCES) == 2, f"{kind}: {summary!r}")
        passages = json.loads(run("chunks", path, "--json"))
        check("keeper" in json.dumps(passages), f"{kind}: {passages!r}")
    place = folder / "files"
    answer = json.loads(run("answer", place, QUESTION, "--json"))
    check("opens the gate in the morning" in json.dumps(answer), f"answer: {answer!r}")
    run("index", place, "--output", folder / "index", "--workers", 0)
    answer = json.loads(run("answer", "--index", folder / "index", QUESTION, "--json"))
    check("opens the gate in the morning" in json.dumps(answer), f"answer --index: {answer!r}")
    vectors = json.loads(run("embed", *prose.values(), "--json"))
    check(len(vectors) == len(prose), f"embed: {vectors!r}")
    run("map", "summarize", *prose.values(), "--output", folder / "mapped", "-n", 2, "--workers", 1)
    rows = [row for part in sorted((folder / "mapped").glob("[!_.]*.parquet")) for row in table(part)]
    wrong = [row for row in rows if row["error"] is not None]
    check(len(rows) == len(prose) and not wrong, f"map: {len(rows)} rows, {wrong!r}")
    shaded = run("importance", files["txt"], "--reference", files["md"])
    check("keeper" in shaded, f"importance: {shaded!r}")
    dialogue = folder / "dialogue.txt"
    dialogue.write_text(TURNS * 4, encoding="utf-8")
    check("flood" in run("noise", dialogue, "--seed", 1), "noise")


def check_every_kind(files: dict[str, Path]) -> None:
    """The files are of all kinds that are read, each known as one of them; a kind without a file fails."""
    from longspan_documents.text.kinds.source import Source
    from longspan_documents.text.kinds.table import READERS, kind_of

    kinds = {kind: kind_of(Source.of_path(path)) for kind, path in files.items()}
    missing = set(READERS) - {one.name for one in kinds.values() if one is not None}
    check(not missing, f"no file here is of the kind {', '.join(sorted(missing))}")
    tables = {kind for kind, one in kinds.items() if one is not None and not one.is_prose and kind not in IMAGES}
    check(tables == TABLES, f"{tables} hold no prose")


def table(path: Path) -> list[dict[str, Any]]:
    from pyarrow import parquet

    return parquet.read_table(path).to_pylist()


def use_models(run: Callable[..., str], folder: Path, files: dict[str, Path], models: dict[str, Path]) -> None:
    """Verbs that need a model, with tiny random ones; their answers mean nothing, but they are there."""
    import longspan

    text = files["txt"]
    labels = json.loads(run("classify", text, "--model", models["classifier"], "--json"))
    check("probabilities" in json.dumps(labels), f"classify: {labels!r}")
    choice = run("choose", text, QUESTION, "--model", models["chooser"], "-c", "the keeper", "-c", "a child")
    check("keeper" in choice or "child" in choice, f"choose: {choice!r}")
    check("keeper" in run("coref", text, "--model", models["coreference"]), "coref")
    long = folder / "long"
    said = run("lengthen", models["bert"], "--output", long, "--attention", "longformer", "--max-tokens", 512)
    check((long / "model.safetensors").is_file(), f"lengthen: {said!r}")
    check(json.loads(run("embed", text, "--model", long, "--json")), "embed --model")
    check(json.loads(run("plan", long, "--tokens", 512, "--no-time", "--json")), "plan")
    written = json.loads(run("summarize", text, "--model", models["bart"], "--beams", 2, "--max-tokens", 12, "--json"))
    check(written, "summarize --model")
    classifier = longspan.LongspanForSequenceClassification.from_pretrained(models["classifier"])
    longspan.to_onnx(classifier, folder / "classifier.onnx")  # which reads the file back, and compares
    check((folder / "classifier.onnx").is_file(), "to_onnx wrote no file")


def train_and_write(run: Callable[..., str], folder: Path, files: dict[str, Path]) -> None:
    """A language model from its tokenizer to its words."""
    recipe, model = folder / "recipe.yaml", folder / "trained"
    recipe.write_text(RECIPE.replace("TEXTS", str(files["txt"])), encoding="utf-8")
    run("tokenizer", files["txt"], "--output", folder / "tokenizer", "--size", 280)
    run("train", recipe, "--output", model)
    check((model / "model.safetensors").is_file(), "train wrote no model")
    for options in (("--temperature", 0), ("--beams", 2), ("--seed", 3)):
        wrote = json.loads(run("generate", model, "The keeper", "--max-tokens", 8, "--json", *options))
        check(wrote, f"generate {options}: {wrote!r}")
    scores = json.loads(run("evaluate", model, "--data", files["txt"], "--json"))
    check("loss" in json.dumps(scores) or "bits" in json.dumps(scores), f"evaluate: {scores!r}")


def compare_and_draw(run: Callable[..., str], folder: Path) -> None:
    check("one-step" not in run("recipes") and run("recipes"), "recipes")
    check("pubmed" in run("data"), "data")
    check("poolingformer" in run("mechanisms"), "mechanisms")
    run("draw", "window(3)", "--tokens", 20, "--out", folder / "window.png")
    check((folder / "window.png").is_file(), "draw wrote no picture")
    sizes = ("--tokens", 64, "--width", 16, "--heads", 2, "--layers", 1, "--held-out", 8, "--batch-size", 4)
    results = run("compare", "--mechanisms", "longformer", "--steps", 2, "--seeds", 1, *sizes, "--json")
    check("longformer" in results, f"compare: {results!r}")


def ask_the_server(text: Path) -> None:
    """The page and a summary of `longspan serve`, in a process of its own."""
    code = "import sys; from longspan.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "serve", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            said = ""
            for line in server.stdout:
                said += line
                if "http://" in line:
                    break
            address = next((word for word in said.split() if word.startswith("http://")), None)
            check(address, f"serve: {said}")
            assert address is not None
            with urllib.request.urlopen(address, timeout=60) as page:
                check(b"<html" in page.read().lower(), "serve: no page")
        finally:
            server.terminate()
            server.wait(60)
    print("       longspan serve")


def write_files(folder: Path) -> dict[str, Path]:
    """A document of every kind that is read, with the sentences above."""
    folder.mkdir()
    half = [" ".join(SENTENCES[:4]), " ".join(SENTENCES[4:])]
    page = "<h1>The gate</h1>" + "".join(f"<p>{part}</p>" for part in half)
    html = f"<!doctype html><html><head><title>The gate</title></head><body><article>{page}</article></body></html>"
    cues = [f"00:00:{second:02}.000 --> 00:00:{second + 1:02}.000\n{one}" for second, one in enumerate(SENTENCES)]
    numbered = [f"{number}\n{cue.replace('.000', ',000')}" for number, cue in enumerate(cues, 1)]
    cells = [{"cell_type": "markdown", "metadata": {}, "source": part} for part in half]
    mail = "From: a@example.org\nTo: b@example.org\nMessage-ID: <1@example.org>\nSubject: The gate\n\n"
    mail += "\n\n".join(half) + "\n"
    turns = list(enumerate(SENTENCES))
    texts = {
        "txt": "\n\n".join(half),
        "rst": "The gate\n========\n\n" + "\n\n".join(half),
        "md": "# The gate\n\n" + "\n\n".join(half),
        "html": html,
        "xhtml": XHTML.format(page),
        "vtt": "WEBVTT\n\n" + "\n\n".join(cues),
        "srt": "\n\n".join(numbered),
        "rtf": r"{\rtf1\ansi " + r"\par ".join(half) + "}",
        "tex": r"\documentclass{article}\begin{document}" + "\n\n".join(half) + "\n\\end{document}\n",
        "eml": mail,
        "mbox": f"From a@example.org Mon Jan  1 10:00:00 2024\n{mail}\n" * 2,
        "mhtml": "Snapshot-Content-Location: https://example.org/\nMIME-Version: 1.0\n"
        f'Content-Type: multipart/related; boundary="b"\n\n--b\nContent-Type: text/html\n\n{html}\n--b--\n',
        "json": json.dumps({"messages": [{"from": "Ann" if i % 2 else "Ben", "text": one} for i, one in turns]}),
        "man": ".TH GATE 1\n.SH DESCRIPTION\n" + "\n.PP\n".join(half) + "\n",
        "csv": "name,words\n" + "\n".join(f'{i},"{one}"' for i, one in turns) + "\n",
        "ipynb": json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}),
    }
    files = {kind: folder / f"gate.{kind}" for kind in (*texts, "pdf", *ZIPPED, "epub", *IMAGES)}
    for kind, text in texts.items():
        files[kind].write_text(text, encoding="utf-8")
    files["pdf"].write_bytes(pdf(SENTENCES))
    files["png"].write_bytes(b64decode(PNG))
    for kind, parts in ZIPPED.items():
        zipped(files[kind], parts(half))
    zipped(files["epub"], book_parts(page))
    return files


def zipped(path: Path, parts: dict[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, text in parts.items():
            file.writestr(name, text)


def office_parts(main: str, kind: str, part: str, needs: dict[str, str]) -> dict[str, str]:
    """The parts of a file of Microsoft Office: the main one, and by their kinds others that it needs."""
    content = f"application/vnd.openxmlformats-officedocument.{kind}.main+xml"
    types = '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    types += f'<Override PartName="/{main}" ContentType="{content}"/>'
    folder, _, name = main.partition("/")
    related = "".join(
        f'<Relationship Id="r1" Type="{RELATIONSHIPS}/{one.rstrip("s")}" Target="{one}/one.xml"/>' for one in needs
    )
    whole = f'<Relationship Id="r1" Type="{OFFICE}" Target="{main}"/>'
    return {
        "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">{types}</Types>',
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships">{whole}</Relationships>',
        f"{folder}/_rels/{name}.rels": f'<Relationships xmlns="{PACKAGE}/relationships">{related}</Relationships>',
        main: part,
        **{f"{folder}/{one}/one.xml": text for one, text in needs.items()},
    }


def word_parts(paragraphs: list[str]) -> dict[str, str]:
    body = "".join(f"<w:p><w:r><w:t>{one}</w:t></w:r></w:p>" for one in paragraphs)
    part = f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'
    return office_parts("word/document.xml", "wordprocessingml.document", part, {})


def slides_parts(paragraphs: list[str]) -> dict[str, str]:
    names = [f'xmlns:{mark}="http://schemas.openxmlformats.org/{name}/2006/main"' for mark, name in SLIDE_NAMES]
    spaces = " ".join([*names, f'xmlns:r="{RELATIONSHIPS}"'])
    words = "".join(f"<a:p><a:r><a:t>{one}</a:t></a:r></a:p>" for one in paragraphs)
    slide = f"<p:sld {spaces}><p:cSld><p:spTree><p:sp><p:txBody>{words}</p:txBody></p:sp></p:spTree></p:cSld></p:sld>"
    part = f'<p:presentation {spaces}><p:sldIdLst><p:sldId id="256" r:id="r1"/></p:sldIdLst></p:presentation>'
    return office_parts("ppt/presentation.xml", "presentationml.presentation", part, {"slides": slide})


def workbook_parts(paragraphs: list[str]) -> dict[str, str]:
    space = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    cells = [f'<c r="A{row}" t="inlineStr"><is><t>{one}</t></is></c>' for row, one in enumerate(paragraphs, 1)]
    rows = "".join(f'<row r="{row}">{cell}</row>' for row, cell in enumerate(cells, 1))
    sheet = f"<worksheet {space}><sheetData>{rows}</sheetData></worksheet>"
    listed = '<sheets><sheet name="A" sheetId="1" r:id="r1"/></sheets>'
    part = f'<workbook {space} xmlns:r="{RELATIONSHIPS}">{listed}</workbook>'
    return office_parts("xl/workbook.xml", "spreadsheetml.sheet", part, {"worksheets": sheet})


def open_document_parts(kind: str, body: str) -> dict[str, str]:
    names = [f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "text", "table")]
    body = f"<office:body><office:{kind}>{body}</office:{kind}></office:body>"
    return {
        "mimetype": f"application/vnd.oasis.opendocument.{kind}",
        "META-INF/manifest.xml": "<manifest/>",
        "content.xml": f"<office:document-content {' '.join(names)}>{body}</office:document-content>",
    }


def open_text_parts(paragraphs: list[str]) -> dict[str, str]:
    return open_document_parts("text", "".join(f"<text:p>{one}</text:p>" for one in paragraphs))


def open_sheet_parts(paragraphs: list[str]) -> dict[str, str]:
    cells = [f"<table:table-cell><text:p>{one}</text:p></table:table-cell>" for one in paragraphs]
    rows = "".join(f"<table:table-row>{cell}</table:table-row>" for cell in cells)
    return open_document_parts("spreadsheet", f'<table:table table:name="A">{rows}</table:table>')


SLIDE_NAMES = (("p", "presentationml"), ("a", "drawingml"))
ZIPPED = {
    "docx": word_parts,
    "pptx": slides_parts,
    "xlsx": workbook_parts,
    "odt": open_text_parts,
    "ods": open_sheet_parts,
}
"""Kinds that are zip archives of XML, and their parts."""


def book_parts(page: str) -> dict[str, str]:
    item = '<item id="one" href="one.xhtml" media-type="application/xhtml+xml"/>'
    root = '<rootfile full-path="book.opf" media-type="application/oebps-package+xml"/>'
    container = "urn:oasis:names:tc:opendocument:xmlns:container"
    spine = '<spine><itemref idref="one"/></spine>'
    return {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": f'<container xmlns="{container}"><rootfiles>{root}</rootfiles></container>',
        "book.opf": f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{item}</manifest>{spine}</package>',
        "one.xhtml": XHTML.format(page),
    }


def pdf(lines: list[str]) -> bytes:
    """One page, a line for each."""
    shown = " ".join(f"({line}) Tj 0 -16 Td" for line in lines)
    stream = f"BT /F1 12 Tf 72 700 Td {shown} ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 5 0 R "
        "/Resources << /Font << /F1 3 0 R >> >> >>",
        f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
    ]
    data, places = "%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n"
    rows = "".join(f"{place:010d} 00000 n \n" for place in places)
    head = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{rows}"
    trailer = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
    return (data + head + trailer).encode("ascii")


def write_models(folder: Path) -> dict[str, Path]:
    """Tiny random models of ours and of transformers, with a tokenizer of the sentences."""
    import torch
    from transformers import BartConfig, BartForConditionalGeneration, BertConfig, BertForMaskedLM

    from longspan.models import LongspanConfig, LongspanForCandidateScoring, LongspanForCoreference
    from longspan.models import LongspanForSequenceClassification as Classifier
    from longspan.training.tokenizers import train_tokenizer
    from longspan_papers.wikihop.task import MARKERS, CandidateChoice

    tokenizer: Any = train_tokenizer([*SENTENCES, QUESTION], 320)
    tokenizer.add_tokens(list(MARKERS))
    entries = len(tokenizer)
    torch.manual_seed(0)

    def config(**fields: Any) -> LongspanConfig:
        options: dict[str, Any] = {"position_embedding": "sinusoidal", "attention": WINDOW}
        return LongspanConfig(vocab_size=entries, **SIZES, **options | fields)

    sides = ("layers", "attention_heads", "ffn_dim")
    bart: dict[str, Any] = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in sides}
    ids: dict[str, Any] = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    made = {
        "classifier": Classifier(config(num_labels=3)),
        "chooser": LongspanForCandidateScoring(config(**CandidateChoice().model_fields())),
        "coreference": LongspanForCoreference(config(head={"head": "coreference", "hidden_width": 8, "span_width": 3})),
        "bert": BertForMaskedLM(
            BertConfig(vocab_size=entries, **SIZES, max_position_embeddings=64, pad_token_id=tokenizer.pad_token_id)
        ),
        "bart": BartForConditionalGeneration(
            BartConfig(
                vocab_size=entries,
                d_model=16,
                max_position_embeddings=64,
                decoder_start_token_id=tokenizer.eos_token_id,
                forced_eos_token_id=None,
                **bart,
                **ids,
            )
        ),
    }
    for name, model in made.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return {name: folder / name for name in made}


if __name__ == "__main__":
    main()
