"""Deprecation of public functions, classes and parameters: the old form works and warns until a later release.

```python
@deprecated(since="1.1", removed_in="2.0", use="longspan.lengthen")
def extend(...): ...

@renamed_parameter("tokens", "max_tokens", since="1.1", removed_in="2.0")
def lengthen(model, *, max_tokens): ...
```

The category is `FutureWarning`, as in transformers: Python shows it to users of programs, once for each line that
calls. A test fails as soon as the version of the package reaches `removed_in`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from typing_extensions import deprecated as _deprecated

from longspan.errors import InputError

Deprecated = TypeVar("Deprecated", bound=Callable[..., Any])


def deprecated(*, since: str, removed_in: str, use: str) -> Callable[[Deprecated], Deprecated]:
    """Marks a function or a class: a call, an instance or a subclass warns, as `warnings.deprecated` of Python 3.13.

    Args:
        since: the release that deprecates it.
        removed_in: the release without it, a later major one.
        use: what to use instead.
    """

    def mark(thing: Deprecated) -> Deprecated:
        message = f"{thing.__name__} is deprecated {_when(since, removed_in)}; use {use}"
        return _deprecated(message, category=FutureWarning)(thing)  # type: ignore[arg-type]  # not a literal text

    return mark


def renamed_parameter(
    old: str, new: str, *, since: str, removed_in: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Lets a function take a parameter by its earlier name as well, with a warning.

    Args:
        old: the earlier name, which the function does not have any more.
        new: the name of the function's own parameter.
        since: the release that renames it.
        removed_in: the release that takes the new name alone, a later major one.

    Raises:
        InputError: of the function: both names are given.
    """

    def rename(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if old in options:
                if new in options:
                    raise InputError(f"{old}= is the earlier name of {new}=; give {new}= only")
                message = f"{old}= of {function.__name__} is deprecated {_when(since, removed_in)}; use {new}="
                warnings.warn(message, FutureWarning, stacklevel=2)
                options[new] = options.pop(old)
            return function(*arguments, **options)

        return call

    return rename


def _when(since: str, removed_in: str) -> str:
    return f"since Longspan {since} and will be removed in {removed_in}"
