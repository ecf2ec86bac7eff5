"""Importing this module makes the models known to transformers' Auto classes; `import longspan` does it."""

import transformers

from longspan import models
from longspan.models.heads import HEADS

transformers.AutoConfig.register(models.LongspanConfig.model_type, models.LongspanConfig, exist_ok=True)
transformers.AutoModel.register(models.LongspanConfig, models.LongspanModel, exist_ok=True)
transformers.AutoModelForSeq2SeqLM.register(
    models.LongspanConfig, models.LongspanForConditionalGeneration, exist_ok=True
)
for _spec in HEADS.values():
    if _spec.auto is not None:
        _model = getattr(models, _spec.model.partition(":")[2])
        getattr(transformers, _spec.auto).register(models.LongspanConfig, _model, exist_ok=True)
