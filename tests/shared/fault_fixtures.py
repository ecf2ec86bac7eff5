"""What every table of faults shares: a folder, a command that must refuse, and proof that nothing else happened.

A table is a dictionary from a case's name to the keywords of `check_fault`:

```python
CASES = {
    "no sentences": {"files": {"a.txt": TEXT}, "run": ["summarize", "a.txt", "--sentences", "0"], "says": "sentences"},
}

@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fault(case: dict, check_fault: Callable[..., str]) -> None:
    check_fault(**case)
```
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from installed import HAS_PAPERS
from longspan.cli import main

RECIPE: dict[str, Any] = {
    "name": "tiny",
    "task": {"name": "summarization", "max_source_tokens": 128, "max_target_tokens": 16},
    "data": {"train": "synthetic", "validation": "synthetic", "train_rows": 4, "validation_rows": 2},
    "model": {
        "new": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "decoder_layers": 1,
        },
        "attention": {"mechanism": "poolingformer", "left_tokens": 16, "right_tokens": 16},
        "max_tokens": 128,
    },
    "tokenizer": {"train": 400},
    "generation": {"max_tokens": 16},
    "optimisation": {"steps": 2, "batch_size": 2, "log_every": 1, "evaluate_every": 2},
}
"""A recipe that would train; a case changes single keys of it by their dotted path."""


NULL = "<null>"
"""JSON's null as a value of `edit`, where None removes a key."""


@pytest.fixture
def right_recipe() -> dict[str, Any]:
    """A copy of `RECIPE`."""
    return json.loads(json.dumps(RECIPE))


@pytest.fixture(scope="session")
def made_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny random models on disk, by name, made once: copied into the folder of each case that asks for one."""
    from transformers import (
        BartConfig,
        BartForConditionalGeneration,
        DebertaV2Config,
        DebertaV2ForMaskedLM,
        RobertaConfig,
        RobertaForMaskedLM,
    )

    folder = tmp_path_factory.mktemp("made")
    bart = BartConfig(
        vocab_size=300,
        d_model=32,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=64,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
    )
    BartForConditionalGeneration(bart).save_pretrained(folder / "bart")
    roberta = RobertaConfig(
        vocab_size=300,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=66,
    )
    RobertaForMaskedLM(roberta).save_pretrained(folder / "roberta")
    deberta = {name: getattr(roberta, name) for name in ("vocab_size", "hidden_size", "num_hidden_layers")}
    deberta |= {"num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64}
    deberta |= {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
    later = {"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
    for name, options in {"deberta-v2": later, "deberta-v2-plain": {}}.items():
        DebertaV2ForMaskedLM(DebertaV2Config(**deberta, **options)).save_pretrained(folder / name)
    if HAS_PAPERS:
        _save_reader(folder / "reader")
    _save_scorer(folder / "scorer")
    _save_writer(folder / "writer")
    return {path.name: path for path in folder.iterdir()}


def _save_writer(folder: Path) -> None:
    """A language model as `longspan train` leaves it."""
    from longspan.models import LongspanConfig, LongspanForCausalLM
    from longspan.training.tokenizers import train_tokenizer

    tokenizer = train_tokenizer(["A first sentence stands here. A second one follows it."], 300)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = LongspanConfig(vocab_size=len(tokenizer), position_embedding="sinusoidal", **sizes)
    LongspanForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _save_reader(folder: Path) -> None:
    """A model of questions as `longspan train` leaves it."""
    from longspan.models import LongspanConfig, LongspanForNaturalQuestions
    from longspan.training.tokenizers import train_tokenizer
    from longspan_papers.natural_questions.task import NaturalQuestions

    tokenizer = train_tokenizer(["A first sentence stands here. A second one follows it."], 300)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    fields = NaturalQuestions(markers=False).model_fields()
    config = LongspanConfig(vocab_size=len(tokenizer), max_position_embeddings=1024, **sizes, **fields)
    LongspanForNaturalQuestions(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def made_recipe() -> Callable[[Mapping[str, Any]], str]:
    """`RECIPE` with changes by dotted path, as YAML."""
    return lambda changes: yaml.safe_dump(_changed(changes), sort_keys=False)


@pytest.fixture
def check_fault(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    made_checkpoints: dict[str, Path],
) -> Callable[..., str]:
    """Run a command in a folder made for it; it must be refused in one line, with everything as it was before."""

    def run_case(
        run: Sequence[str],
        says: str | Sequence[str],
        *,
        files: Mapping[str, str | bytes | Callable[[], bytes]] | None = None,
        recipe: Mapping[str, Any] | None = None,
        checkpoint: str | None = None,
        edit: Mapping[str, Mapping[str, Any]] | None = None,
        links: Mapping[str, str] | None = None,
        prepare: Callable[[Path], object] | None = None,
        stdin: bytes | None = None,
        environment: Mapping[str, str] | None = None,
        cwd: str = ".",
        code: int = 2,
    ) -> str:
        """Make the folder, run the command, check the refusal; return its line.

        Args:
            run: the command line, without `longspan`.
            says: words that the line on standard error must hold (an argument's name, its value, the remedy).
            files: name → contents, or a function that makes them.
            recipe: changes of `RECIPE` by dotted path, written to `recipe.yaml`; None as a value removes the key.
            checkpoint: name of a made model, copied to `model/`.
            edit: JSON file → keys to set in it (`None` removes one, "<null>" is null), after `checkpoint` was copied.
            links: symlink → its target.
            prepare: called with the folder at last, for what the arguments above cannot say.
            stdin: bytes on standard input.
            environment: variables to set.
            cwd: where the command runs, below the folder that was made.
            code: the exit code that must come back.
        """
        monkeypatch.chdir(tmp_path)
        if checkpoint is not None:
            shutil.copytree(made_checkpoints[checkpoint], tmp_path / "model")
        if recipe is not None:
            (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(_changed(recipe), sort_keys=False), encoding="utf-8")
        _write(tmp_path, files or {}, edit or {}, links or {})
        if prepare is not None:
            prepare(tmp_path)
        for name, value in (environment or {}).items():
            monkeypatch.setenv(name, value)
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        monkeypatch.chdir(tmp_path / cwd)
        before = photograph(tmp_path)
        capfd.readouterr()
        result = main([str(argument) for argument in run])
        out, err = capfd.readouterr()
        assert result == code, (result, out, err)
        assert "Traceback" not in err
        assert err.startswith("error: "), err
        assert err.count("\n") == 1, err
        assert err.rstrip("\n").isprintable(), "control characters reach the terminal"
        assert out == ""
        for words in (says,) if isinstance(says, str) else says:
            assert words in err, err
        assert photograph(tmp_path) == before, "something was left behind, changed or removed"
        return err

    return run_case


def photograph(folder: Path) -> dict[str, tuple[str, int, str]]:
    """Kind, permissions and contents of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        if path.is_symlink():
            kind, contents = "link", os.readlink(path)
        elif path.is_file():
            kind, contents = "file", hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            kind, contents = "folder" if path.is_dir() else "other", ""
        found[path.relative_to(folder).as_posix()] = (kind, stat.S_IMODE(state.st_mode), contents)
    return found


def _changed(changes: Mapping[str, Any]) -> dict[str, Any]:
    recipe = json.loads(json.dumps(RECIPE))
    for path, value in changes.items():
        *sections, last = path.split(".")
        place = recipe
        for section in sections:
            place = place.setdefault(section, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return recipe


def _write(folder: Path, files: Mapping[str, Any], edit: Mapping[str, Any], links: Mapping[str, str]) -> None:
    for name, contents in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = contents() if callable(contents) else contents
        path.write_bytes(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
    for name, changes in edit.items():
        path = folder / name
        plain = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for key, value in changes.items():
            if value is None:
                plain.pop(key, None)
            else:
                plain[key] = None if value == NULL else value
        path.write_text(json.dumps(plain), encoding="utf-8")
    for name, target in links.items():
        (folder / name).symlink_to(target)


def _save_scorer(folder: Path) -> None:
    """A model that picks sentences, as `longspan train` leaves it."""
    from longspan.models import LongspanConfig, LongspanForSentenceScoring
    from longspan.training.tokenizers import train_tokenizer

    tokenizer = train_tokenizer(["A first sentence stands here. A second one follows it."], 300)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    head = {"head": "sentence_scoring", "layers": 1}
    config = LongspanConfig(vocab_size=len(tokenizer), position_embedding="sinusoidal", head=head, **sizes)
    LongspanForSentenceScoring(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
