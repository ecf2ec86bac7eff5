"""Longspan: a long attention span for Transformers.

Importing it makes its models known to transformers' Auto classes, and `attn_implementation="longspan"` to its attention
interface. Only the command line leaves that to the commands that need it, so that `longspan --help` comes at once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.errors import InputError

if TYPE_CHECKING:
    from longspan import patterns
    from longspan.attention import MECHANISMS, Tokens
    from longspan.checkpoints import from_transformers, lengthen, to_onnx, to_transformers, use_attention
    from longspan.inference.answer import DocumentAnswer, answer
    from longspan.inference.summarize import Summary, summarize
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
    from longspan.registering import register

__version__ = "0.2.0"

__all__ = [
    "MECHANISMS",
    "DocumentAnswer",
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
    "answer",
    "attend",
    "from_transformers",
    "lengthen",
    "patterns",
    "register",
    "summarize",
    "to_onnx",
    "to_transformers",
    "use_attention",
]

_HOMES = {
    "attend": "longspan.ops.attend",
    "register": "longspan.registering",
    "MECHANISMS": "longspan.attention",
    "Tokens": "longspan.attention",
    "from_transformers": "longspan.checkpoints",
    "to_transformers": "longspan.checkpoints",
    "lengthen": "longspan.checkpoints",
    "to_onnx": "longspan.checkpoints",
    "use_attention": "longspan.checkpoints",
    "answer": "longspan.inference.answer",
    "DocumentAnswer": "longspan.inference.answer",
    "summarize": "longspan.inference.summarize",
    "Summary": "longspan.inference.summarize",
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


def _runs_as_command() -> bool:
    """Whether this process is `longspan …` or `python -m longspan.…`."""
    name = (sys.argv or [""])[0]
    # While Python still looks for the module of `-m`, `-m` stands for its name.
    module = next((after for flag, after in pairwise(sys.orig_argv) if name == flag == "-m"), "")
    return Path(name).stem == "longspan" or module.startswith("longspan.")


if not _runs_as_command():
    # A lazy import would be quicker, but then `AutoModel.from_pretrained(a Longspan folder)` would work or fail by
    # whether some name of ours had been used before.
    import_module("longspan.checkpoints")
