"""A verb's options, declared once: the fields of a frozen dataclass, from which every interface to the verb is
generated.

```python
@dataclass(frozen=True)
class Chunks(Options):
    _: KW_ONLY
    overlap: Annotated[Whole, Option("Sentences that a passage repeats of the one before it.")] = 0
```

A field has a type with its limits (`longspan.settings`), a default and an `Option`: the help, and where the field
applies. `expand_options` generates a Python function's keywords from the fields, `longspan.cli.options` the options of
a command; `longspan_documents` generates those of `longspan map` and the requests of its JSON API. Every interface
checks values once, when the object is made: Python by the constructor, the others by `Options.parse`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, fields, replace
from functools import lru_cache, wraps
from inspect import Parameter, Signature
from numbers import Integral, Real
from typing import (
    Annotated,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

from longspan.errors import InputError
from longspan.imports import imported
from longspan.settings import Range, check_keys, convert, hints_of, near

Interface = Literal["python", "command", "map", "api"]
"""An interface of a verb: Python keywords, the command line, `longspan map`, or API requests."""
LOCAL: tuple[Interface, ...] = ("python", "command", "map")
EVERYWHERE: tuple[Interface, ...] = (*LOCAL, "api")


@dataclass(frozen=True)
class Option:
    """The annotation of a field of an `Options`.

    Attributes:
        help: one or two sentences, for every interface.
        python: sentences for Python only, about values that a command line does not accept.
        default: the default in words, if None is replaced by another value later; "" if the help shows none.
        where: the interfaces that have it.
        flags: on the command line, if they differ from `--name`.
        metavar: on the command line.
        from_file: the command line takes a file of words, one per line.
        missing: for a field without a default, the remedy in the error if it is not specified.
        api: limits in requests, if they are narrower.
        check: a function as "module:name" that raises `InputError` for an invalid value; a set of words that it returns
            replaces the value.
    """

    help: str
    python: str = ""
    default: str = ""
    where: tuple[Interface, ...] = LOCAL
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    from_file: bool = False
    missing: str = "give it"
    api: Range | None = None
    check: str = ""


@dataclass(frozen=True)
class Field:
    """A field of an `Options`, with its annotation.

    Attributes:
        name: of the field.
        default: of the field; `MISSING` if it has none.
        hint: its type, with limits.
        keyword: whether it is keyword-only in Python.
        group: the field with the nested `Options` to which it belongs, if nested fields are listed with the others.
    """

    name: str
    default: Any
    hint: Any
    keyword: bool = True
    group: str | None = None

    @property
    def option(self) -> Option:
        """The `Option` of its annotation."""
        found = next(
            (metadata for metadata in getattr(self.hint, "__metadata__", ()) if isinstance(metadata, Option)), None
        )
        assert found is not None, f"{self.name} has no Option"
        return found

    @property
    def plain(self) -> Any:
        """Its type for texts, numbers and lists, without classes that exist only in Python."""
        return _plain(self.hint)

    @property
    def bare(self) -> Any:
        """Its type without limits."""
        return without_limits(self.hint)

    @property
    def limits(self) -> Range:
        """The limits of its values."""
        return next(_ranges(self.hint), Range())


@dataclass(frozen=True)
class Options:
    """The base of declarations. A value with a wrong type or outside its limits raises `InputError` when the object is
    made: by the constructor from values of Python, by `parse` from plain data. Nothing checks it again.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__post_init__" in vars(cls):
            raise TypeError(f"{cls.__qualname__} defines __post_init__, which parse does not call; use check_together")

    def __post_init__(self) -> None:
        """Check the values of every field, then those that belong together."""
        for field in fields_of(type(self)):
            value = _number(getattr(self, field.name))
            if value is not field.default:
                value = convert(field.hint, _checked(field, value), field.name)
            object.__setattr__(self, field.name, value)
        self.check_together()

    def check_together(self) -> None:
        """Check conditions on several fields, whose values have been checked; subclasses extend it."""

    @classmethod
    def parse(cls, values: Mapping[str, Any], interface: Interface) -> Self:
        """Returns options from plain data of a command line, a job or a request; None means that a value is not
        specified.

        Raises:
            InputError: a name is unknown, or a value is wrong or missing.
        """
        known = {field.name: field for field in fields_of(cls, interface)}
        check_keys(values, known)
        specified = {
            # In Python, words may be any iterable; the declaration validates them.
            name: value if known[name].option.from_file else convert(known[name].plain, value, name)
            for name, value in values.items()
            if value is not None
        }
        for name, field in known.items():
            if field.default is MISSING and name not in specified:
                raise InputError(f"{'--' if interface == 'command' else ''}{name} is missing; {field.option.missing}")
        parsed = cls.restore({name: _checked(known[name], value) for name, value in specified.items()}, interface)
        for group in {known[name].group for name in specified} - {None}:
            getattr(parsed, str(group)).check_together()
        parsed.check_together()
        return parsed

    @classmethod
    def restore(cls, values: Mapping[str, Any], interface: Interface) -> Self:
        """Returns the options whose `to_plain` made these values, without checking them again."""
        own: dict[str, Any] = {}
        nested: dict[str, dict[str, Any]] = {}
        for field in fields_of(cls, interface):
            if field.name in values:
                holder = own if field.group is None else nested.setdefault(field.group, {})
                holder[field.name] = _held(field, values[field.name])
        hints = hints_of(cls)
        return _made(cls, own | {group: _made(_options_in(hints[group]), inside) for group, inside in nested.items()})

    def to_plain(self, interface: Interface) -> dict[str, Any]:
        """Returns the options as plain data for an interface, without default values."""
        values: dict[str, Any] = {}
        for field in fields_of(type(self), interface):
            holder = self if field.group is None else getattr(self, field.group)
            value = field.default if holder is None else getattr(holder, field.name)
            if value != field.default:
                values[field.name] = sorted(value) if isinstance(value, frozenset) else value
        return values


AnyOptions = TypeVar("AnyOptions", bound=Options)


def _checked(field: Field, value: Any) -> Any:
    """Returns a value after the `check` of its option, which may replace it by a set of words."""
    if not field.option.check:
        return value
    checked = imported(field.option.check)(value)
    return checked if isinstance(checked, frozenset) else value


def _held(field: Field, value: Any) -> Any:
    """Returns a plain value as an object has it: words as a set, another list as its type is."""
    if not isinstance(value, list):
        return value
    return frozenset(value) if field.option.from_file else tuple(value) if get_origin(field.bare) is tuple else value


def _made(options: type[AnyOptions], values: Mapping[str, Any]) -> AnyOptions:
    """Returns options with checked values and the defaults of the others, without calling the constructor."""
    made = object.__new__(options)
    made.__dict__.update({field.name: field.default for field in fields_of(options)}, **values)
    return made


@lru_cache(maxsize=64)
def fields_of(options: type[Options], interface: Interface | None = None) -> tuple[Field, ...]:
    """Returns the fields of a declaration in an interface, those of the class itself before inherited ones.

    For plain values, a field with a nested `Options` is replaced by its fields.
    """
    hints = hints_of(options)
    order = [name for kind in options.__mro__ for name in vars(kind).get("__annotations__", ())]
    found: list[Field] = []
    for field in sorted(fields(options), key=lambda field: order.index(field.name)):
        inside = _options_in(hints[field.name]) if interface not in (None, "python") else None
        if inside is not None:
            found += [replace(nested, group=field.name) for nested in fields_of(inside, interface)]
        else:
            found.append(Field(field.name, field.default, hints[field.name], bool(field.kw_only)))
    return tuple(field for field in found if interface is None or interface in field.option.where)


Device = Annotated[
    str | None,
    Option(
        "Where models compute: cpu, cuda, cuda:1, mps, …",
        python="As PyTorch names devices; None is the processor.",
        default="cpu",
    ),
]


@dataclass(frozen=True)
class Computing(Options):
    """Device and dtype of models."""

    _: KW_ONLY
    device: Device = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        Option("Type of the weights of models.", python="None is float32.", default="float32"),
    ] = None


# Python ---------------------------------------------------------------------------------------------------------------

P = ParamSpec("P")
O_co = TypeVar("O_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")


class _Expand(Protocol[P, O_co]):
    """From a function of one or two inputs and options to one with the fields of the options as arguments."""

    @overload
    def __call__(self, function: Callable[[A, O_co], R], /) -> Callable[Concatenate[A, P], R]: ...
    @overload
    def __call__(self, function: Callable[[A, B, O_co], R], /) -> Callable[Concatenate[A, B, P], R]: ...


def expand_options(options: Callable[P, AnyOptions]) -> _Expand[P, AnyOptions]:
    """Decorator for a function with an `Options` as its last argument: the fields become arguments.

    Type checkers, `help` and `inspect.signature` show them, and they are appended to `Args` in the docstring.
    """
    assert isinstance(options, type)
    assert issubclass(options, Options)
    kind: type[Options] = options
    known = fields_of(kind, "python")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        *inputs, _ = Signature.from_callable(function).parameters.values()
        positional = [field for field in known if not field.keyword]
        arguments = [*positional, *(field for field in known if field.keyword)]
        signature = Signature(
            [*inputs, *(_parameter(field) for field in arguments)],
            return_annotation=function.__annotations__.get("return", Signature.empty),
        )
        names = list(signature.parameters)

        @wraps(function)
        def call(*values: Any, **named: Any) -> Any:
            for name in named:
                if name not in names:
                    remedy = near(name, names)
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}; {remedy}")
            bound = signature.bind(*values, **named).arguments
            first = [bound.pop(parameter.name) for parameter in inputs]
            return function(*first, kind(**bound))

        call.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}
        call.__annotations__ = {**annotations, "return": signature.return_annotation}
        call.__doc__ = with_arguments(function.__doc__ or "", arguments)
        return call

    return decorate  # pyright: ignore[reportReturnType]


def _parameter(field: Field) -> Parameter:
    kind = Parameter.KEYWORD_ONLY if field.keyword else Parameter.POSITIONAL_OR_KEYWORD
    default = Parameter.empty if field.default is MISSING else field.default
    return Parameter(field.name, kind, default=default, annotation=field.bare)


def with_arguments(docstring: str, arguments: Iterable[Field]) -> str:
    """Returns a docstring in Google's style with further arguments at the end of its `Args`."""
    lines = docstring.splitlines()
    if "    Args:" not in lines:
        return docstring
    begin = lines.index("    Args:") + 1
    end = next((place for place in range(begin, len(lines)) if not lines[place].strip()), len(lines))
    entries = [
        f"        {field.name}: {' '.join(filter(None, (field.option.help, field.option.python)))}"
        for field in arguments
    ]
    return "\n".join([*lines[:end], *entries, *lines[end:]])


# Types ----------------------------------------------------------------------------------------------------------------


def _options_in(hint: Any) -> Any:
    """Returns the `Options` class in a type, or None."""
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    kinds = [kind for kind in (bare, *get_args(bare)) if isinstance(kind, type) and issubclass(kind, Options)]
    return kinds[0] if kinds else None


def _ranges(hint: Any) -> Any:
    if get_origin(hint) is Annotated:
        yield from (limit for limit in get_args(hint)[1:] if isinstance(limit, Range))
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType, Annotated):
        for choice in get_args(hint):
            yield from _ranges(choice)


def _number(value: Any) -> Any:
    """Convert a NumPy number to a Python one."""
    if isinstance(value, int | float):
        return value
    return int(value) if isinstance(value, Integral) else float(value) if isinstance(value, Real) else value


def _plain(hint: Any) -> Any:
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = [choice for choice in choices[1:] if not isinstance(choice, Option)]
        return Annotated[(_plain(choices[0]), *limits)] if limits else _plain(choices[0])
    if origin in (Union, types.UnionType):
        return Union[tuple(_plain(choice) for choice in choices if _is_plain(choice))]  # noqa: UP007
    return list[get_args(hint)[0]] if origin is not None and _is_several(origin) else hint


def _is_plain(hint: Any) -> bool:
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return bare in (int, float, str, bool, type(None)) or get_origin(bare) in (Literal, list, tuple)


def _is_several(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Iterable) and origin is not dict


def without_limits(hint: Any) -> Any:
    """Returns a type without the metadata of `Annotated`."""
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return without_limits(choices[0])
    return Union[tuple(map(without_limits, choices))] if origin in (Union, types.UnionType) else hint  # noqa: UP007
