"""One declaration for a verb: Python, the command line, `map` and the API have its options, with its defaults."""

from __future__ import annotations

import inspect
import json
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
from longspan.options import EVERYWHERE, Option, Options, fields_of, options_from, plain_values, takes
from longspan.settings import Range, Whole
from longspan_documents.inference import verbs
from longspan_documents.mapping.work import VERBS
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


@takes(Trial)
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


def test_plain_data_there_and_back() -> None:
    options = options_from(Trial, {"name": "b", "count": None, "width": 5}, "map")
    assert options == Trial("b", inner=Inner(width=5))
    stated = json.loads(json.dumps(plain_values(options, "map")))
    assert stated == {"name": "b", "width": 5}
    assert options_from(Trial, stated, "map") == options
    assert plain_values(Trial(count=4), "map") == {}
    for values, message in (
        ({"nmae": "b"}, "did you mean 'name'"),
        ({"name": 3}, "name is 3; it must be a text"),
        ({"width": -1}, "width is -1"),
        ({"inner": {}}, "unknown key 'inner'"),
    ):
        with pytest.raises(InputError, match=message):
            options_from(Trial, values, "map")
