"""The house: metadata that agrees with itself, a README that tells the truth, documentation whose examples run."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import longspan
from longspan.attention import MECHANISMS
from longspan.cli import COMMANDS
from longspan.models import HEADS
from longspan.stacks import STACKS
from longspan.tasks import TASKS
from longspan_documents.text.kinds.table import READERS

ROOT = Path(__file__).parents[1]
DOCS = [path for docs in ("docs", "packages/*/docs") for path in ROOT.glob(f"{docs}/**/*.md")]
PAGES = sorted([ROOT / "README.md", *DOCS])
GUIDES = [path for path in DOCS if path.parent.name == "guides"]
SOURCES = sorted((ROOT / "packages").glob("*/src/**/*.py"))
NOT_RUN = "<!-- not run:"
"""A comment before an example that cannot run here, with the reason (it downloads a checkpoint, say)."""

pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").is_dir(), reason="runs in a checkout, not from an installed package"
)


def examples(page: Path) -> list[str]:
    """The Python blocks of a page, without those marked as not run."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"(?P<before>[^\n]*)\n+```python\n(?P<code>.*?)```", text, re.DOTALL)
    return [match["code"] for match in found if NOT_RUN not in match["before"]]


@pytest.mark.parametrize(
    "module", ["longspan", "longspan.models", "longspan.stacks", "longspan.attention", "longspan.ops"]
)
def test_all_that_a_module_names_is_there(module: str) -> None:
    """What `from longspan.models import *` gives."""
    given: dict[str, object] = {}
    exec(f"from {module} import *", given)
    assert set(importlib.import_module(module).__all__) <= set(given)


def test_every_public_name_is_there() -> None:
    for name in dir(longspan):
        assert getattr(longspan, name) is not None
    assert {*longspan.__all__, "summarize", "choose"} <= set(dir(longspan))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = longspan.no_such_name  # type: ignore[attr-defined]


def test_constraints_pin_what_the_project_needs() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    wanted: list[str] = []
    for file in ROOT.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        wanted += project["dependencies"]
        wanted += [need for extra in project.get("optional-dependencies", {}).values() for need in extra]
    names = {re.match(r"[\w-]+", requirement)[0].lower() for requirement in wanted}  # type: ignore[index]
    assert names - {"longspan", "longspan-documents", "longspan-papers"} <= pinned


def test_every_folder_has_its_line_on_the_front_page() -> None:
    front = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    folders = [path for path in ROOT.glob("packages/*/src/*/*") if path.is_dir() and list(path.glob("*.py"))]
    folders += [ROOT / name for name in ("benchmarks", "tests", "tools", "docs")]
    for folder in folders:
        assert re.search(rf"^\s*{folder.name}/ +\S", front, re.MULTILINE), f"no line for {folder.name}/"
    for name in re.findall(r"^  (\w+)/ ", front, re.MULTILINE):
        assert list(ROOT.glob(f"packages/*/src/*/{name}")), f"docs/index.md names {name}/, which is not there"


def test_the_front_page_lists_every_guide_once() -> None:
    front = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    rows = [line for line in front.splitlines() if line.startswith("| **")]
    linked = [name for row in rows for name in re.findall(r"/?guides/([\w-]+\.md)\)", row)]
    assert sorted(linked) == sorted(path.name for path in GUIDES)


def test_the_front_page_names_every_command() -> None:
    front = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"longspan {name}" in front


def test_the_readme_is_short_and_links_every_mechanism() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 100
    for name in MECHANISMS:
        assert f"(packages/longspan/docs/mechanisms/{name}.md)" in readme


def pages_with_examples() -> list:
    """Every page that holds code; the guide on ONNX takes seconds."""
    slow = {page: [pytest.mark.slow] for page in PAGES if page.name == "export.md"}
    names = {page: str(page.relative_to(ROOT)) for page in PAGES if examples(page)}
    return [pytest.param(page, id=name, marks=slow.get(page, [])) for page, name in names.items()]


@pytest.mark.parametrize("page", pages_with_examples())
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)  # as `__main__` is for a reader
    names = vars(module)
    before = len(names)
    tables = (READERS, MECHANISMS, STACKS, HEADS, TASKS)
    listed = [set(table) for table in tables]
    try:
        for code in examples(page):
            # As a reader runs it: without this file's `from __future__ import annotations`.
            exec(compile(code, str(page), "exec", dont_inherit=True), names)
    finally:  # other tests count what is there
        for table, own in zip(tables, listed, strict=True):
            for name in set(table) - own:
                del table[name]
    assert len(names) > before


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        # `../../actions` is GitHub's page of the repository, wherever that lies.
        if not target.startswith(("http://", "https://", "../../actions/")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_has_a_page_with_its_options(name: str) -> None:
    page = (ROOT / "packages/longspan/docs/mechanisms" / f"{name}.md").read_text(encoding="utf-8")
    for field in fields(MECHANISMS[name]):
        assert f"`{field.name}`" in page, f"{name}.md says nothing of {field.name}"
    assert f"mechanisms/{name}.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_the_log_is_dated_by_month() -> None:
    months = sorted((ROOT / "docs/log").glob("*.md"))
    assert months
    for month in months:
        headings = re.findall(r"^## (.+)$", month.read_text(encoding="utf-8"), re.MULTILINE)
        assert headings
        assert all(re.fullmatch(rf"{month.stem}-\d{{2}}", heading) for heading in headings)
        assert headings == sorted(headings, reverse=True)
        assert f"(log/{month.name})" in (ROOT / "docs/log.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tests() -> dict[Path, ast.Module]:
    """Every file of the tests, parsed."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "tests").rglob("*.py"))}


CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time", "timeit", "times"}


def test_no_test_returns(tests: dict[Path, ast.Module]) -> None:
    """What returns counts as passed: a case that does not apply is not collected, or is a test of its own."""
    for path, tree in tests.items():
        for test in ast.walk(tree):
            if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
                assert not [line for line in own_lines(test) if is_bare_return(line)], f"{path.name}: {test.name}"


def own_lines(test: ast.FunctionDef) -> Iterator[ast.AST]:
    """What stands in a function, without the functions within it."""
    left = list(test.body)
    while left:
        node = left.pop()
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            left.extend(ast.iter_child_nodes(node))


def test_no_test_reads_a_clock(tests: dict[Path, ast.Module]) -> None:
    """Seconds are the machine's: work is counted, and what must end is waited for until the suite's own timeout."""
    for path, tree in tests.items():
        imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "time"]
        assert not [name for node in imported for name in node.names if name.name != "sleep"], path
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert node.value.id not in ("time", "timeit") or node.attr not in CLOCKS, f"{path}: {node.lineno}"


def test_few_tests_are_left_out_of_the_quick_run(slow_share: float) -> None:
    """`make test` runs what is not marked `slow`."""
    assert slow_share <= 0.05


def is_bare_return(line: ast.AST) -> bool:
    return isinstance(line, ast.Return) and line.value is None


def test_no_pickle_is_ever_read() -> None:
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(import pickle|from pickle)", text, re.MULTILINE), path
        for call in re.findall(r"torch\.load\([^)]*\)", text):
            assert "weights_only=True" in call, path


def test_every_logger_is_one_of_longspan() -> None:
    """So that one setting of `logging.getLogger("longspan")` is for all packages."""
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        name = "__name__" if "src/longspan/" in path.as_posix() else 'f"longspan.{__name__}"'
        for given in re.findall(r"getLogger\((.*?)\)", text):
            assert given in {name, '"longspan"', '"ray.data"', '"torch.onnx"', ""}, (path, given)


def test_only_the_command_line_prints() -> None:
    for path in SOURCES:
        if "cli" in path.parts:
            continue
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"], path


def test_every_module_says_what_it_is() -> None:
    for path in SOURCES:
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path} has no docstring"


def test_package_is_typed_and_holds_its_model() -> None:
    assert len(list(ROOT.glob("packages/*/src/*/py.typed"))) == 3
    package = ROOT / "packages/longspan-documents/src/longspan_documents"
    files = [file for file in (package / "bundled").rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {"summary.safetensors", "answers.json", "model.safetensors", "README.md"}
    assert 0 < sum(file.stat().st_size for file in files) <= 25 * 2**20


@pytest.mark.parametrize("script", [".ci/run"])
def test_scripts_are_executable(script: str) -> None:
    assert (ROOT / script).stat().st_mode & 0o111
