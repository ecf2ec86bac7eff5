"""One declaration for a verb: Python, the command line, `map` and the API have its options, with its defaults."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import typer

import longspan
from longspan.cli import COMMANDS
from longspan.cli.options import expanded
from longspan.errors import InputError
from longspan.options import EVERYWHERE, Option, Options, expand_options, fields_of
from longspan.settings import Range, Whole, convert
from longspan_documents.inference import verbs
from longspan_documents.mapping.work import VERBS, verb_of
from longspan_papers.verbs import Coref

PYTHON: dict[str, tuple[Callable[..., Any], type[Options]]] = {
    "summarize": (longspan.summarize, verbs.Summarize),
    "answer": (longspan.answer, verbs.Answer),
    "embed": (longspan.embed, verbs.EmbedTexts),
    "embed_document": (longspan.embed_document, verbs.Embed),
    "classify": (longspan.classify, verbs.Classify),
    "chunks": (longspan.chunks, verbs.Chunks),
    "index": (longspan.index, verbs.Index),
}
COMMAND: dict[str, type[Options]] = {
    "summarize": verbs.Summarize,
    "answer": verbs.Answer,
    "embed": verbs.Embed,
    "classify": verbs.Classify,
    "chunks": verbs.Chunks,
    "index": verbs.Index,
    "coref": Coref,
}


@dataclass(frozen=True)
class Inner(Options):
    """Options in an object."""

    _: KW_ONLY
    width: Annotated[Whole, Option("Of it.", where=("map",))] = 3


@dataclass(frozen=True)
class Trial(Options):
    """Every kind of field."""

    name: Annotated[str | Path | None, Option("A name.")] = None
    _: KW_ONLY
    count: Annotated[Annotated[int, Range(2, 9)], Option("A count.", python="Of things.", where=EVERYWHERE)] = 4
    inner: Annotated[Inner | None, Option("An object.", where=("python",))] = None


@expand_options(Trial)
def trial(text: str, options: Trial) -> tuple[str, Trial]:
    """Try it.

    Args:
        text: any.

    Returns:
        Both.
    """
    return text, options


@pytest.mark.parametrize("name", PYTHON)
def test_python_has_every_field_with_its_default(name: str) -> None:
    function, declared = PYTHON[name]
    parameters = inspect.signature(function).parameters
    for field in fields_of(declared, "python"):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        assert parameters[field.name].default == default
        assert f"        {field.name}: {field.option.help}" in (function.__doc__ or "")


@pytest.mark.parametrize("name", COMMAND)
def test_the_command_line_has_every_field(name: str) -> None:
    app = typer.Typer()
    app.command(name)(expanded(COMMANDS[name]))
    parameters = {one.name: one for one in typer.main.get_command(app).params}
    for field in fields_of(COMMAND[name], "command"):
        assert parameters[field.name].help == field.option.help  # type: ignore[union-attr]


def test_map_has_every_field_of_every_verb() -> None:
    app = typer.Typer()
    app.command("map")(expanded(COMMANDS["map"]))
    parameters = {one.name: one for one in typer.main.get_command(app).params}
    flags = [flag for one in parameters.values() for flag in one.opts]
    assert len(flags) == len(set(flags))  # no verb takes another's option away
    for kind in VERBS.values():
        for field in fields_of(kind.declared, "map"):
            assert field.option.help in parameters[field.name].help  # type: ignore[union-attr]


def test_the_api_has_every_field_with_its_limits() -> None:
    requests = pytest.importorskip("longspan_documents.serve.requests")
    for request, declared in (
        (requests.SummaryRequest, verbs.Summarize),
        (requests.AnswerRequest, verbs.Answer),
        (requests.EmbedRequest, verbs.Embed),
        (requests.ChunksRequest, verbs.Chunks),
    ):
        schema = request.model_json_schema()["properties"]
        fields = fields_of(declared, "api")
        assert fields
        for field in fields:
            assert schema[field.name]["description"] == field.option.help
            assert schema[field.name]["default"] == field.default
    top = requests.AnswerRequest.model_json_schema()["properties"]["top"]
    assert (top["minimum"], top["maximum"]) == (1, 100)


def test_python_takes_the_fields_by_place_and_by_name() -> None:
    assert trial("a", "b", count=5) == ("a", Trial("b", count=5))
    assert trial(text="a", count=np.int64(5)) == ("a", Trial(count=5))  # type: ignore[call-arg]
    assert "        text: any.\n        name: A name.\n        count: A count. Of things.\n" in (trial.__doc__ or "")
    with pytest.raises(TypeError, match="unexpected keyword argument 'cuont'; did you mean 'count'"):
        trial("a", cuont=5)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="count is 1; it must be at least 2"):
        trial("a", count=1)


@dataclass(frozen=True)
class Pair(Options):
    """Two fields that belong together."""

    _: KW_ONLY
    low: Annotated[Whole, Option("The lower.", where=EVERYWHERE)] = 0
    high: Annotated[Whole, Option("The higher.", where=EVERYWHERE)] = 9

    def check_together(self) -> None:
        if self.low > self.high:
            raise InputError(f"low is {self.low}, above high, {self.high}; exchange them")


@expand_options(Pair)
def pair_of(text: str, options: Pair) -> Pair:
    assert text
    return options


def python_pair(**values: Any) -> Pair:
    return pair_of("a", **values)


def command_pair(**values: Any) -> Pair:
    made: list[Pair] = []

    def pair(options: Pair) -> None:
        made.append(options)

    pair.__annotations__["options"] = Pair
    expanded(pair)(**{"low": 0, "high": 9} | values)
    return made[0]


def map_pair(**values: Any) -> Pair:
    """Options of `map` are made from a job's plain data again, in another process."""
    stated = Pair.parse(values, "map").to_plain("map")
    return Pair.restore(json.loads(json.dumps(stated)), "map")


def api_pair(**values: Any) -> Pair:
    requests = pytest.importorskip("longspan_documents.serve.requests")
    request = requests.with_options(Pair)(requests.StrictRequest)
    stated = requests.options_in(request(**values), Pair).to_plain("api")
    return Pair.restore(json.loads(json.dumps(stated)), "api")


@pytest.mark.parametrize("surface", [python_pair, command_pair, map_pair, api_pair])
def test_every_interface_checks_a_value_once(surface: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    def counting(hint: Any, value: Any, path: str) -> Any:
        checked.append(path)
        return convert(hint, value, path)

    monkeypatch.setattr("longspan.options.convert", counting)
    assert surface(low=3) == Pair(low=3)
    checked.clear()
    assert surface(low=3).low == 3
    assert checked.count("low") == 1
    with pytest.raises(InputError, match="low is 10, above high, 9; exchange them"):
        surface(low=10)


def test_a_declaration_cannot_hide_its_checks_from_plain_data() -> None:
    with pytest.raises(TypeError, match=r"Hidden defines __post_init__, which parse does not call; use check_together"):

        class Hidden(Pair):
            def __post_init__(self) -> None: ...


@pytest.mark.parametrize(("value", "shown"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_numbers_that_are_not_finite_are_named(value: float, shown: str) -> None:
    requests = pytest.importorskip("longspan_documents.serve.requests")
    with pytest.raises(InputError, match=f"^threshold is {shown}; it must be a finite number$"):
        longspan.answer("Marmots sleep.", "who sleeps?", threshold=value)
    with pytest.raises(InputError, match=f"^threshold is {shown}; it must be a finite number$"):
        verb_of("answer", {"question": "who sleeps?", "threshold": value})
    with pytest.raises(ValueError, match="Input should be a finite number"):
        requests.AnswerRequest(question="who sleeps?", threshold=value)


def test_plain_data_there_and_back() -> None:
    options = Trial.parse({"name": "b", "count": None, "width": 5}, "map")
    assert options == Trial("b", inner=Inner(width=5))
    stated = json.loads(json.dumps(options.to_plain("map")))
    assert stated == {"name": "b", "width": 5}
    assert Trial.restore(stated, "map") == options
    assert Trial(count=4).to_plain("map") == {}
    for values, message in (
        ({"nmae": "b"}, "did you mean 'name'"),
        ({"name": 3}, "name is 3; it must be a text"),
        ({"width": -1}, "width is -1"),
        ({"inner": {}}, "unknown key 'inner'"),
    ):
        with pytest.raises(InputError, match=message):
            Trial.parse(values, "map")
