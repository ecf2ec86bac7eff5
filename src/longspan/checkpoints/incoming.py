"""Published models in: `from_transformers`."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Container
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

import longspan.models
from longspan.attention import Attention
from longspan.characters import counted
from longspan.checkpoints.lengthening.shared_tables import keep_table, start_shared_tables
from longspan.checkpoints.mapping import transfer
from longspan.checkpoints.plain_folders import PLAIN
from longspan.checkpoints.registry import describe
from longspan.checkpoints.sources import load_any
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanPreTrainedModel


def from_transformers(
    model_or_path: PreTrainedModel | str | Path, *, attention: Any | None = None
) -> LongspanPreTrainedModel:
    """Load a published model into the matching Longspan class, with equal outputs.

    BART, mBART, LED and BigBird-Pegasus become `LongspanForConditionalGeneration`; BERT, BigBird, DistilBERT, RoBERTa,
    XLM-R, CamemBERT, ELECTRA, Longformer and DeBERTa (all versions, by the mechanism `fusion`) become
    `LongspanModel`, `…ForMaskedLM`, `…ForSequenceClassification`, `…ForTokenClassification` or `…ForQuestionAnswering`,
    by the class of the source; ELECTRA's discriminator becomes `LongspanForReplacedTokens`. Reformer becomes
    `LongspanForCausalLM`, or an encoder with one of these heads; so does a directory with Transformer-XL's weights.

    Args:
        model_or_path: a transformers model, a directory written by `save_pretrained`, or a Hub name. Only safetensors
            are read and no remote code is run. The source is left as it is; weights are copied.
        attention: mechanism of the encoder layers instead of the source's own: a name, a dict, an `AttentionConfig`,
            or a list with one per layer. Its global projections start as copies of the local ones, further weights as
            its configuration says. `lengthen` also makes the positions longer.

    Returns:
        The model in evaluation mode, with the source's dtype and device. Its `config.global_tokens` is "first" for a
        `LongformerForSequenceClassification` and "question" for a `LongformerForQuestionAnswering`, which choose their
        global tokens themselves, and else "none".

    Raises:
        InputError: the source is missing, damaged, a pickle, of an unknown architecture, or does not fit its
            configuration.
    """
    source = load_any(model_or_path)
    unclassed = source is not model_or_path and getattr(source.config, "source_model_type", None) in PLAIN
    if unclassed and isinstance(source, LongspanPreTrainedModel) and attention is None:
        return source  # transformers has no class for it, so that it was read as ours
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
    """Start the attention weights named in `unfilled` as their mechanisms say; return how each of them did: as a kind
    of `LengthenReport.parameters`."""
    started = start_shared_tables(model, unfilled)
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            missing = [key for key in module.state_dict() if f"{name}.{key}" in unfilled]
            how = module.warm_start(missing, model.config.init_std)
            started |= {f"{name}.{key}": kind for key, kind in how.items()}
    return started


def check_filled(missing: set[str]) -> None:
    """Raise `InputError` when tensors of ours are left without a value."""
    if missing:
        raise InputError(
            f"the source model has no tensor for {min(missing)!r}"
            + (f" (nor for {counted(len(missing) - 1, 'other')})" if len(missing) > 1 else "")
            + "; its weights do not fit its configuration"
        )


def carry_over(source: PreTrainedModel, target: PreTrainedModel) -> None:
    """Give the target the source's settings for generation, when both generate."""
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
"""What a configuration says of the file that it lay in, or what our own configuration decides on the way out."""


def _origin(config: PreTrainedConfig, known: Container[str], model_type: str) -> dict[str, Any]:
    """Where a configuration came from, and what it says besides the `known` fields: `to_transformers` gives it back."""
    shared = {name: getattr(config, name) for name in ("task_specific_params", "prefix") if getattr(config, name, None)}
    said = config.to_diff_dict()
    rest = {name: value for name, value in said.items() if name not in NOT_KEPT and name not in known}
    origin = {"source_model_type": model_type, "source_name": _hub_name(config), "source_fields": rest or None}
    return shared | origin


def _hub_name(config: PreTrainedConfig) -> str | None:
    """The name by which a model was loaded, unless that was a place on this machine."""
    name = str(getattr(config, "name_or_path", "") or "")
    named = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is not None and not name.startswith(".")
    return name if named and not Path(name).exists() else None
