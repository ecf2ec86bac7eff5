"""Hugging Face model classes with a long attention mechanism per layer.

`import longspan` registers them: `AutoConfig`, `AutoModel`, `AutoModelForSeq2SeqLM`, … then load a saved Longspan model
from its folder like any other. `AutoModel` loads the encoder, and raises for a folder without one. Sentence scoring has
no Auto class in transformers; use `LongspanForSentenceScoring.from_pretrained`.

Each class is imported on first access: the networks here run without transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longspan.imports import Table
from longspan.models.heads import HEADS, HeadSpec
from longspan.settings import entry

if TYPE_CHECKING:
    from longspan.models.configuration import LongspanConfig
    from longspan.models.encoder_decoder import LongspanForConditionalGeneration
    from longspan.models.encoder_model import LongspanModel
    from longspan.models.generation import LongspanTrunk
    from longspan.models.heads.masked_lm import LongspanForMaskedLM
    from longspan.models.heads.question_answering import LongspanForQuestionAnswering
    from longspan.models.heads.sentence_embedding import LongspanForSentenceEmbedding, SentenceEmbeddingOutput
    from longspan.models.heads.sentence_scoring import LongspanForSentenceScoring, SentenceScoringOutput
    from longspan.models.heads.sequence_classification import (
        LongspanForMultipleChoice,
        LongspanForSequenceClassification,
    )
    from longspan.models.heads.token_classification import LongspanForReplacedTokens, LongspanForTokenClassification
    from longspan.models.language_model import LongspanForCausalLM
    from longspan.models.prefix_language_model import LongspanForPrefixLM
    from longspan.models.pretrained import LongspanPreTrainedModel

__all__ = [
    "LongspanConfig",
    "LongspanForCausalLM",
    "LongspanForConditionalGeneration",
    "LongspanForMaskedLM",
    "LongspanForMultipleChoice",
    "LongspanForPrefixLM",
    "LongspanForQuestionAnswering",
    "LongspanForReplacedTokens",
    "LongspanForSentenceEmbedding",
    "LongspanForSentenceScoring",
    "LongspanForSequenceClassification",
    "LongspanForTokenClassification",
    "LongspanModel",
    "LongspanPreTrainedModel",
    "LongspanTrunk",
    "SentenceEmbeddingOutput",
    "SentenceScoringOutput",
]

_HOMES = {
    "LongspanConfig": "configuration",
    "LongspanModel": "encoder_model",
    "LongspanForCausalLM": "language_model",
    "LongspanForConditionalGeneration": "encoder_decoder",
    "LongspanForPrefixLM": "prefix_language_model",
    "LongspanPreTrainedModel": "pretrained",
    "LongspanTrunk": "generation",
    "SentenceEmbeddingOutput": "heads.sentence_embedding",
    "SentenceScoringOutput": "heads.sentence_scoring",
}
"""Public name → module that defines it; the options of a head define its model class."""
_OUTPUTS: Table[Any] = Table("outputs", {})
"""Outputs of heads that installed packages add."""


def model_with(head: str) -> type[LongspanPreTrainedModel]:
    """Returns the model class for the name of a head in `HEADS`."""
    return entry(HEADS, head, "head").model_class()


def tell_transformers() -> None:
    """Registers the configuration and all models with transformers' Auto classes; called by `import longspan`."""
    import transformers

    from longspan.models.card import KINDS
    from longspan.models.configuration import LongspanConfig

    transformers.AutoConfig.register(LongspanConfig.model_type, LongspanConfig, exist_ok=True)
    for name, (auto, _) in KINDS.items():
        if auto is not None:
            getattr(transformers, auto).register(LongspanConfig, __getattr__(name), exist_ok=True)
    for head in HEADS.values():
        tell_of_head(head)


def tell_of_head(head: type[HeadSpec]) -> None:
    """Registers the model class of a head with its Auto class, if it has one."""
    if head.auto is not None:
        import transformers

        from longspan.models.configuration import LongspanConfig

        getattr(transformers, head.auto).register(LongspanConfig, head.model_class(), exist_ok=True)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"longspan.models.{_HOMES[name]}"), name)
    elif (spec := next((spec for spec in HEADS.values() if spec.model == name), None)) is not None:
        value = spec.model_class()
    elif name in _OUTPUTS:
        value = _OUTPUTS[name]
    else:
        raise AttributeError(f"module 'longspan.models' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
