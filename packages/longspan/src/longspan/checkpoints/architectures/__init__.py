"""The known architectures, and the class that loads a checkpoint; one module per family maps the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar

import transformers
from transformers import PreTrainedModel

import longspan.models
from longspan.checkpoints.mapping import Architecture, Head, InPlace
from longspan.errors import InputError
from longspan.imports import load_plugins
from longspan.models import LongspanConfig, LongspanPreTrainedModel
from longspan.settings import show

_TABLES = {
    "bart": ("bart", "BART"),
    "bert": ("bert", "BERT"),
    "big_bird": ("big_bird", "BIG_BIRD"),
    "bigbird_pegasus": ("big_bird", "BIGBIRD_PEGASUS"),
    "camembert": ("bert", "CAMEMBERT"),
    "deberta": ("deberta", "DEBERTA"),
    "deberta-v2": ("deberta_v2", "DEBERTA_V2"),
    "distilbert": ("bert", "DISTILBERT"),
    "electra": ("bert", "ELECTRA"),
    "led": ("longformer", "LED"),
    "longformer": ("longformer", "LONGFORMER"),
    "marian": ("pegasus", "MARIAN"),
    "mbart": ("bart", "MBART"),
    "pegasus": ("pegasus", "PEGASUS"),
    "reformer": ("reformer", "REFORMER"),
    "roberta": ("bert", "ROBERTA"),
    "xlm-roberta": ("bert", "XLM_ROBERTA"),
}
"""`model_type` of `config.json` → the module of this folder that describes it, and the name there."""
_TABLES_IN_PLACE = {
    "longt5": ("t5", "LONGT5"),
    "modernbert": ("modernbert", "MODERNBERT"),
    "mpnet": ("mpnet", "MPNET"),
    "mt5": ("t5", "MT5"),
    "t5": ("t5", "T5"),
    "umt5": ("t5", "UMT5"),
}
"""The same for those that keep transformers' classes."""


Table = TypeVar("Table")


class _Tables(Mapping[str, Table]):
    """Imports the table of an architecture on access, so that no model loads those of others."""

    def __init__(self, places: Mapping[str, tuple[str, str]]) -> None:
        self._places = places

    def __getitem__(self, model_type: str) -> Table:
        module, name = self._places[model_type]
        return getattr(import_module(f"{__name__}.{module}"), name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


ARCHITECTURES: Mapping[str, Architecture] = _Tables(_TABLES)
"""`model_type` of `config.json` → `Architecture`."""
IN_PLACE: Mapping[str, InPlace] = _Tables(_TABLES_IN_PLACE)
"""`model_type` → `InPlace` of architectures without a class here, which are lengthened in transformers' classes."""

REFUSED = {
    "transfo-xl": "transformers 5 has no class for it; give a directory with its config.json, its weights as "
    "model.safetensors and its words as vocab.txt, which Longspan reads itself",
    **dict.fromkeys(
        _TABLES_IN_PLACE,
        "it has no place in Longspan's blocks; `longspan summarize --model` runs it as transformers has it, and "
        "`longspan lengthen` (longspan.lengthen in Python) lets it read longer texts so",
    ),
    "mpnet": "its relative position biases in addition to a table of positions have no place "
    "in Longspan's blocks; `--encoder` of `longspan embed` and `longspan answer` runs it as transformers has it, "
    "and `longspan lengthen` (longspan.lengthen in Python) lets it read more than its 512 tokens so",
    "modernbert": "its rotary positions, gated feed-forward layers and layers without biases have no place in "
    "Longspan's blocks; `--encoder` of `longspan embed` and `longspan answer` runs it as transformers has it, and "
    "`longspan lengthen` (longspan.lengthen in Python) lets it read more than its 8,192 tokens so",
    "pegasus_x": "`longspan summarize --model` runs it as transformers has it, and reads longer documents in parts",
}
"""`model_type` → why a related architecture is not supported."""


def architecture(model_type: str) -> Architecture:
    """Returns the architecture of that name; raises `InputError` if Longspan does not know it."""
    if model_type in REFUSED:
        raise InputError(f"model_type={model_type!r} is not supported: {REFUSED[model_type]}")
    if model_type not in ARCHITECTURES:
        raise InputError(
            f"model_type={show(model_type)} is not supported; choose one of {', '.join(sorted(ARCHITECTURES))} for "
            f"Longspan's blocks, or for longspan.lengthen also {', '.join(sorted(IN_PLACE))}; "
            "longspan.use_attention(model, 'window(512) | first(4)') gives windows to other decoders and encoders "
            "(GPT-2, Llama, Qwen3, ALBERT, EuroBERT and their like) as transformers has them"
        )
    return ARCHITECTURES[model_type]


def describe(source: PreTrainedModel) -> tuple[Architecture, Head]:
    """Returns the architecture and head of a transformers model; raises `InputError` if Longspan does not know it."""
    known = architecture(source.config.model_type)
    return known, known.head(type(source).__name__)


def natural_architecture(config: Any) -> str:
    """Returns the `model_type` of the first architecture that matches the attention and the conventions of a
    `LongspanConfig`."""
    if config.stack["stack"] == "reversible":
        return "reformer"
    if config.stack["stack"] == "recurrent":
        return "transfo-xl"
    layers = [config.layer_attention(layer) for layer in range(config.num_hidden_layers)]
    fusions = [layer for layer in layers if layer.mechanism == "fusion"]
    if fusions:
        from longspan.checkpoints.architectures.deberta import LATER

        return "deberta-v2" if any(getattr(layer, name) for layer in fusions for name in LATER) else "deberta"
    windowed = any(layer.mechanism != "full" for layer in layers)
    if config.decoder_layers and (config.position_embedding, config.sinusoids) == ("sinusoidal", "halves"):
        return "pegasus" if config.normalization == "pre" else "marian"
    if config.decoder_layers:
        return "led" if windowed else "mbart" if config.normalization == "pre" else "bart"
    if windowed or config.positions_skip_padding:
        return "longformer" if windowed else "roberta"
    if config.embedding_width != config.hidden_size:
        return "electra"
    # BERT always has token types, DistilBERT none.
    return "bert" if config.type_vocab_size else "distilbert"


def class_for(model_type: str, name: str | None) -> type[PreTrainedModel]:
    """Returns the class that loads a checkpoint: transformers' for a published one, ours for our own.

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
