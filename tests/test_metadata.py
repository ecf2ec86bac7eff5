"""What the project says of itself, in every place where it says so: versions, dates, licences, maintainers' files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

import longspan

ROOT = Path(__file__).parents[1]
BUNDLED = "packages/longspan-documents/src/longspan_documents/bundled"

pytestmark = pytest.mark.skipif(
    not (ROOT / "CITATION.cff").is_file(), reason="runs in a checkout, not from an installed package"
)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def plain(name: str) -> Any:
    return yaml.load(text_of(name), Loader=yaml.BaseLoader)


@pytest.fixture
def citation() -> dict[str, Any]:
    return plain("CITATION.cff")


@pytest.fixture
def project() -> dict[str, Any]:
    return tomllib.loads(text_of("packages/longspan/pyproject.toml"))


def projects() -> dict[Path, Any]:
    """`pyproject.toml` of the checkout and of its packages, parsed."""
    files = [ROOT / "pyproject.toml", *sorted(ROOT.glob("packages/*/pyproject.toml"))]
    return {file: tomllib.loads(file.read_text(encoding="utf-8")) for file in files}


def released() -> list[tuple[str, str]]:
    """Version and date of each section of the changelog."""
    return re.findall(r"^## (\S+) – (\d{4}-\d{2}-\d{2})$", text_of("CHANGELOG.md"), re.MULTILINE)


def test_every_build_reads_the_version_from_one_file() -> None:
    assert len(projects()) == 4
    for path, project in projects().items():
        assert project["project"]["dynamic"] == ["version"]
        assert "version" not in project["project"]
        file = path.parent / project["tool"]["hatch"]["version"]["path"]
        assert file.resolve() == ROOT / "packages/longspan/src/longspan/version.py"


def test_what_no_build_can_read_has_the_same_version(citation: dict[str, Any]) -> None:
    """Between two releases the code has a development version of the next; one cites what was released."""
    code, newest = Version(longspan.__version__), released()[0]
    assert newest == (citation["version"], citation["date-released"])
    if code.is_devrelease:
        assert code > Version(newest[0])
        assert re.search(r"^## Unreleased$", text_of("CHANGELOG.md"), re.MULTILINE)
    else:
        assert longspan.__version__ == citation["version"]
    needs = [need for project in projects().values() for need in project["project"]["dependencies"]]
    pins = [need for need in needs if re.match(r"longspan\S*==", need)]
    assert len(pins) == 3
    assert all(need.endswith(f"=={longspan.__version__}") for need in pins)


def test_releases_run_backwards_in_the_changelog() -> None:
    versions = [Version(version) for version, _ in released()]
    assert versions == sorted(set(versions), reverse=True)
    headings = re.findall(r"^## (.+)$", text_of("CHANGELOG.md"), re.MULTILINE)
    assert [heading for heading in headings if heading != "Unreleased"] == [" – ".join(each) for each in released()]
    assert "Unreleased" not in headings[1:]


def test_citation_has_what_its_format_asks_for(citation: dict[str, Any], project: dict[str, Any]) -> None:
    """Citation File Format 1.2.0: the four required keys, and known ones only."""
    assert citation["cff-version"] == "1.2.0"
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert set(citation) <= {
        *("cff-version", "message", "title", "authors", "type", "abstract", "version", "date-released"),
        *("license", "keywords"),
    }
    assert citation["type"] == "software"
    assert citation["license"] == project["project"]["license"]
    assert citation["authors"] == project["project"]["authors"]
    assert len(set(citation["keywords"])) == len(citation["keywords"])
    assert all(
        isinstance(value, str) and value for key, value in citation.items() if key not in ("authors", "keywords")
    )


def test_no_address_is_given_before_there_is_one(project: dict[str, Any]) -> None:
    assert "urls" not in project["project"]
    for name in ("CITATION.cff", "SECURITY.md"):
        assert not re.search(r"https?://|@\w+\.\w+", text_of(name)), name
    assert "no address for reports yet" in text_of("SECURITY.md")


def test_continuous_integration_is_the_script_that_anyone_can_run(project: dict[str, Any]) -> None:
    job = plain(".github/workflows/ci.yml")["jobs"]["test"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    lowest = project["project"]["requires-python"].removeprefix(">=")
    oldest, newest = job["strategy"]["matrix"]["python"]
    assert oldest == lowest
    assert int(newest.removeprefix("3.")) >= 14


def test_the_type_checker_reads_every_package() -> None:
    """Pyright expands no pattern such as `packages/*/src`, and reports no error where it finds no file."""
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pyright"]["include"]
    assert sorted(checked) == sorted(
        str(file.parent.relative_to(ROOT) / "src") for file in ROOT.glob("packages/*/pyproject.toml")
    )


def test_every_week_tests_the_newest_and_the_oldest_versions() -> None:
    job = plain(".github/workflows/versions.yml")["jobs"]["test"]
    commands = (ROOT / "Makefile").read_text(encoding="utf-8")
    calls = [case["call"] for case in job["strategy"]["matrix"]["include"]]
    assert {"test-newest", "test-oldest", "smoke TORCH=torch"} == set(calls)
    assert all(f"\n{call.split()[0]}:" in commands for call in calls)
    assert "make smoke" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["ci", "versions", "release"])
def test_actions_are_pinned_to_a_commit(name: str) -> None:
    steps = [step for job in plain(f".github/workflows/{name}.yml")["jobs"].values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used)


def test_packages_are_built_once_and_published_after_what_they_need() -> None:
    """A release needs no stored token, and only a tag publishes."""
    workflow = plain(".github/workflows/release.yml")
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs.items() if "python tools/release.py dist" in str(job)] == ["build"]
    assert (jobs["test"]["needs"], jobs["announce"]["needs"]) == ("build", "publish-longspan-papers")
    needed = "test"
    for package in ("longspan", "longspan-documents", "longspan-papers"):
        job = jobs[f"publish-{package}"]
        assert (job["needs"], job["permissions"]) == (needed, {"id-token": "write"})
        assert job["steps"][-1]["with"] == {"packages-dir": f"dist/{package}"}
        needed = f"publish-{package}"
    assert jobs["publish-longspan"]["if"] == "github.ref_type == 'tag'"
    assert "secrets." not in text_of(".github/workflows/release.yml")


def test_issue_forms_are_configured() -> None:
    assert plain(".github/ISSUE_TEMPLATE/config.yml")["blank_issues_enabled"] in ("true", "false")


FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_are_complete(path: Path) -> None:
    form = plain(str(path.relative_to(ROOT)))
    assert {"name", "description", "body"} <= set(form)
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    names = [field["id"] for field in asked]
    assert asked
    assert len(set(names)) == len(names)
    for field in form["body"]:
        assert field["type"] in ("markdown", "textarea", "input", "dropdown", "checkboxes")
        assert field["attributes"]["value" if field["type"] == "markdown" else "label"]


def test_cards_say_what_the_bundled_models_were_trained_on() -> None:
    """Nothing comes with the package that was trained on data which do not allow it."""
    for name in (f"{BUNDLED}/README.md", f"{BUNDLED}/encoder/README.md"):
        card = " ".join(text_of(name).split())
        for words in ("CC BY", "permissive", "QMSum", "SQuALITY", "attribution"):
            assert words in card, f"{name} does not say {words!r}"
        assert "SumPubMed" not in card
    assert f"{BUNDLED}/README.md" in text_of("README.md")
