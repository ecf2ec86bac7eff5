"""Importing this module makes the models known to transformers' Auto classes; `import longspan` does it."""

import transformers

from longspan import models
from longspan.models.heads import HEADS, HeadSpec

transformers.AutoConfig.register(models.LongspanConfig.model_type, models.LongspanConfig, exist_ok=True)
transformers.AutoModel.register(models.LongspanConfig, models.LongspanModel, exist_ok=True)
transformers.AutoModelForCausalLM.register(models.LongspanConfig, models.LongspanForCausalLM, exist_ok=True)
transformers.AutoModelForSeq2SeqLM.register(
    models.LongspanConfig, models.LongspanForConditionalGeneration, exist_ok=True
)


def tell_transformers(spec: type[HeadSpec]) -> None:
    """Have the Auto class of a head, if it has one, load its model class."""
    if spec.auto is not None:
        getattr(transformers, spec.auto).register(models.LongspanConfig, spec.model_class(), exist_ok=True)


for _spec in HEADS.values():
    tell_transformers(_spec)
