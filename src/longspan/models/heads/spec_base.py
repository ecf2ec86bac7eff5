"""The base of what each head can be told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from longspan.settings import check


@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """Base of every head's options: frozen, keyword-only, every field with a default."""

    head: ClassVar[str]
    """The key under which `HEADS` lists it."""
    model: ClassVar[str]
    """The model class, in the file beside this one that has the head's name."""
    auto: ClassVar[str | None] = None
    """The Auto class of transformers that loads it."""
    pipeline: ClassVar[str | None] = None
    """The Hub's name for what it does."""

    earlier_defaults: ClassVar[Mapping[str, Any]] = {}
    """As in `AttentionConfig`: what options left out of a folder stood for up to version 0.2."""

    def __post_init__(self) -> None:
        """Refuse what is not of its field's type, or outside its limits."""
        check(self)

    def check_model(self, config: Any) -> None:
        """Raise `InputError` where a model of `config` cannot carry this head."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data with the head's name first; `head_spec` reverses it."""
        return {"head": self.head, **json.loads(json.dumps(asdict(self)))}
