"""Changes of plain data by dotted path, and stages that change one another, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from longspan.changes import assign, is_factor, stages_of
from longspan.errors import InputError

RECIPE: dict[str, Any] = {
    "task": {"name": "language_model", "max_tokens": 64},
    "model": {
        "attention": [
            {"layers": "0-1", "left_tokens": {"per_layer": [4, 8]}, "dilation": [1, 2]},
            {"layers": "2-3", "left_tokens": {"2": 16, "3": 32}},
        ]
    },
    "optimisation": {"steps": 10, "learning_rate": 0.5, "epochs": None, "bf16": True},
}


def stages(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    return stages_of({**RECIPE, "stages": list(changes), "smoke": {"task.max_tokens": 8}})


def test_each_stage_changes_the_one_before_it() -> None:
    double = {"task.max_tokens": "x2", "model.attention.left_tokens": "x 2", "optimisation.learning_rate": "/2"}
    first, second, third = stages({}, double, {**double, "task.max_tokens": 100, "optimisation.steps": "x1.5"})
    assert first == RECIPE
    assert second["model"]["attention"][0]["left_tokens"] == {"per_layer": [8, 16]}
    assert third["model"]["attention"][1] == {"layers": "2-3", "left_tokens": {"2": 64, "3": 128}}
    assert third["model"]["attention"][0]["dilation"] == [1, 2]
    assert [stage["task"]["max_tokens"] for stage in (first, second, third)] == [64, 128, 100]
    assert [stage["optimisation"]["learning_rate"] for stage in (first, second, third)] == [0.5, 0.25, 0.125]
    assert third["optimisation"]["steps"] == 15
    assert stages() == [RECIPE]


def test_a_path_into_a_list_is_one_into_its_entries() -> None:
    data: dict[str, Any] = {"layers": [{"left": 1}, {"right": 2}], "text": "a", "none": None}
    assign(data, "layers.left", 7)
    assign(data, "none.new", 3)
    assert data == {"layers": [{"left": 7}, {"right": 2, "left": 7}], "text": "a", "none": {"new": 3}}
    with pytest.raises(InputError, match=r"'text.size' cannot be set, because 'text' is 'a' and not a mapping"):
        assign(data, "text.size", 7)


@pytest.mark.parametrize("value", ["x2", "/2", "x0.5", "/ 1.25"])
def test_factors(value: str) -> None:
    assert is_factor(value)


@pytest.mark.parametrize("value", ["2", "x", "y2", "x-1", "x2 ", 2, None])
def test_no_factors(value: Any) -> None:
    assert not is_factor(value)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("task.max_tokens", "x1.3", r"stages\[1\].task.max_tokens cannot be changed: x1.3 of 64 is 83.2, which is no"),
        ("task.max_tokens", "/0", "'/0' is no factor; give one above 0"),
        ("task.name", "x2", "'x2' is a factor, but 'language_model' is no number; give the new value itself"),
        ("optimisation.bf16", "x2", "but True is no number"),
        ("optimisation.epochs", "x2", "'x2' is a factor, but the recipe has no number there; write the number into"),
        ("task.context", "/2", "the recipe has no number there"),
    ],
)
def test_changes_that_cannot_be_made(key: str, value: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        stages({}, {key: value})
