"""Longspan: a long attention span for Transformers.

Importing it makes its models known to transformers' Auto classes, and `attn_implementation="longspan"` to its attention
interface: at once where transformers is there, else as soon as it comes, since importing it takes longer than reading a
short document.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longspan.errors import InputError
from longspan.imports import after_import, announce
from longspan.systems import ADDED
from longspan.version import __version__

if TYPE_CHECKING:
    from longspan import patterns
    from longspan.attention import MECHANISMS, Tokens
    from longspan.checkpoints import decompose, from_transformers, lengthen, to_onnx, to_transformers, use_attention
    from longspan.inference.answer import answer
    from longspan.inference.chunks import PlacedPassage, chunks
    from longspan.inference.classify import DocumentLabel, classify
    from longspan.inference.embed import embed, embed_document
    from longspan.inference.generate import generate
    from longspan.inference.indexing.documents import DocumentIndex, index
    from longspan.inference.pipelines import pipeline
    from longspan.inference.results import DocumentAnswer, Summary
    from longspan.inference.summarize import summarize
    from longspan.mapping.documents import Mapped, map_documents
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
    from longspan.systems.wikihop.choosing import Choice, choose
    from longspan.training.collating import DataCollatorWithGlobalAttention

__all__ = [
    "MECHANISMS",
    "Choice",
    "DataCollatorWithGlobalAttention",
    "DocumentAnswer",
    "DocumentIndex",
    "DocumentLabel",
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
    "Mapped",
    "PlacedPassage",
    "Summary",
    "Tokens",
    "__version__",
    "answer",
    "attend",
    "choose",
    "chunks",
    "classify",
    "decompose",
    "embed",
    "embed_document",
    "from_transformers",
    "generate",
    "index",
    "lengthen",
    "map_documents",
    "patterns",
    "pipeline",
    "register",
    "summarize",
    "to_onnx",
    "to_transformers",
    "use_attention",
]

_MODULES = {
    "attention": ("MECHANISMS", "Tokens"),
    "checkpoints": ("decompose", "from_transformers", "lengthen", "to_onnx", "to_transformers", "use_attention"),
    "inference.answer": ("answer",),
    "systems.wikihop.choosing": ("Choice", "choose"),
    "inference.chunks": ("PlacedPassage", "chunks"),
    "inference.classify": ("DocumentLabel", "classify"),
    "inference.embed": ("embed", "embed_document"),
    "inference.generate": ("generate",),
    "inference.indexing.documents": ("DocumentIndex", "index"),
    "inference.pipelines": ("pipeline",),
    "inference.results": ("DocumentAnswer", "Summary"),
    "inference.summarize": ("summarize",),
    "mapping.documents": ("Mapped", "map_documents"),
    "ops.attend": ("attend",),
    "registering": ("register",),
    "training.collating": ("DataCollatorWithGlobalAttention",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
"""Public name → module that defines it; names that begin with `Longspan` live in `longspan.models`."""


def __getattr__(name: str) -> Any:
    if name == "patterns":
        return import_module("longspan.patterns")
    if name not in __all__:
        raise AttributeError(f"module 'longspan' has no attribute {name!r}")
    value = getattr(import_module(f"longspan.{_HOMES.get(name, 'models')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


for _table, _places in ADDED.items():
    announce(_table, _places)


def _tell_transformers() -> None:
    import_module("longspan.checkpoints")


# The Auto classes read configurations with the first, and every model asks the second for its attention.
after_import(("transformers.models.auto.configuration_auto", "transformers.modeling_utils"), _tell_transformers)


def _add_pipelines() -> None:
    import_module("longspan.inference.registered").register_pipelines()


after_import(("transformers.pipelines",), _add_pipelines)
