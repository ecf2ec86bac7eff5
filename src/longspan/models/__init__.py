"""Hugging Face model classes with a long attention mechanism per layer.

Importing this package registers them: `AutoConfig`, `AutoModel`, `AutoModelForSeq2SeqLM`, … then load a saved Longspan
model from its folder like any other. `AutoModel` gives the encoder; sentence scoring and Natural Questions have no Auto
class in transformers and are loaded with `LongspanForSentenceScoring.from_pretrained` and the like.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

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

AutoConfig.register(LongspanConfig.model_type, LongspanConfig, exist_ok=True)
AutoModel.register(LongspanConfig, LongspanModel, exist_ok=True)
AutoModelForMaskedLM.register(LongspanConfig, LongspanForMaskedLM, exist_ok=True)
AutoModelForPreTraining.register(LongspanConfig, LongspanForReplacedTokens, exist_ok=True)
AutoModelForSeq2SeqLM.register(LongspanConfig, LongspanForConditionalGeneration, exist_ok=True)
AutoModelForSequenceClassification.register(LongspanConfig, LongspanForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(LongspanConfig, LongspanForTokenClassification, exist_ok=True)
AutoModelForQuestionAnswering.register(LongspanConfig, LongspanForQuestionAnswering, exist_ok=True)

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
