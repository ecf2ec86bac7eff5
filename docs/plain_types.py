"""Types in the reference as a caller thinks of them: `int` where an option says `Annotated[int, Range(1, 100)]`.

The limits stand in the text beside each option, and in the error that says which one was crossed.
"""

from __future__ import annotations

import importlib
import inspect
import re
from types import UnionType
from typing import Any, Union, get_args, get_origin

import griffe

from longspan import settings

ALIASES = {
    name: get_args(kind)[0].__name__
    for name, kind in vars(settings).items()
    if hasattr(kind, "__metadata__") and isinstance(get_args(kind)[0], type)
}
"""Name of a type with limits → the type, such as Count → int."""


def plain(annotation: Any) -> Any:
    """The same annotation without limits."""
    if isinstance(annotation, griffe.ExprSubscript) and annotation.left.canonical_name == "Annotated":
        inner = annotation.slice
        return plain(inner.elements[0] if isinstance(inner, griffe.ExprTuple) else inner)
    if isinstance(annotation, griffe.ExprName) and annotation.name in ALIASES:
        return griffe.ExprName(ALIASES[annotation.name])
    if isinstance(annotation, griffe.ExprBinOp):
        annotation.left, annotation.right = plain(annotation.left), plain(annotation.right)
    if isinstance(annotation, griffe.ExprSubscript):
        annotation.slice = plain(annotation.slice)
    if isinstance(annotation, griffe.ExprTuple):
        annotation.elements = [plain(each) for each in annotation.elements]
    return annotation


def with_options(func: griffe.Function) -> None:
    """Give a function the arguments and the docstring that `longspan.options.expand_options` makes."""
    made: Any = importlib.import_module(func.module.path)
    for name in func.path.removeprefix(f"{func.module.path}.").split("."):
        made = getattr(made, name)
    func.parameters = griffe.Parameters(*map(_parameter, inspect.signature(made).parameters.values()))
    assert func.docstring is not None
    func.docstring.value = inspect.cleandoc(made.__doc__)


def _parameter(parameter: inspect.Parameter) -> griffe.Parameter:
    annotation, default = parameter.annotation, parameter.default
    kind = griffe.ParameterKind(parameter.kind.description)
    return griffe.Parameter(
        parameter.name,
        annotation=None if annotation is inspect.Parameter.empty else _shown(annotation),
        kind=kind,
        default=None if default is inspect.Parameter.empty else repr(default),
    )


def _shown(annotation: Any) -> str:
    """A type as it is written: `str | None`, without modules."""
    if isinstance(annotation, str):
        return annotation
    choices = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    shown = [inspect.formatannotation(choice) for choice in choices if choice is not Any]
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", " | ".join(shown)).replace("NoneType", "None")


class PlainTypes(griffe.Extension):
    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        attr.annotation = plain(attr.annotation)

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        if any(str(decorator.value).startswith("expand_options(") for decorator in func.decorators):
            with_options(func)
        func.returns = plain(func.returns)
        for parameter in func.parameters:
            parameter.annotation = plain(parameter.annotation)
