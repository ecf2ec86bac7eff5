"""Places to write to that cannot be, for every verb that writes: what was there before stays, and nothing is left."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longspan.cli import main

TEXT = "A first sentence stands here. A second one follows it. A third ends it."
WRONG = {"tokenizer.train": None, "tokenizer.from": "./nowhere"}
"""Found out only once a run has begun to prepare its folder."""

FOLDERS: dict[str, dict[str, Any]] = {
    "git": {"files": {"out/.git/HEAD": "ref: refs/heads/main\n", "out/.git/config": "[core]\n"}, "says": "out"},
    "home": {"files": {"out/.ssh/id_rsa": "secret", "out/.bashrc": "alias l=ls\n"}, "says": "out"},
    "a dot folder": {"files": {"out/.cache/x": ""}, "says": "out"},
    "a file of the system": {"files": {"out/.DS_Store": "x"}, "says": "out"},
    "nearly a name of ours": {"files": {"out/.longspan-0123456789ab.keep": "x"}, "says": "out"},
    "an old temporary name": {"files": {"out/.out.partial": "x"}, "says": "out"},
    "another file": {"files": {"out/thesis.tex": "mine"}, "says": "out"},
    "a file": {"files": {"out": "mine"}, "says": ["out", "is a file"]},
    "a file above": {"files": {"out": "mine"}, "output": "out/deep/below", "says": ["is a file", "another place"]},
    "a link to nowhere": {"links": {"out": "nowhere"}, "says": ["link to 'nowhere'", "does not exist"]},
    "below a link to nowhere": {"links": {"out": "nowhere"}, "output": "out/run", "says": "does not exist"},
    "a link to itself": {"links": {"out": "out"}, "says": "out"},
    "a link to a full folder": {"files": {"full/a": "mine"}, "links": {"out": "full"}, "says": "out"},
    "a link to a file": {"files": {"a": "mine"}, "links": {"out": "a"}, "says": "is a file"},
    "a name too long": {"output": "n" * 300, "says": "too long"},
    "a device": {"output": "/dev/null", "says": ["/dev/null", "is a file"]},
    "below a device": {"output": "/dev/null/out", "says": "/dev/null"},
    "the system's own": {"output": "/proc/longspan", "says": "/proc/longspan"},
    "nobody's home": {"output": "~nobody-of-this-name/out", "says": "nobody-of-this-name"},
}
VERBS: dict[str, dict[str, Any]] = {
    "train": {"recipe": {}, "run": ["train", "recipe.yaml", "--output"]},
    "train --resume": {"recipe": {}, "run": ["train", "recipe.yaml", "--resume", "--output"]},
    "lengthen": {"checkpoint": "bart", "run": ["lengthen", "model", "--max-tokens", "128", "--output"]},
    "tokenizer": {"files": {"corpus.txt": TEXT}, "run": ["tokenizer", "corpus.txt", "--size", "300", "--output"]},
}
FOLDER_CASES = {
    f"{verb}: {name}": {
        "run": [*given["run"], place.get("output", "out")],
        "says": place["says"],
        "recipe": given.get("recipe"),
        "checkpoint": given.get("checkpoint"),
        "files": {**given.get("files", {}), **place.get("files", {})},
        "links": place.get("links"),
    }
    for verb, given in VERBS.items()
    for name, place in FOLDERS.items()
}

# What a failed run does to the folder that it was given: the mistake is found after the folder has been claimed.
GIVEN: dict[str, dict[str, Any]] = {
    "new": {"output": "out"},
    "deep": {"output": "a/b/c/"},
    "here": {"output": "."},
    "the folder above": {"output": "inner/.."},
    "an empty folder": {"output": "empty"},
    "an empty folder, twice": {"output": "empty/../empty"},
    "a link to an empty folder": {"output": "link", "links": {"link": "empty"}},
    "below a link": {"output": "link/new", "links": {"link": "empty"}},
    "home": {"output": "~/new", "environment": {"HOME": "HERE"}},
    "home itself": {"output": "~", "environment": {"HOME": "HERE/empty"}},
}

PICTURES: dict[str, dict[str, Any]] = {
    "no folder": {"output": "missing/a.png", "says": ["missing", "is no folder"]},
    "a folder": {"files": {"a.png/b": ""}, "says": "it is a folder"},
    "no ending": {"output": "a", "says": "no known format"},
    "another ending": {"output": "a.docx", "says": "no known format"},
    "a link to a device": {"links": {"a.png": "/dev/full"}, "says": "no regular file"},
    "a link to nowhere": {"links": {"a.png": "nowhere.png"}, "says": "does not exist"},
    "a file above": {"files": {"b": "mine"}, "output": "b/a.png", "says": "b"},
    "a name too long": {"output": "n" * 300 + ".png", "says": "too long"},
}
PICTURE_VERBS: dict[str, list[str]] = {
    "draw": ["draw", "window(3)", "--tokens", "16", "--out"],
    "summarize": ["summarize", "text.txt", "--picture"],
    "answer": ["answer", "text.txt", "what follows?", "--picture"],
}
PICTURE_CASES = {
    f"{verb}: {name}": {
        "run": [*run, place.get("output", "a.png")],
        "says": place["says"],
        "files": {"text.txt": TEXT, **place.get("files", {})},
        "links": place.get("links"),
    }
    for verb, run in PICTURE_VERBS.items()
    for name, place in PICTURES.items()
}


@pytest.mark.parametrize("case", FOLDER_CASES.values(), ids=FOLDER_CASES)
def test_folders(case: dict[str, Any], check_fault: Callable[..., str]) -> None:
    check_fault(**case)


@pytest.mark.parametrize("case", PICTURE_CASES.values(), ids=PICTURE_CASES)
def test_pictures(case: dict[str, Any], check_fault: Callable[..., str]) -> None:
    check_fault(**case)


@pytest.mark.parametrize("resume", [[], ["--resume"]], ids=["new", "resume"])
@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_a_failed_run_takes_away_only_its_own(
    given: dict[str, Any], resume: list[str], check_fault: Callable[..., str], tmp_path: Path
) -> None:
    """In a folder that must be empty to begin with, so the recipe lies beside it."""
    for name in ("here", "here/empty", "here/inner"):
        (tmp_path / name).mkdir(exist_ok=True)
    if given["output"] in (".", "inner/.."):
        (tmp_path / "here" / "empty").rmdir()
        if given["output"] == ".":
            (tmp_path / "here" / "inner").rmdir()
        else:
            given = {**given, "output": "inner"}
    environment = {
        name: value.replace("HERE", str(tmp_path / "here")) for name, value in given.get("environment", {}).items()
    }
    check_fault(
        run=["train", "../recipe.yaml", "--output", given["output"], *resume],
        says="nowhere",
        recipe=WRONG,
        links={f"here/{link}": target for link, target in given.get("links", {}).items()},
        environment=environment,
        cwd="here",
    )


def test_a_read_only_disk(small_disk: Path, check_fault: Callable[..., str]) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for output in (small_disk, small_disk / "new"):
        for verb in VERBS.values():
            with pytest.MonkeyPatch.context():
                (small_disk.parent / "recipe.yaml").unlink(missing_ok=True)
                check_fault(**{**verb, "run": [*verb["run"], output], "says": "read-only", "checkpoint": None})
    check_fault(run=["draw", "window(3)", "--out", small_disk / "a.png"], says="read-only")


@pytest.mark.parametrize("verb", ["lengthen", "tokenizer"])
@pytest.mark.parametrize("where", ["new", "empty", "link", ".", "disk"])
def test_places_that_work(
    verb: str,
    where: str,
    tmp_path: Path,
    made_checkpoints: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    request: Any,
) -> None:
    """A new folder, an empty one, a link to one, where one stands, and a mount point."""
    output = request.getfixturevalue("small_disk") if where == "disk" else tmp_path / "place" / where
    (tmp_path / "place" / "empty").mkdir(parents=True)
    (tmp_path / "place" / "link").symlink_to("empty")
    (tmp_path / "corpus.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path / "place" / "empty")
    runs = {
        "lengthen": ["lengthen", str(made_checkpoints["bart"]), "--max-tokens", "128"],
        "tokenizer": ["tokenizer", str(tmp_path / "corpus.txt"), "--size", "300"],
    }
    assert main([*runs[verb], "--output", "." if where == "." else str(output)]) == 0
    found = os.listdir("." if where == "." else output)
    assert {"lengthen": "config.json", "tokenizer": "tokenizer.json"}[verb] in found
    assert not [name for name in found if name.startswith(".")]
    assert (tmp_path / "place" / "link").is_symlink()


@pytest.mark.parametrize(
    ("run", "room"),
    [
        (["lengthen", "model", "--max-tokens", "128", "--output", "disk/out"], 100_000),
        (["lengthen", "model", "--max-tokens", "128", "--output", "disk"], 0),
        (["tokenizer", "corpus.txt", "--size", "300", "--output", "disk/out"], 4096),
        (["tokenizer", "corpus.txt", "--size", "300", "--output", "disk"], 0),
        (["draw", "window(3)", "--out", "disk/a.png"], 4096),
        (["draw", "window(3)", "--out", "disk/a.svg"], 0),
        (["draw", "window(3)", "--out", "disk/a.pdf"], 4096),
        (["train", "recipe.yaml", "--output", "disk/out"], 0),
        (["train", "recipe.yaml", "--output", "disk/out"], 4096),
        (["train", "recipe.yaml", "--output", "disk/out"], 16384),
    ],
)
def test_a_full_disk(run: list[str], room: int, small_disk: Path, check_fault: Callable[..., str]) -> None:
    """Room for a part of what is written only: everything that was on the disk stays, and no part is left."""
    if run[-1] != "disk":  # a folder that is filled in place is empty, but for that a smaller disk would do
        (small_disk / "mine").write_bytes(b"m" * ((1 << 20) - room))
    else:
        subprocess.run(["mount", "-o", "remount,size=8k", str(small_disk)], check=True)
    given = {
        "lengthen": {"checkpoint": "bart"},
        "tokenizer": {"files": {"corpus.txt": TEXT}},
        "train": {"recipe": {"generation.max_tokens": 16}},
    }
    check_fault(**given.get(run[0], {}), run=run, says=["the disk is full", "free"])


WRITERS: dict[str, list[str]] = {
    "coref --output": ["coref", "a.txt", "--model", "model", "--output"],
    "embed --output": ["embed", "a.safetensors", "--output"],
    "summarize --html": ["summarize", "a.html", "--html"],
    "summarize --picture": ["summarize", "a.png", "--picture"],
    "answer --picture": ["answer", "a.png", "why?", "--picture"],
    "importance --html": ["importance", "a.html", "--html"],
    "importance --reference --html": ["importance", "other.txt", "--reference", "a.html", "--html"],
}
"""Every verb that writes a file beside what it reads; what comes behind is its name."""


@pytest.mark.parametrize("name", ["itself", "another path", "a link", "a hard link", "in the model"])
@pytest.mark.parametrize("verb", WRITERS)
def test_what_is_read_is_not_written_over(verb: str, name: str, check_fault: Callable[..., str]) -> None:
    run = WRITERS[verb]
    file = next((word for word in run if word.startswith("a.")), "")
    ending = Path(file).suffix
    if name == "in the model":
        run = [*(run if "--model" in run else [*run[:-1], "--model", "model", run[-1]]), f"model/config{ending}"]
    else:
        other = {"itself": file, "another path": f"./folder/../{file}"}
        run = [*run, other.get(name, f"link{ending}")]

    def prepare(folder: Path) -> None:
        if name == "a link":
            (folder / f"link{ending}").symlink_to(file)
        elif name == "a hard link":
            (folder / f"link{ending}").hardlink_to(folder / file)

    source = "model" if name == "in the model" else file
    check_fault(
        run=run,
        files={file: TEXT, "other.txt": TEXT, f"model/config{ending}": "{}", "folder/x": ""},
        prepare=prepare,
        says=["would overwrite what is read", source, "give another name"],
    )
