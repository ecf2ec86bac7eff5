"""Options of commands, generated from those that a verb declares (`longspan.options`).

A command whose function takes an `Options` gets an option for each of its fields:

```python
def chunks(inputs: Annotated[list[str], typer.Argument()], options: Chunks, json: Json = False) -> None: ...
```
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from longspan.characters import on_one_line
from longspan.errors import InputError
from longspan.options import Field, Options, fields_of, without_limits
from longspan.settings import LARGEST

LARGEST_LIST = 1 << 16
"""Maximum size in bytes of a file of words."""


@dataclass(frozen=True)
class Declared:
    """Marks an argument that receives a dictionary of the specified options, for fields that are determined late.

    Attributes:
        fields: returns them, each with its help on the command line.
    """

    fields: Callable[[], list[tuple[Field, str]]]


def expanded(function: Callable[..., None]) -> Callable[..., None]:
    """Returns a command's function for typer: with an argument for each field of its `Options`."""
    parameters: list[inspect.Parameter] = []
    makers: dict[str, Callable[[dict[str, Any]], Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        declared, make = _declared(parameter.annotation)
        if make is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        makers[parameter.name] = partial(_taken, [field for field, _ in declared], make)
        parameters += [_parameter(field, help) for field, help in declared]
    if not makers:
        return function

    @wraps(function)
    def command(**values: Any) -> None:
        taken = {name: make(values) for name, make in makers.items()}
        function(**values, **taken)

    command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def option_of(options: type[Options], name: str) -> Any:
    """Returns a declared field as typer's option, for a command with this single option: `Annotated[str | None,
    option_of(…)]`."""
    return get_args(annotation_of(next(field for field in fields_of(options) if field.name == name)))[1]


def _declared(annotation: Any) -> tuple[list[tuple[Field, str]], Callable[[dict[str, Any]], Any] | None]:
    """Returns the fields of an argument with their help, and the function that constructs its value from them."""
    if isinstance(annotation, type) and issubclass(annotation, Options):
        fields = [(field, field.option.help) for field in fields_of(annotation, "command")]
        return fields, lambda values: annotation.parse(values, "command")
    late = next((mark for mark in getattr(annotation, "__metadata__", ()) if isinstance(mark, Declared)), None)
    return ([], None) if late is None else (late.fields(), dict)


def _taken(fields: list[Field], make: Callable[[dict[str, Any]], Any], values: dict[str, Any]) -> Any:
    """Remove the values of some fields from all values, and construct the argument from them."""
    specified = {field.name: values.pop(field.name) for field in fields}
    for field in fields:
        if field.option.from_file and specified[field.name] is not None:
            specified[field.name] = words_in(specified[field.name], field.name.replace("_", "-"))
    return make({name: value for name, value in specified.items() if value is not None and value is not False})


def _parameter(field: Field, help: str) -> inspect.Parameter:
    # Options of a nested object are specified only if one of them is.
    default = None if field.default is MISSING or field.option.from_file or field.group else field.default
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation_of(field, help)
    )


def annotation_of(field: Field, help: str = "") -> Any:
    """Returns a field's type as typer's annotation; `help` replaces that of the field."""
    option, limits = field.option, field.limits
    kind = Path | None if option.from_file else without_limits(field.plain)
    if field.default is MISSING or field.group:
        kind = kind | None
    flags = option.flags or ((f"--{field.name.replace('_', '-')}",) if kind is bool or option.from_file else ())
    stated = field.default not in (None, False, MISSING) and not option.from_file
    shown: bool | str = option.default or (str(field.default) if stated and field.group else stated)
    most = limits.maximum if limits.maximum is not None and limits.maximum < LARGEST else None
    return Annotated[
        kind,
        typer.Option(
            *flags,
            help=help or option.help,
            min=limits.minimum,
            max=most,
            show_default=shown,
            metavar=option.metavar,
        ),
    ]


def words_in(file: Path, flag: str) -> list[str]:
    """Read the words of a file, one per line; lines that begin with "#" are comments.

    Raises:
        InputError: the file cannot be read, is not UTF-8 text, or is larger than any such list.
    """
    from longspan.data.jsonl import check_regular
    from longspan.files import PIPES

    named = f"--{flag} {on_one_line(str(file))}"
    try:
        if not PIPES.fullmatch(str(file)):
            check_regular(file)  # another pipe, or a device, may never end
        with file.open("rb") as opened:
            data = opened.read(LARGEST_LIST + 1)
        lines = data.decode("utf-8-sig").splitlines()
    except InputError as error:
        raise InputError(f"--{flag}: {error}") from error
    except (OSError, ValueError) as error:  # ValueError: bytes that are not UTF-8, or a zero byte in the path
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise InputError(f"{named} cannot be read: {reason}") from error
    if len(data) > LARGEST_LIST:
        raise InputError(f"{named} is longer than {LARGEST_LIST >> 10} KiB; give a list of the words that matter")
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
