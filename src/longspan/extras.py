"""Optional libraries, imported on first use, with one clear error where they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from longspan.errors import InputError


def require(module: str, *, extra: str, purpose: str) -> Any:
    """Import an optional library; `InputError` names the extra that brings it.

    Args:
        module: what to import, such as "bs4".
        extra: the extra of this package that installs it.
        purpose: what needs it, as the subject of the sentence: "reading HTML".
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{purpose} needs the {extra!r} extra; install it with: pip install 'longspan[{extra}]'"
        ) from error
