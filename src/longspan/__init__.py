"""Longspan: a long attention span for Transformers.

The public names below are loaded when they are first used, so that `import longspan` and `longspan --help` stay
quick; torch and transformers are imported only by what needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longspan.errors import InputError

if TYPE_CHECKING:
    from longspan import patterns
    from longspan.attention import MECHANISMS, Tokens
    from longspan.checkpoints import from_transformers, lengthen, to_transformers, use_attention
    from longspan.models import (
        LongspanConfig,
        LongspanForConditionalGeneration,
        LongspanForMaskedLM,
        LongspanForQuestionAnswering,
        LongspanForSentenceScoring,
        LongspanForSequenceClassification,
        LongspanForTokenClassification,
        LongspanModel,
    )
    from longspan.ops.attend import attend
    from longspan.summaries import Summary, summarize

__version__ = "0.1.0"

__all__ = [
    "MECHANISMS",
    "InputError",
    "LongspanConfig",
    "LongspanForConditionalGeneration",
    "LongspanForMaskedLM",
    "LongspanForQuestionAnswering",
    "LongspanForSentenceScoring",
    "LongspanForSequenceClassification",
    "LongspanForTokenClassification",
    "LongspanModel",
    "Summary",
    "Tokens",
    "__version__",
    "attend",
    "from_transformers",
    "lengthen",
    "patterns",
    "summarize",
    "to_transformers",
    "use_attention",
]

_HOMES = {
    "attend": "longspan.ops.attend",
    "MECHANISMS": "longspan.attention",
    "Tokens": "longspan.attention",
    "from_transformers": "longspan.checkpoints",
    "to_transformers": "longspan.checkpoints",
    "lengthen": "longspan.checkpoints",
    "use_attention": "longspan.checkpoints",
    "summarize": "longspan.summaries",
    "Summary": "longspan.summaries",
}
"""Public name → module that defines it; names that begin with `Longspan` live in `longspan.models`."""


def __getattr__(name: str) -> Any:
    if name == "patterns":
        return import_module("longspan.patterns")
    if name not in __all__:
        raise AttributeError(f"module 'longspan' has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "longspan.models")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
