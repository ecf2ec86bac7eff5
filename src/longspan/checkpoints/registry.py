"""Which architectures are known, and which class loads a checkpoint."""

from __future__ import annotations

import transformers
from transformers import PreTrainedModel

import longspan.models
from longspan.checkpoints.architectures.bart import BART, MBART
from longspan.checkpoints.architectures.bert import BERT
from longspan.checkpoints.architectures.big_bird import BIG_BIRD
from longspan.checkpoints.architectures.bigbird_pegasus import BIGBIRD_PEGASUS
from longspan.checkpoints.architectures.deberta import DEBERTA
from longspan.checkpoints.architectures.deberta_v2 import DEBERTA_V2
from longspan.checkpoints.architectures.distilbert import DISTILBERT
from longspan.checkpoints.architectures.electra import ELECTRA
from longspan.checkpoints.architectures.led import LED
from longspan.checkpoints.architectures.longformer import LONGFORMER
from longspan.checkpoints.architectures.reformer import REFORMER
from longspan.checkpoints.architectures.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from longspan.checkpoints.mapping import Architecture, Head
from longspan.errors import InputError
from longspan.imports import load_plugins
from longspan.models import LongspanConfig, LongspanPreTrainedModel
from longspan.settings import show

ARCHITECTURES: dict[str, Architecture] = {
    architecture.model_type: architecture
    for architecture in (
        BART,
        BERT,
        BIG_BIRD,
        BIGBIRD_PEGASUS,
        CAMEMBERT,
        DEBERTA,
        DEBERTA_V2,
        DISTILBERT,
        ELECTRA,
        LED,
        LONGFORMER,
        MBART,
        REFORMER,
        ROBERTA,
        XLM_ROBERTA,
    )
}
"""`model_type` of `config.json` → what is known of it."""

REFUSED = {
    "transfo-xl": "transformers 5 has no class for it; give a directory with its config.json, its weights as "
    "model.safetensors and its words as vocab.txt, which Longspan reads itself",
    "modernbert": "its rotary positions, gated feed-forward layers and layers without biases have no place in "
    "Longspan's blocks; it reads 8192 tokens as it is, in transformers",
}
"""`model_type` → why a neighbour of these is not among them."""


def architecture(model_type: str) -> Architecture:
    """The architecture of that name; `InputError` when Longspan does not know it."""
    if model_type in REFUSED:
        raise InputError(f"model_type={model_type!r} is not supported: {REFUSED[model_type]}")
    if model_type not in ARCHITECTURES:
        raise InputError(
            f"model_type={show(model_type)} is not supported; choose one of {', '.join(sorted(ARCHITECTURES))}"
        )
    return ARCHITECTURES[model_type]


def describe(source: PreTrainedModel) -> tuple[Architecture, Head]:
    """The architecture and head of a transformers model; `InputError` when Longspan does not know it."""
    known = architecture(source.config.model_type)
    return known, known.head(type(source).__name__)


def class_for(model_type: str, name: str | None) -> type[PreTrainedModel]:
    """The class that loads a checkpoint: transformers' for a published one, ours for our own.

    `name` is the first of its `architectures`; `None` means the model without a head.
    """
    if model_type == LongspanConfig.model_type:
        ours = getattr(longspan.models, name or "LongspanModel", None)
        if ours is None:
            load_plugins()
            ours = getattr(longspan.models, str(name), None)
        if not (isinstance(ours, type) and issubclass(ours, LongspanPreTrainedModel)):
            raise InputError(f"architecture {name!r} is not a Longspan model; see longspan.models for those that are")
        return ours
    known = architecture(model_type)
    name = name or next(key for key in known.heads if key.endswith("Model"))
    known.head(name)
    return getattr(transformers, name)
