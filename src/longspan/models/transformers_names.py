"""The names of transformers that Longspan depends on, and the one that differs between its versions.

Versions before 5.24 call the cache of a model `past_key_values`, in `forward`, in `generate` and in outputs; later ones
call it `cache`. Longspan calls it `cache` with every version and takes `past_key_values` as well.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from transformers import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast

from longspan.errors import InputError

NEW_CACHE, OLD_CACHE = "cache", "past_key_values"
CACHE = NEW_CACHE if NEW_CACHE in {field.name for field in fields(BaseModelOutputWithPast)} else OLD_CACHE
"""What the installed transformers calls a cache."""


def cache_field(cache: Cache | None) -> dict[str, Any]:
    """The cache as a field of an output of transformers."""
    return {CACHE: cache}


def cache_from(cache: Cache | None, others: dict[str, Any]) -> Cache | None:
    """The cache that a call was given under either name; `others` loses the old one.

    Raises:
        InputError: both names were given.
    """
    old = others.pop(OLD_CACHE, None)
    if old is not None and cache is not None:
        raise InputError(
            f"{NEW_CACHE} and {OLD_CACHE} are two names of one argument, and both were given; leave one out"
        )
    return cache if old is None else old


class WithCache:
    """An output whose cache is `cache` with every version of transformers, beside the name it has there."""

    if TYPE_CHECKING:
        cache: Cache | None
    elif CACHE != NEW_CACHE:

        @property
        def cache(self) -> Any:
            return getattr(self, CACHE)
