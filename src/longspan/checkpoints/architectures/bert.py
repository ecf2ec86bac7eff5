"""BERT: positions from row 0, a pooler that classification reads."""

from __future__ import annotations

from longspan.checkpoints.architectures import encoder_tables as encoder
from longspan.checkpoints.mapping import Architecture, Head

CLASSIFICATION = encoder.classifier((("classifier", "classifier.output"),), {"pooler": True}, layers="pooler")

BERT = Architecture(
    model_type="bert",
    prefix="bert",
    body=encoder.BODY,
    heads={
        **encoder.heads("Bert", Head("LongspanForMaskedLM", encoder.BERT_MASKED_LM), CLASSIFICATION),
        "BertForPreTraining": encoder.PRETRAINING,
    },
    names=encoder.NAMES,
    fixed=encoder.FIXED,
    read=encoder.read,
    write=encoder.write,
)
