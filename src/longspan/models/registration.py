"""Importing this module makes the models known to transformers' Auto classes; `import longspan` does it."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForMaskedLM,
    LongspanForQuestionAnswering,
    LongspanForReplacedTokens,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    LongspanModel,
)

AutoConfig.register(LongspanConfig.model_type, LongspanConfig, exist_ok=True)
AutoModel.register(LongspanConfig, LongspanModel, exist_ok=True)
AutoModelForCausalLM.register(LongspanConfig, LongspanForCausalLM, exist_ok=True)
AutoModelForMaskedLM.register(LongspanConfig, LongspanForMaskedLM, exist_ok=True)
AutoModelForPreTraining.register(LongspanConfig, LongspanForReplacedTokens, exist_ok=True)
AutoModelForSeq2SeqLM.register(LongspanConfig, LongspanForConditionalGeneration, exist_ok=True)
AutoModelForSequenceClassification.register(LongspanConfig, LongspanForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(LongspanConfig, LongspanForTokenClassification, exist_ok=True)
AutoModelForQuestionAnswering.register(LongspanConfig, LongspanForQuestionAnswering, exist_ok=True)
