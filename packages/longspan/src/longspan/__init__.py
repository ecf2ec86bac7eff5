"""Longspan: a long attention span for Transformers.

Importing it makes its models known to transformers' Auto classes, and `attn_implementation="longspan"` to its attention
interface: at once where transformers is there, else as soon as it comes, since importing it takes longer than reading a
short document.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longspan.elsewhere import check_installed
from longspan.errors import InputError
from longspan.imports import Table, after_import
from longspan.version import __version__

if TYPE_CHECKING:
    from longspan import patterns
    from longspan.attention import MECHANISMS, Tokens
    from longspan.checkpoints import decompose, from_transformers, lengthen, to_onnx, to_transformers, use_attention
    from longspan.inference.generate import generate
    from longspan.models import (
        LongspanConfig,
        LongspanForCausalLM,
        LongspanForConditionalGeneration,
        LongspanForMaskedLM,
        LongspanForPrefixLM,
        LongspanForQuestionAnswering,
        LongspanForSentenceEmbedding,
        LongspanForSentenceScoring,
        LongspanForSequenceClassification,
        LongspanForTokenClassification,
        LongspanModel,
    )
    from longspan.ops.attend import attend
    from longspan.registering import register
    from longspan.training.collating import DataCollatorWithGlobalAttention
    from longspan_documents.inference.answer import answer
    from longspan_documents.inference.chunks import PlacedPassage, chunks
    from longspan_documents.inference.classify import DocumentLabel, classify
    from longspan_documents.inference.embed import embed, embed_document
    from longspan_documents.inference.indexing.documents import DocumentIndex, index
    from longspan_documents.inference.pipelines import pipeline
    from longspan_documents.inference.results import DocumentAnswer, Summary
    from longspan_documents.inference.summarize import summarize
    from longspan_documents.mapping.documents import Mapped, map_documents
    from longspan_papers.wikihop.choosing import Choice, choose

__all__ = [
    "MECHANISMS",
    "DataCollatorWithGlobalAttention",
    "InputError",
    "LongspanConfig",
    "LongspanForCausalLM",
    "LongspanForConditionalGeneration",
    "LongspanForMaskedLM",
    "LongspanForPrefixLM",
    "LongspanForQuestionAnswering",
    "LongspanForSentenceEmbedding",
    "LongspanForSentenceScoring",
    "LongspanForSequenceClassification",
    "LongspanForTokenClassification",
    "LongspanModel",
    "Tokens",
    "__version__",
    "attend",
    "decompose",
    "from_transformers",
    "generate",
    "lengthen",
    "patterns",
    "register",
    "to_onnx",
    "to_transformers",
    "use_attention",
]
if TYPE_CHECKING:
    __all__ += [
        "Choice",
        "DocumentAnswer",
        "DocumentIndex",
        "DocumentLabel",
        "Mapped",
        "PlacedPassage",
        "Summary",
        "answer",
        "choose",
        "chunks",
        "classify",
        "embed",
        "embed_document",
        "index",
        "map_documents",
        "pipeline",
        "summarize",
    ]

_MODULES = {
    "attention": ("MECHANISMS", "Tokens"),
    "checkpoints": ("decompose", "from_transformers", "lengthen", "to_onnx", "to_transformers", "use_attention"),
    "inference.generate": ("generate",),
    "models": tuple(name for name in __all__ if name.startswith("Longspan")),
    "ops.attend": ("attend",),
    "registering": ("register",),
    "training.collating": ("DataCollatorWithGlobalAttention",),
}
NAMES: Table[Any] = Table(
    "names", {name: f"longspan.{module}:{name}" for module, names in _MODULES.items() for name in names}
)
"""Public name → what it is; installed packages add theirs, as `longspan-documents` adds `summarize`."""


def __getattr__(name: str) -> Any:
    if name == "patterns":
        return import_module("longspan.patterns")
    if name.startswith("__") or name not in NAMES:
        check_installed(f"longspan.{name}", name)
        raise AttributeError(f"module 'longspan' has no attribute {name!r}")
    value = NAMES[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *NAMES})


def _tell_transformers() -> None:
    import_module("longspan.checkpoints")


# The Auto classes read configurations with the first, and every model asks the second for its attention.
after_import(("transformers.models.auto.configuration_auto", "transformers.modeling_utils"), _tell_transformers)


def _add_pipelines() -> None:
    for register_pipelines in Table[Any]("pipelines", {}).values():
        register_pipelines()


after_import(("transformers.pipelines",), _add_pipelines)
