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
    from longspan.models.heads.classification import (
        LongspanForMaskedLM,
        LongspanForQuestionAnswering,
        LongspanForSequenceClassification,
        LongspanForTokenClassification,
    )
    from longspan.models.heads.natural_questions import LongspanForNaturalQuestions
    from longspan.models.heads.replaced_tokens import LongspanForReplacedTokens
    from longspan.models.heads.sentence_scoring import LongspanForSentenceScoring
    from longspan.models.language_model import LongspanForCausalLM
    from longspan.models.outputs import NaturalQuestionsOutput, SentenceScoringOutput
    from longspan.models.pretrained import LongspanPreTrainedModel

__all__ = [
    "LongspanConfig",
    "LongspanForCausalLM",
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
    "LongspanForCausalLM": "language_model",
    "LongspanForConditionalGeneration": "encoder_decoder",
    "LongspanForNaturalQuestions": "heads.natural_questions",
    "LongspanForReplacedTokens": "heads.replaced_tokens",
    "LongspanForSentenceScoring": "heads.sentence_scoring",
    "LongspanPreTrainedModel": "pretrained",
    "NaturalQuestionsOutput": "outputs",
    "SentenceScoringOutput": "outputs",
}
"""Public name → module that defines it; the others live in `heads`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'longspan.models' has no attribute {name!r}")
    value = getattr(import_module(f"longspan.models.{_HOMES.get(name, 'heads.classification')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
