"""Recipes that cannot run: every one is refused at once, before anything is read or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from longspan.training.recipe_file import load_recipe

NAN, INFINITE, HUGE = float("nan"), float("inf"), 10**30
TRAIN = ["train", "recipe.yaml"]

VALUES: dict[str, list[Any]] = {
    "optimisation.learning_rate": [0, -1e-4, NAN, INFINITE, 1e23, "fast", True, [1e-4], 10**400],
    "optimisation.betas": [[0.9], [0.9, 0.99, 0.999], [0.9, 1.0], [-0.1, 0.9], [0.9, NAN], "x", {"a": 1}, []],
    "optimisation.epsilon": [0, -1e-8, NAN, 2, INFINITE],
    "optimisation.weight_decay": [-0.01, NAN, 1e23, "none"],
    "optimisation.gradient_clip": [-1, NAN, INFINITE, "off"],
    "optimisation.label_smoothing": [-0.1, 1, 1.5, NAN],
    "optimisation.seed": [-1, 2**32, 10**40, 1.5, "lucky", True],
    "optimisation.workers": [-1, 100_000, 0.5],
    "optimisation.steps": [0, -1, HUGE, 2.5, "many", False],
    "optimisation.batch_size": [0, -4, HUGE, "all"],
    "optimisation.micro_batch_size": [0, -1, 3],
    "optimisation.log_every": [0, -1, 3],
    "optimisation.evaluate_every": [0, -2, HUGE],
    "optimisation.keep_checkpoints": [0, -1],
    "optimisation.warmup_steps": [-1, HUGE, 1.5],
    "optimisation.warmup_fraction": [-0.1, 1.0, NAN],
    "optimisation.bf16": [1, "yes", "maybe"],
    "optimisation.best_by": ["rouge3", "accuracy", "", "eval_loss", 3],
    "optimisation.schedule": ["linaer", "", 3, "cos ine"],
    "optimisation.schedule_options": [{"num_cycles": 2}, {"nonsense": 1}, [1], "fast"],
    "optimisation.report_to": ["wandbb", ["none", "tensorboard"], 3],
    "optimisation.lora": [3, {"rank": 0}, {"rank": 10**9}, {"alpha": NAN}, {"targets": []}, {"targets": ["a b"]}],
    "optimisation.lora.dropout": [1.0, -0.1],
    "optimisation.stepz": [3],
    "generation.beams": [0, -1, 10**6, 1.5],
    "generation.length_penalty": [NAN, INFINITE, 1e23, "long"],
    "generation.no_repeat_ngram": [-1, HUGE],
    "generation.max_tokens": [0, -1, 10**11, 129],
    "generation.min_tokens": [-1, 300, HUGE],
    "tokenizer.train": [0, 1, 260, -5, HUGE, "big"],
    "tokenizer.rows": [0, -1, HUGE],
    "tokenizer.simplify": ["no", 0],
    "data.train": [[], "", [""], [3], {"a": 1}],
    "data.train_rows": [0, -1, HUGE, 2.5],
    "data.validation_rows": [0, -1],
    "data.train_split": ["../train", "a/b", "", "x" * 300, "..", 3],
    "data.validation_split": ["../../../x", "/etc", "a\nb", "a\x1b[31m"],
    "data.on_error": ["ignore", 3],
    "task": ["summarization", 3, []],
    "task.name": [3, [1]],
    "task.max_source_tokens": [0, -1, HUGE, "all", 129],
    "task.max_target_tokens": [0, -1, 10**18, 129],
    "task.global_tokens": ["all", 1],
    "task.prefix": [3, "x" * 20_000],
    "task.references": ["min"],
    "task.rouge_tokens": ["words"],
    "task.pad_to_multiple_of": [0, -1, 10**12],
    "task.max_sorce_tokens": [9],
    "model.attention": ["longformr", 3, [], {"left_tokens": 3}, {"mechanism": 3}, ["longformer"] * 3]
    + [{"mechanism": "full", "layers": layers} for layers in ([2], [-9], [0.5], 10**12, "all", True, None, {}, "1", [])]
    + [{"mechanism": "longformer", "left_tokens": of} for of in  ({"per_layer": [1]}, {"per_layer": 3}, {}, {"0": 1})]
    + [[{"mechanism": "full", "layers": "0-"}, "full"], [{"mechanism": "full", "layers": "0-"}] * 2],
    "model.attention.left_tokens": [-1, 1.5, 10**18, "wide", True],
    "model.attention.kernel": [0, -1, 10**18, 100_000],
    "model.attention.stride": [0, 6, -1],
    "model.attention.pooling": ["median", 3],
    "model.attention.dropout": [1.0, -0.1, NAN],
    "model.attention.windw": [3],
    "model.max_tokens": [0, -1, 10**18, "long"],
    "model.new": [[], 3, "bert"],
    "model.new.hidden_size": [0, -32, 30, 10**9, 10**30, "wide", 2.5],
    "model.new.num_hidden_layers": [0, -1, 10**6, 1.5, "two"],
    "model.new.num_attention_heads": [0, 5, -4],
    "model.new.intermediate_size": [0, 10**12],
    "model.new.decoder_layers": [0, -1, 10**6],
    "model.new.vocab_size": [0, -1, 7],
    "model.new.pad_token_id": [-1, 400, 10**12, "pad"],
    "model.new.dropout": [1.0, -0.1, NAN, "none"],
    "model.new.layer_norm_eps": [0, -1, NAN, INFINITE, "x"],
    "model.new.init_std": [-1, NAN, INFINITE],
    "model.new.activation_function": ["gelo", 3],
    "model.new.normalization": ["both"],
    "model.new.position_embedding": ["rotary"],
    "model.new.cutoffs": ["x0", 3, ["a"], [-1], [3, 2], {}],
    "model.new.hiden_size": [8],
    "model.new.max_position_embeddings": [0, -1],
    "name": ["../../evil", "/tmp/evil", "a/b", "a\\b", ".hidden", "..", "", "x" * 200, "a\nb", "\x1b[2J", 3, [], ["a"]],
    "about": [3, ["a"]],
    "published": [3, {"source": 3}, {"note": "no source"}],
    "smoke": [3, {"optimisation.stepz": 3}, {"nowhere.at.all": 3}],
}  # fmt: skip
"""Dotted key → values that it must not have; the error names the last part of the key that is known."""

ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 12)
)
TEXTS: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "no mapping"),
    "a list": ("- 1\n- 2\n", "no mapping"),
    "a word": ("recipe", "no mapping"),
    "not closed": ("name: [tiny", "line"),
    "a tab": ("name:\n\ttask: x\n", "line 2"),
    "twice": ("name: a\nname: b\n", "'name' twice"),
    "no name": ("task: {name: summarization}\n", "missing key 'name'"),
    "nested 100 000 lists": ("name: " + "[" * 100_000, "nested deeper"),
    "nested 50 000 mappings": ("name: " + "{a: " * 50_000, "nested deeper"),
    "nested 40 lines": ("".join(f"{'  ' * depth}a:\n" for depth in range(40)), "nested deeper"),
    "an alias bomb": (ALIASES, "aliases"),
    "an alias of itself": ("name: &a [*a]\n", "contains itself"),
    "a merge of itself": ("task: &a\n  <<: *a\n", "contains itself"),
    "a merge of a text": ("task:\n  <<: words\n", "mapping"),
    "an unknown alias": ("name: *nowhere\n", "nowhere"),
    "a date as name": ("name: 2026-01-02T10:00:00\n", "name"),
    "a Python object": ("name: !!python/object/apply:os.getcwd []\n", "not allowed"),
    "a Python name": ("name: !!python/name:os.system\n", "not allowed"),
    "a tag of one's own": ("name: !mine tiny\n", "not allowed"),
    "a set": ("data: !!set {a, b}\n", "not allowed"),
    "binary": ("name: !!binary aGFsbG8=\n", "not allowed"),
    "a tag that lies": ("name: !!int tiny\n", "no number"),
    "5 000 digits": ("optimisation: {steps: " + "9" * 5_000 + "}\n", "no number"),
    "NUL": ("name: a\0b\n", "special characters"),
    "NUL in quotes": ('name: "a\\0b"\n', "NUL"),
    "half a pair": ('name: "a \\ud83d b"\n', "surrogate"),
    "beyond Unicode": ('name: "\\U00110000"\n', "not valid YAML"),
    "beyond a C integer": ('name: "\\UFFFFFFFF"\n', "names a character beyond U+10FFFF"),
    "two documents": ("name: a\n---\nname: b\n", "another document"),
    "a number as key": ("1: 2\n", "key 1"),
    "a truth as key": ("true: 2\n", "key True"),
    "nothing as key": ("~: 2\n", "key None"),
    "a list as key": ("? [a]\n: 2\n", "no text"),
    "UTF-16": ("name: tiny\n".encode("utf-16"), "UTF-8"),
    "Latin-1": ("name: é\n".encode("latin-1"), "UTF-8"),
    "a picture": (bytes(range(256)), "UTF-8"),
    "a megabyte": ("# words\n" * 130_000, "larger than"),
    "an escape as key": ('"\\u001b[2J": 3\n', "unknown key"),
    "a very long key": ('"' + "k" * 900 + '": 3\n', "unknown key"),
}
"""What the file holds, and a word of the refusal."""

CHANGES: dict[str, tuple[str, str]] = {
    "no value": ("optimisation.steps", "key=value"),
    "no key": ("=3", "key=value"),
    "an empty part": ("optimisation..steps=3", "unknown key"),
    "a dot at the end": ("optimisation.steps.=3", "steps"),
    "another task": ("task.name=summarisation", "did you mean 'summarization'"),
    "a path as task": ("task.name=../evil", "which is unknown"),
    "no task": ("task={}", "task.name"),
    "an unknown key": ("optimisation.stepz=3", "did you mean 'steps'"),
    "an unknown section": ("optimization.steps=3", "did you mean 'optimisation'"),
    "a thousand parts": (".".join(["task"] * 1000) + "=3", "task"),
    "a path as name": ("name=../../evil", "name"),
    "a home as name": ("name=~/evil", "name"),
    "sexagesimal": ("optimisation.steps=1:30", "1:30"),
    "bad YAML": ("optimisation.steps=[1", "not valid YAML"),
    "a tag": ("name=!!python/name:os.system", "not allowed"),
    "a bomb": ("about=[&a [x, x], &b [*a, *a], *b, *c]", "undefined alias"),
    "too deep": ("about=" + "[" * 5_000, "nested deeper"),
    "no number": ("optimisation.learning_rate=.nan", "learning_rate"),
    "infinite": ("optimisation.learning_rate=-.inf", "learning_rate"),
    "a list for a section": ("optimisation=[1]", "optimisation"),
    "nothing for a section": ("optimisation=", "optimisation"),
    "an option of a task": ("task.max_sorce_tokens=9", "did you mean 'max_source_tokens'"),
    "more than the model reads": (
        "task.max_source_tokens=129",
        "task.max_source_tokens is 129 but the model has positions for 128",
    ),
    "more than the model writes": ("generation.max_tokens=129", "generation.max_tokens is 129 but the model has"),
    "no rows": ("data.train_rows=0", "train_rows is 0"),
    "no tokenizer there": ("tokenizer={from: nowhere/at/all}", "nowhere/at/all"),
    "another mechanism": ("model.attention.mechanism=longfromer", "did you mean 'longformer'"),
    "layers that are not there": ("model.attention=[{layers: 0-2, mechanism: full}]", "layers names layer 2"),
    "a window below zero": ("model.attention.left_tokens=-1", "left_tokens is -1"),
    "levels beside what they replace": (
        "model.attention={mechanism: poolingformer, kernel: 5, levels: [{left_tokens: 9, right_tokens: 9}]}",
        "attention.levels and attention.kernel exclude each other",
    ),
    "levels that shrink": (
        "model.attention={mechanism: poolingformer, levels: [{left_tokens: 9, right_tokens: 9}, "
        "{left_tokens: 8, right_tokens: 9}]}",
        "levels[1].left_tokens=8 is less than the 9 of the level before",
    ),
    "no dilation": ("model.attention={mechanism: longformer, dilation: 0}", "dilation is 0"),
    "no kernel": ("model.attention.kernel=0", "kernel is 0"),
    "a stride over the kernel": ("model.attention.stride=9", "stride=9"),
    "heads that do not divide": ("model.new.num_attention_heads=5", "num_attention_heads=5"),
}

NAMES: dict[str, tuple[str, str]] = {
    "a recipe nobody has": ("poolingformer-arxiv-5k", "did you mean"),
    "nothing alike": ("qqqq", "longspan recipes"),
    "nothing": ("", "no recipe"),
    "a folder": ("./", "not a file"),
    "a device": ("/dev/null", "not a file"),
    "NUL": ("a\0b.yaml", "a\\x00b"),
    "a name too long": ("x" * 5000 + ".yaml", "recipe"),
}


def cases() -> dict[str, dict[str, Any]]:
    """All of them for `check_fault`."""
    found: dict[str, dict[str, Any]] = {}
    for key, values in VALUES.items():
        for number, value in enumerate(values):
            part = next(word for word in reversed(key.split(".")) if word.isidentifier())
            found[f"{key} {number}"] = {"recipe": {key: value}, "run": TRAIN, "says": part}
    for name, (text, says) in TEXTS.items():
        found[f"file: {name}"] = {"files": {"recipe.yaml": text}, "run": TRAIN, "says": says}
    for name, (change, says) in CHANGES.items():
        found[f"change: {name}"] = {"recipe": {}, "run": [*TRAIN, change], "says": says}
    for name, (argument, says) in NAMES.items():
        found[f"name: {name}"] = {"run": ["train", argument], "says": says}
    return found


CASES = cases()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fault(case: dict[str, Any], check_fault: Callable[..., str]) -> None:
    line = check_fault(**case)
    assert len(line) < 1000


def test_the_recipe_that_is_changed_is_right(right_recipe: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(right_recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "tiny.yaml").name == "tiny"
