"""Conversion of published models: `from_transformers` and `to_transformers`."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Container
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

import longspan.models
from longspan.attention import Attention
from longspan.attention.features.starts import warm_start
from longspan.characters import counted
from longspan.checkpoints import architectures
from longspan.checkpoints.architectures import describe, natural_architecture
from longspan.checkpoints.lengthening.plan import keep_table, start_shared_tables
from longspan.checkpoints.mapping import Architecture, Head, reverse, transfer
from longspan.checkpoints.plain_folders import PLAIN
from longspan.checkpoints.sources import load_any
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanPreTrainedModel
from longspan.settings import check_kind


def from_transformers(
    model_or_path: PreTrainedModel | str | Path, *, attention: Any | None = None
) -> LongspanPreTrainedModel:
    """Loads a published model into the matching Longspan class, with equal outputs.

    BART, mBART, LED, Pegasus, BigBird-Pegasus and Marian become `LongspanForConditionalGeneration`; BERT, BigBird,
    DistilBERT, RoBERTa, XLM-R, CamemBERT, ELECTRA, Longformer and DeBERTa (all versions, with the mechanism `fusion`)
    become `LongspanModel`, `…ForMaskedLM`, `…ForSequenceClassification`, `…ForTokenClassification` or
    `…ForQuestionAnswering`, by the class of the source; ELECTRA's discriminator becomes `LongspanForReplacedTokens`.
    Reformer becomes `LongspanForCausalLM`, or an encoder with one of these heads. A directory with Transformer-XL's
    weights also becomes `LongspanForCausalLM`.

    Args:
        model_or_path: a transformers model, a directory written by `save_pretrained`, or a Hub name. Only safetensors
            are read and no remote code is run. The source is not modified; weights are copied.
        attention: mechanism of the encoder layers instead of the source's own: a name, a dict, an `AttentionConfig`,
            or a list with one per layer. Its global projections are initialised as copies of the local ones, other new
            weights as its configuration defines. `lengthen` also extends the positions.

    Returns:
        The model in evaluation mode, with the source's dtype and device. Its `config.global_tokens` is "first" for a
        `LongformerForSequenceClassification` and "question" for a `LongformerForQuestionAnswering`, which choose their
        global tokens themselves, otherwise "none".

    Raises:
        InputError: the source is missing, damaged, a pickle, of an unknown architecture, or does not match its
            configuration.
    """
    source = load_any(model_or_path)
    unclassed = source is not model_or_path and getattr(source.config, "source_model_type", None) in PLAIN
    if unclassed and isinstance(source, LongspanPreTrainedModel) and attention is None:
        return source  # transformers has no class for it, so it was loaded as ours
    if isinstance(source, LongspanPreTrainedModel):
        raise InputError(
            f"model_or_path is already a Longspan model ({type(source).__name__}); load it with from_pretrained, "
            "or change it with longspan.lengthen"
        )
    architecture, head = describe(source)
    body = getattr(source, architecture.prefix, source)
    pooled = getattr(body, "pooler", None) is not None and not any("pooler" in name for name in head.ignored)
    fields: dict[str, Any] = architecture.fields(source.config) | {"pooler": pooled} | head.fields_of(source.config)
    native = LongspanConfig(**fields)
    known = architecture.export(native) | head.export(native)
    fields |= _origin(source.config, known, architecture.model_type)
    if attention is not None:
        fields["attention"] = keep_table(attention, fields["attention"], fields["num_hidden_layers"])
    target = getattr(longspan.models, head.longspan)(LongspanConfig(**fields))
    target.to(device=source.device, dtype=source.dtype)
    tensors = architecture.unpack(source.state_dict(), source.config)
    unfilled = transfer(tensors, target.state_dict(), architecture.pairs(head, source), ignored=head.ignored)
    started = start_extra_weights(target, unfilled)
    check_filled(set(unfilled) - set(started) - set(head.fresh))
    carry_over(source, target)
    return target.eval()


@torch.no_grad()
def start_extra_weights(model: LongspanPreTrainedModel, unfilled: Collection[str]) -> dict[str, str]:
    """Initialises the attention weights named in `unfilled` as their mechanisms define. Returns how each was
    initialised, as a key of `LengthenReport.parameters`."""
    started = start_shared_tables(model, unfilled)
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            missing = [key for key in module.state_dict() if f"{name}.{key}" in unfilled]
            how = warm_start(module, missing, model.config.init_std)
            started |= {f"{name}.{key}": kind for key, kind in how.items()}
    return started


def check_filled(missing: set[str]) -> None:
    """Raises `InputError` if tensors of the target were not filled."""
    if missing:
        raise InputError(
            f"the source model has no tensor for {min(missing)!r}"
            + (f" (nor for {counted(len(missing) - 1, 'other')})" if len(missing) > 1 else "")
            + "; its weights do not fit its configuration"
        )


def carry_over(source: PreTrainedModel, target: PreTrainedModel) -> None:
    """Copies the source's generation settings if both models generate."""
    if target.can_generate() and source.can_generate():
        target.generation_config = copy.deepcopy(source.generation_config)


NOT_KEPT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "auto_map",
        "dtype",
        "is_decoder",
        "is_encoder_decoder",
        "legacy",
        "model_type",
        "quantization_config",
        "tie_word_embeddings",
        "torch_dtype",
        "transformers_version",
    }
)
"""Fields that concern the file itself, or that our own configuration determines on export."""


def _origin(config: PreTrainedConfig, known: Container[str], model_type: str) -> dict[str, Any]:
    """Returns the origin of a configuration, and its fields other than the `known` ones, which `to_transformers`
    restores."""
    shared = {name: getattr(config, name) for name in ("task_specific_params", "prefix") if getattr(config, name, None)}
    fields = config.to_diff_dict()
    rest = {name: value for name, value in fields.items() if name not in NOT_KEPT and name not in known}
    # The name by which the model was loaded, unless it is a local path.
    name = str(getattr(config, "name_or_path", "") or "")
    is_hub_name = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is not None and not name.startswith(".")
    hub_name = name if is_hub_name and not Path(name).exists() else None
    return shared | {"source_model_type": model_type, "source_name": hub_name, "source_fields": rest or None}


def to_transformers(model: LongspanPreTrainedModel, architecture: str | None = None) -> PreTrainedModel:
    """Converts a Longspan model to the transformers model with equal outputs, ready for `save_pretrained`.

    Args:
        model: a model whose mechanism transformers has: full attention (BART, mBART, Pegasus, Marian, RoBERTa, XLM-R,
            CamemBERT, BERT, DistilBERT, ELECTRA), symmetric undilated windows (LED, Longformer), random="transformers"
            (BigBird, BigBird-Pegasus), chunks="published" in reversible layers (Reformer), or fusion in one level with
            a window over the whole input (DeBERTa, DeBERTa-v2).
        architecture: the target `model_type`; `None` chooses that of the model's source if it can represent everything,
            otherwise one by the configuration.

    Returns:
        The model in evaluation mode. Except for Longformer's heads, transformers chooses no global tokens by itself:
        pass it the `global_attention_mask` that corresponds to `config.global_tokens`.

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
    # A bias that this model lacks is equivalent to zero, its initial value.
    left = {name for name in left - poolers if not name.endswith(".bias") or bool(plain[name].any())}
    if left:
        raise InputError(
            f"{name} of transformers has {min(left)}, for which this model has nothing; "
            f"{known.model_type} cannot represent it"
        )
    carry_over(model, target)
    return target.eval()


def _exported(model: LongspanPreTrainedModel, architecture: str | None) -> tuple[Architecture, str, Head, Any]:
    """Returns the target architecture, the name of its class, its head and the configuration in its fields.

    By default a model is exported as the architecture of its source if that can represent everything, otherwise as the
    one that its configuration matches.
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
    if architecture is None and source in architectures.ARCHITECTURES and source != natural:
        with suppress(InputError):
            return _exported(model, source)
    known = architectures.architecture(natural)
    ours = type(model).__name__
    entry = next(((name, head) for name, head in known.heads.items() if head.longspan == ours), None)
    if entry is None:
        raise InputError(f"{ours} has no counterpart among the {known.model_type} classes of transformers")
    name, head = entry
    source_fields = (model.config.source_fields or {}) if known.model_type == source else {}
    config = getattr(transformers, name).config_class(
        **{**source_fields, **known.export(model.config), **head.export(model.config)}
    )
    _check_says_everything(model.config, known, head, config)
    return known, name, head, config


def _check_says_everything(config: LongspanConfig, known: Architecture, head: Head, exported: Any) -> None:
    """Raises `InputError` for fields that are not equal when the exported configuration is read back."""
    fields = {**known.fields(exported), **head.fields_of(exported)}
    back = LongspanConfig(**fields)
    for name in dict.fromkeys((*fields, "stack")):
        ours, theirs = _value(config, name), _value(back, name)
        if ours == theirs or name == "global_tokens" or name in known.checked:
            continue
        # LED's tables have no reserved rows; a model that never reads them (BART's) loses nothing without them.
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
    return _head_options(config) if name == "head" else getattr(config, name)


def _head_options(config: LongspanConfig) -> dict[str, Any] | None:
    """Returns the head's options with defaults resolved, without those that have no effect."""
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
