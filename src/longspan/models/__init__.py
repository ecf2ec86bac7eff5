"""Hugging Face model classes with a long attention mechanism per layer.

`import longspan` registers them: `AutoConfig`, `AutoModel`, `AutoModelForSeq2SeqLM`, … then load a saved Longspan model
from its folder like any other. `AutoModel` gives the encoder; sentence scoring and Natural Questions have no Auto class
in transformers and are loaded with `LongspanForSentenceScoring.from_pretrained` and the like.

Each class is imported when it is asked for: the networks in here run without transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longspan.models.configuration import LongspanConfig
    from longspan.models.encoder import LongspanModel
    from longspan.models.encoder_decoder import LongspanForConditionalGeneration
    from longspan.models.heads import (
        LongspanForMaskedLM,
        LongspanForQuestionAnswering,
        LongspanForSequenceClassification,
        LongspanForTokenClassification,
    )
    from longspan.models.natural_questions import LongspanForNaturalQuestions
    from longspan.models.outputs import NaturalQuestionsOutput, SentenceScoringOutput
    from longspan.models.pretrained import LongspanPreTrainedModel
    from longspan.models.replaced_tokens import LongspanForReplacedTokens
    from longspan.models.sentence_scoring import LongspanForSentenceScoring

__all__ = [
    "LongspanConfig",
    "LongspanForConditionalGeneration",
    "LongspanForMaskedLM",
    "LongspanForNaturalQuestions",
    "LongspanForQuestionAnswering",
    "LongspanForReplacedTokens",
    "LongspanForSentenceScoring",
    "LongspanForSequenceClassification",
    "LongspanForTokenClassification",
    "LongspanModel",
    "LongspanPreTrainedModel",
    "NaturalQuestionsOutput",
    "SentenceScoringOutput",
]

_HOMES = {
    "LongspanConfig": "configuration",
    "LongspanModel": "encoder",
    "LongspanForConditionalGeneration": "encoder_decoder",
    "LongspanForNaturalQuestions": "natural_questions",
    "LongspanForReplacedTokens": "replaced_tokens",
    "LongspanForSentenceScoring": "sentence_scoring",
    "LongspanPreTrainedModel": "pretrained",
    "NaturalQuestionsOutput": "outputs",
    "SentenceScoringOutput": "outputs",
}
"""Public name → module that defines it; the others live in `heads`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'longspan.models' has no attribute {name!r}")
    value = getattr(import_module(f"longspan.models.{_HOMES.get(name, 'heads')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
