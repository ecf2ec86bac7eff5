"""Importing this module makes the models known to transformers' Auto classes; `import longspan` does it."""

import transformers

from longspan import models
from longspan.models.heads import HEADS

transformers.AutoConfig.register(models.LongspanConfig.model_type, models.LongspanConfig, exist_ok=True)
transformers.AutoModel.register(models.LongspanConfig, models.LongspanModel, exist_ok=True)
transformers.AutoModelForCausalLM.register(models.LongspanConfig, models.LongspanForCausalLM, exist_ok=True)
transformers.AutoModelForSeq2SeqLM.register(
    models.LongspanConfig, models.LongspanForConditionalGeneration, exist_ok=True
)
for _spec in HEADS.values():
    if _spec.auto is not None:
        _auto = getattr(transformers, _spec.auto)
        _auto.register(models.LongspanConfig, models.model_with(_spec.head), exist_ok=True)
