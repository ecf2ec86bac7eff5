"""Types in the reference as a caller thinks of them: `int` where an option says `Annotated[int, Range(1, 100)]`.

The limits stand in the text beside each option, and in the error that says which one was crossed.
"""

from __future__ import annotations

from typing import Any, get_args

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


class PlainTypes(griffe.Extension):
    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        attr.annotation = plain(attr.annotation)

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        func.returns = plain(func.returns)
        for parameter in func.parameters:
            parameter.annotation = plain(parameter.annotation)
