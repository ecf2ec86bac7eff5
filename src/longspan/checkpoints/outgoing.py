"""Longspan models back out: `to_transformers`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import transformers
from transformers import PreTrainedModel

from longspan.checkpoints import registry
from longspan.checkpoints.architectures.natural import natural_architecture
from longspan.checkpoints.incoming import carry_over
from longspan.checkpoints.mapping import Architecture, Head, reverse, transfer
from longspan.checkpoints.plain_folders import PLAIN
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanPreTrainedModel
from longspan.settings import check_kind


def to_transformers(model: LongspanPreTrainedModel, architecture: str | None = None) -> PreTrainedModel:
    """Turn a Longspan model into the transformers model with equal outputs, ready for `save_pretrained`.

    Args:
        model: a model whose mechanism transformers has: full attention (BART, mBART, RoBERTa, XLM-R, CamemBERT, BERT,
            DistilBERT, ELECTRA), symmetric undilated windows (LED, Longformer), random="transformers" (BigBird,
            BigBird-Pegasus), chunks="published" in reversible layers (Reformer), or fusion in one level with a window
            over the whole input (DeBERTa, DeBERTa-v2).
        architecture: the `model_type` to make; `None` takes the one that the model came from where that can still say
            everything, and else chooses by the configuration.

    Returns:
        The model in evaluation mode. Except in Longformer's heads, transformers chooses no global tokens by itself:
        pass it the `global_attention_mask` that `config.global_tokens` stands for here.

    Raises:
        InputError: the mechanism, or another setting, does not exist in that architecture.
    """
    if not isinstance(model, LongspanPreTrainedModel):
        raise InputError(f"model={type(model).__name__} is not a Longspan model; to_transformers converts only those")
    known, name, head, config = _exported(model, architecture)
    target = getattr(transformers, name)(config).to(device=model.device, dtype=model.dtype)
    pairs = known.pairs(head, target)
    ours = {name: tensor for name, tensor in model.state_dict().items() if not known.leaves(name)}
    plain = known.unpack(target.state_dict(), config)
    left = set(transfer(ours, plain, reverse(pairs), reserved=model.config.position_offset))
    known.pack(plain, target.state_dict(), config)
    poolers = {tensor for tensor in left if ".pooler." in f".{tensor}"}
    if poolers:
        target.base_model.pooler = None
    if left := left - poolers:
        raise InputError(
            f"{name} of transformers has {min(left)}, for which this model has nothing; "
            f"{known.model_type} cannot represent it"
        )
    carry_over(model, target)
    return target.eval()


def _exported(model: LongspanPreTrainedModel, architecture: str | None) -> tuple[Architecture, str, Head, Any]:
    """The architecture to make, the name of its class, its head and the configuration in its words.

    Left to itself, a model returns as the architecture that it came from where that still says everything, and else as
    the one that its configuration looks like.
    """
    if architecture is not None:
        check_kind(architecture, "architecture", str, "the model_type of an architecture of transformers")
    natural = architecture or natural_architecture(model.config)
    if natural in PLAIN:
        raise InputError(
            f"transformers 5 has no class for {natural!r}; write the model as published with "
            "longspan.checkpoints.save_published(model, DIR)"
        )
    source = model.config.source_model_type
    if architecture is None and source in registry.ARCHITECTURES and source != natural:
        with suppress(InputError):
            return _exported(model, source)
    known = registry.architecture(natural)
    name, head = _class_with(known, type(model).__name__)
    kept = (model.config.source_fields or {}) if known.model_type == source else {}
    config = getattr(transformers, name).config_class(
        **{**kept, **known.export(model.config), **head.export(model.config)}
    )
    _check_says_everything(model.config, known, head, config)
    return known, name, head, config


def _class_with(known: Architecture, ours: str) -> tuple[str, Head]:
    """The first transformers class that becomes our class `ours`."""
    for name, head in known.heads.items():
        if head.longspan == ours:
            return name, head
    raise InputError(f"{ours} has no counterpart among the {known.model_type} classes of transformers")


def _check_says_everything(config: LongspanConfig, known: Architecture, head: Head, exported: Any) -> None:
    """Read the exported configuration back: whatever does not return as it was cannot be represented."""
    fields = {**known.fields(exported), **head.fields_of(exported)}
    back = LongspanConfig(**fields)
    for name in dict.fromkeys((*fields, "stack")):
        ours, theirs = _value(config, name), _value(back, name)
        if ours == theirs or name == "global_tokens" or name in known.checked:
            continue
        # LED's tables have no reserved rows; a model that never reads them (BART's) loses nothing with them.
        if name == "position_offset" and theirs == 0 and not config.positions_skip_padding:
            continue
        raise InputError(
            f"{name}={ours!r} cannot be represented by transformers' {known.model_type}, which has {theirs!r}"
        )


def _value(config: LongspanConfig, name: str) -> Any:
    if name == "attention":
        return [config.layer_attention(layer).to_dict() for layer in range(config.num_hidden_layers)]
    if name == "embedding_size":
        return config.embedding_width
    return _head(config) if name == "head" else getattr(config, name)


def _head(config: LongspanConfig) -> dict[str, Any] | None:
    """The head's options with what they mean where they leave it to others, without those that nothing reads."""
    if config.head is None:
        return None
    options = dict(config.head)
    if "activation" in options:
        options["activation"] = options["activation"] or config.activation_function
    otherwise = config.dropout
    for name in ("dropout", "input_dropout"):
        if name in options:
            options[name] = otherwise = otherwise if options[name] is None else options[name]
    pooled = options.get("layers") == "pooler"
    return {name: value for name, value in options.items() if not (pooled and name in ("activation", "input_dropout"))}
