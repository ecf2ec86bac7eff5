"""Lengthening of models: tiled positions, a long-range mechanism, and a check that outputs for short inputs do not
change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from longspan.attention.config import LONGER
from longspan.attention.support import supports
from longspan.checkpoints.architectures import IN_PLACE, describe
from longspan.checkpoints.conversion import carry_over, check_filled, from_transformers, start_extra_weights
from longspan.checkpoints.lengthening.in_place import lengthen_in_place
from longspan.checkpoints.lengthening.parity import LengthenReport, measure_parity
from longspan.checkpoints.lengthening.plan import (
    STARTS,
    check_longer,
    plan_attention,
    sharing_layer,
    tables_of,
    tile_positions,
)
from longspan.checkpoints.sources import load_any
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanPreTrainedModel
from longspan.models.language_model import DecoderOnly
from longspan.stacks import stack_config

WITHOUT_TABLE = "new_positions='random' needs a table of absolute positions, which this source has not"


def lengthen(
    model_or_path: PreTrainedModel | str | Path,
    attention: Any = None,
    max_tokens: int = 16384,
    *,
    new_positions: str = "copied",
    **options: Any,
) -> PreTrainedModel:
    """Makes a published model, or one of ours, read up to `max_tokens` tokens; outputs for short inputs do not change.

    Positions are tiled as published (Longformer §5, Poolingformer): the reserved rows are kept, the learned block is
    repeated, the last copy truncated (or new rows are drawn); a decoder of an encoder-decoder keeps its table. Global
    projections are initialised as copies of the local ones. The second level of Poolingformer and fusion is initialised
    by its `init`: "zero_value", the default, initially adds nothing.

    DeBERTa becomes fusion, which keeps its table of relative positions. The table for pairs with a global token is
    initialised from it: each of its rows, which covers a range of distances, as the row for the middle of that range,
    and everything beyond the table as its last row. A source without relative positions can also become fusion; their
    projections are then initialised to zero and so have no effect at first.

    T5, mT5, UMT5, LongT5, ModernBERT and MPNet keep transformers' classes: their encoders get windows in place
    (`use_attention`), by default as wide to each side as their longest input, and MPNet's table of positions is tiled.
    The result is, for example, a `T5ForConditionalGeneration` whose configuration has the length and the pattern, from
    which Longspan restores the windows when it loads the folder.

    Args:
        model_or_path: a transformers or Longspan model, a directory or a Hub name; see `from_transformers`.
        attention: the mechanism: a name, a dict or an `AttentionConfig`, for all encoder layers; with a two-level
            mechanism the lower half of the layers gets the first level alone, as published. Or a list of these with one
            per layer, or with the `layers` that each is for (`longspan.attention.layers`); layers in no range are
            unchanged. A bare name that the source already uses keeps its layout and options, except that DeBERTa, full
            attention with relative positions, becomes fusion with windows. None is Poolingformer, and windows in a
            model that keeps transformers' classes.
        max_tokens: the longest input afterwards; at least the source's.
        new_positions: initialisation of position rows for tokens beyond the source's: "copied", or "random", drawn as
            at initialisation, for comparison (Longformer, table 5). Rows of the source are kept in both.
        **options: options of the mechanism, such as `left_tokens=256`, and the `layers` that it is for if these are not
            all.

    Returns:
        The model in evaluation mode, a `LongspanPreTrainedModel` except for those that keep transformers' classes. Its
        `report` (`LengthenReport`) lists the origin of every parameter, and the difference of its outputs from the
        source's on a short random input with windows that cover it and no new weight active. If the source chose no
        global tokens, generation, document classification and question answering make the first token global, unless a
        `global_attention_mask` is passed, or a layer's mechanism has no global tokens.

    Raises:
        InputError: a source that cannot be loaded, unknown options or layers, fewer tokens than the source has, no
            table for `new_positions="random"`, or a choice that would change outputs for short inputs.
    """
    if not isinstance(new_positions, str) or new_positions not in STARTS:
        raise InputError(f"new_positions={new_positions!r} is no way to start them; choose 'copied' or 'random'")
    source: Any = load_any(model_or_path, in_place=True)
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int):
        raise InputError(f"max_tokens={max_tokens!r} is no whole number; give one")
    model_type = str(getattr(source.config, "model_type", None))
    if model_type in IN_PLACE:
        if new_positions == "random" and IN_PLACE[model_type].table is None:
            raise InputError(WITHOUT_TABLE)
        return lengthen_in_place(source, attention, max_tokens, options, new_positions=new_positions)
    attention = LONGER if attention is None else attention
    base = source if isinstance(source, LongspanPreTrainedModel) else from_transformers(source)
    config = _longer_config(base, attention, max_tokens, options)
    if new_positions == "random" and config.position_embedding != "learned":
        raise InputError(WITHOUT_TABLE)
    model: Any = type(base)(config)
    model.to(device=base.device, dtype=base.dtype)
    report = LengthenReport(
        source=type(source).__name__,
        target=type(model).__name__,
        tokens_before=base.config.max_position_embeddings,
        tokens_after=max_tokens,
        reserved_rows=config.position_offset,
        table=config.position_embedding == "learned",
        new_positions=new_positions,
        attention=tuple(config.layer_attention(layer) for layer in range(config.num_hidden_layers)),
        global_tokens=config.global_tokens,
    )
    old = base.state_dict()
    if base is not source:
        # The published source does not have all of them.
        known, _ = describe(source)
        old = {name: tensor for name, tensor in old.items() if not known.leaves(name)}
    _fill(base, model, report, old)
    carry_over(base, model)
    model.eval()
    measure_parity(source, base, model, report)
    model.report = report
    return model


def _longer_config(
    base: LongspanPreTrainedModel, attention: Any, max_tokens: int, options: dict[str, Any]
) -> LongspanConfig:
    """Returns the source's configuration with new attention, length and default globals."""
    old = base.config
    check_longer(max_tokens, old.max_position_embeddings)
    heads = ("ConditionalGeneration", "SequenceClassification", "QuestionAnswering")
    forgetful = old.global_tokens == "none" and type(base).__name__.endswith(heads)
    fields = old.to_dict() | {
        "attention": plan_attention(old, attention, max_tokens, options),
        "max_position_embeddings": max_tokens,
        "stack": stack_config(old.stack).lengthened(max_tokens).to_dict(),
    }
    if isinstance(base, DecoderOnly):
        fields["max_decoder_position_embeddings"] = max_tokens
    config = LongspanConfig.from_dict(fields)
    taken = all(supports(config.layer_attention(layer), "globals") for layer in range(config.num_hidden_layers))
    if forgetful and taken:
        # Default global tokens; without any, whole projections would remain untrained.
        config.global_tokens = "first"
    return config


@torch.no_grad()
def _fill(
    base: LongspanPreTrainedModel, model: LongspanPreTrainedModel, report: LengthenReport, old: dict[str, Tensor]
) -> None:
    """Copies, tiles or initialises every tensor of `model` from `old`, those of `base`, and counts its parameters."""
    new = model.state_dict()
    how: dict[str, str] = {}
    reader = "decoder" if isinstance(model, DecoderOnly) else "encoder"
    for name, tensor in new.items():
        _, shared, part = name.rpartition("encoder.relative.")
        if name in old and shared:
            tensor.copy_(tables_of(sharing_layer(model)).carry(part, old[name], sharing_layer(base)))
            how[name] = "copied" if tensor.equal(old[name]) else "bucketed"
        elif name in old and old[name].shape == tensor.shape:
            tensor.copy_(old[name])
            how[name] = "copied"
        elif name in old and name.endswith(".position.weight"):
            reserved = report.reserved_rows if name.endswith(f"{reader}.embeddings.position.weight") else 0
            tensor.copy_(tile_positions(old[name], tensor.shape[0], reserved))
            if report.new_positions == "random":
                nn.init.normal_(tensor[old[name].shape[0] :], std=model.config.init_std)
            how[name] = STARTS[report.new_positions]
    started = start_extra_weights(model, set(new) - set(how))
    check_filled(set(new) - set(how) - set(started))
    how |= started
    for name, parameter in model.named_parameters():
        report.parameters[how[name]] += parameter.numel()
    report.parameters["dropped"] = sum(value.numel() for name, value in base.named_parameters() if name not in new)
