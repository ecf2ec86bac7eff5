"""`attn_implementation="longspan"`: a pattern inside unmodified transformers encoders and decoders (BERT, Llama, …).

    model = AutoModel.from_pretrained("bert-base-uncased")
    longspan.use_attention(model, "window(128) | first(1)")
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
    longspan.use_attention(model, "window(1024) | first(4)")

Weights and classes remain those of transformers; only the attention mask changes, and memory becomes linear in the
length. The pattern is stored in the configuration, so that a saved model uses it again when it is loaded after `import
longspan`; without that import transformers refuses to load it. The longest input remains that of the model; `lengthen`
adds positions.

After loading, `use_attention(model, model.config.longspan_pattern)` also restores what is not stored: the check that
masks contain only 0 and 1, and the entry by which a copy that is saved before any forward pass finds its pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from longspan.checkpoints.causal_attention import attend_causal, position_mask
from longspan.checkpoints.relative_bias import encoder_by_offset, exchange_layers, is_exchanged
from longspan.errors import InputError, one_sentence
from longspan.models.inputs import check_mask
from longspan.ops.attend import attend
from longspan.ops.attend.terms import PositionBias
from longspan.patterns import Pattern, Window, parse
from longspan.patterns.text import text_of
from longspan.settings import Count, check_kind, convert, show

NAME = "longspan"


def use_attention(model: PreTrainedModel, pattern: Pattern | str, *, max_tokens: int | None = None) -> PreTrainedModel:
    """Sets the attention pattern of an unmodified transformers encoder or decoder.

    A decoder remains causal: `window(1024) | first(4)` there means `(window(1024) | first(4)) & causal`, intersected
    with the model's own sliding window, if any. Positions count real tokens, so that padding on any side changes
    nothing, in one pass, in chunks or token by token.

    In T5, mT5 and UMT5 the pattern applies to the encoder, which keeps its relative position biases; the decoder does
    not change. MPNet likewise keeps its biases. Saved models of these kinds are read by transformers as the original
    model, with full attention, and by Longspan with the pattern.

    In an encoder with windows in some layers, such as ModernBERT, these layers use the intersection of window and
    pattern, and the others the pattern alone.

    In an encoder, tokens marked in a `global_attention_mask` `(B, T)` passed to the model's forward attend to all
    tokens and are attended to by all (in models that pass extra arguments to their attention, such as BERT, RoBERTa,
    DistilBERT and ELECTRA).

    Args:
        model: a model that uses transformers' `AttentionInterface`; modified in place.
        pattern: a pattern of `longspan.patterns`, or its text such as "window(128) | first(1)".
        max_tokens: the new longest input, for a model with rotary positions or relative position biases as in T5, which
            have no position table; stored in `config.max_position_embeddings`, or `n_positions`. Under windows narrower
            than the old length, the model was trained on every distance except those to global tokens. None keeps it.

    Returns:
        The model.

    Raises:
        InputError: an encoder–decoder, a model with an attention implementation of its own, an encoder with windows
            that it does not request from its attention, a pattern that cannot be parsed, or `max_tokens` for a model
            without rotary positions or with some that depend on the length; the model is then unchanged. The check runs
            the model on three tokens.
    """
    check_kind(model, "model", PreTrainedModel, "a transformers model")
    whole: PreTrainedModel = model
    if (encoder := encoder_by_offset(model)) is not None:
        model = encoder
    elif getattr(model.config, "is_encoder_decoder", False) or getattr(model.config, "add_cross_attention", False):
        raise InputError(
            f"model={type(model).__name__} has a decoder with cross-attention; use_attention supports encoders "
            "and decoders without an encoder, and the encoders of T5, mT5 and UMT5, longspan.lengthen also others"
        )
    config: Any = model.config
    text = text_of(parse(pattern) if isinstance(pattern, str) else pattern)
    if max_tokens is not None and whole is model:
        _check_rotary(model, max_tokens)
    elif max_tokens is not None:
        convert(Count, max_tokens, "max_tokens")
    implementation = config._attn_implementation
    before = {name: getattr(config, name, None) for name in ("longspan_pattern", "attn_implementation")}
    asks = not exchange_layers(model)
    _set_implementation(model, NAME, asks)
    if getattr(config, "_attn_implementation", None) != NAME:
        raise InputError(
            f"model={type(model).__name__} has an attention of its own, which cannot be exchanged; load it with "
            "longspan.from_transformers instead"
        )
    # transformers reads the second field when it loads the model.
    config.longspan_pattern = text
    if asks:
        config.attn_implementation = NAME
    try:
        _try(model)
    except InputError as error:
        for name, value in before.items():
            delattr(config, name) if value is None else setattr(config, name, value)
        _set_implementation(model, implementation or "eager", asks)
        raise InputError(
            f"model={type(model).__name__} cannot take a pattern ({error}); use_attention serves encoders in which "
            "every token may see every token (BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ELECTRA and their like) or "
            "those in a window (ModernBERT), and decoders (GPT-2, Llama, Mistral, Qwen2, Qwen3 and their like)"
        ) from error
    for part_config in (config, whole.config):
        part_config.longspan_pattern = text
        if max_tokens is not None:
            setattr(part_config, "max_position_embeddings" if whole is model else "n_positions", max_tokens)
    body = model.base_model
    if _check_masks not in body._forward_pre_hooks.values():
        body.register_forward_pre_hook(_check_masks, with_kwargs=True)
    return whole


def _set_implementation(model: PreTrainedModel, name: str, asks: bool) -> None:
    """Sets the attention implementation, directly if the layers do not support selecting one."""
    if asks:
        model.set_attn_implementation(name)
        return
    config: Any = model.config
    config._attn_implementation = name


def use_recorded(model: PreTrainedModel, name: str) -> None:
    """Applies the pattern recorded in a loaded model's `config.json`, if any.

    Encoders and decoders find it themselves; those of T5's kind and MPNet do not.

    Raises:
        InputError: the model, called `name`, does not support it.
    """
    recorded = getattr(model.config, "longspan_pattern", None)
    if recorded is None:
        return
    try:
        use_attention(model, recorded)
    except InputError as error:
        raise InputError(f"the config.json of model '{name}' has longspan_pattern={show(recorded)}: {error}") from None


def _check_rotary(model: PreTrainedModel, max_tokens: int) -> None:
    """Raises `InputError` unless positions are rotary and independent of the longest input."""
    config: Any = model.config
    convert(Count, max_tokens, "max_tokens")
    rope_parameters = getattr(config, "rope_parameters", None)
    if not rope_parameters:
        raise InputError(
            f"max_tokens={max_tokens} needs rotary positions, which {type(model).__name__} has not; leave it out, or "
            "use longspan.lengthen"
        )
    # Either one for all layers, or one for each kind of layer.
    for rope in (
        rope_parameters.values()
        if all(isinstance(entry, dict) for entry in rope_parameters.values())
        else (rope_parameters,)
    ):
        if rope.get("rope_type", "default") != "default":
            raise InputError(
                f"max_tokens={max_tokens} needs rotary positions that are the same at every length, and "
                f"{type(model).__name__} has those of type {rope['rope_type']!r}; leave it out"
            )


def _check_masks(body: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Checks the padding mask before transformers converts it to bool."""
    mask = named.get("attention_mask", arguments[1] if len(arguments) > 1 else None)
    if isinstance(mask, Tensor) and mask.ndim == 2:
        check_mask("attention_mask", mask)


def _try(model: PreTrainedModel) -> None:
    """Runs the model on three tokens, so that unsupported requests to its attention are found immediately.

    Raises:
        InputError: the model requests something that a pattern cannot express, does not use the interface, or does not
            take token ids.
    """
    global _calls
    if model.device.type == "meta":
        return
    training, calls = model.training, []
    ids = torch.zeros(1, 3, dtype=torch.long, device=model.device)
    _calls = calls
    try:
        with torch.no_grad(), one_sentence("it does not run on token ids"):
            model.base_model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids))
    finally:
        _calls = None
        model.train(training)
    if not calls:
        raise InputError("its attention is its own and never asks for another")
    window = getattr(model.config, "sliding_window", None) or getattr(model.config, "local_attention", None)
    kinds = getattr(model.config, "layer_types", None)
    layers = len(calls) if kinds is None else kinds.count("sliding_attention")
    windowed = sum(with_window for _, with_window in calls)
    if window is not None and windowed != layers and not all(causal for causal, _ in calls):
        raise InputError(f"it has windows of its own, of {window} tokens")


_calls: list[tuple[bool, bool]] | None = None
"""While a model is tried: for each attention call, whether it belongs to a decoder, and whether it has a window."""


def longspan_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Tensor | None:
    """transformers' mask interface, without a `(T, S)` mask.

    For an encoder it returns the padding mask `(B, S)` as bool, for a decoder the positions of its tokens
    (`position_mask`).

    Raises:
        InputError: the model requests a mask that is neither full nor causal, with or without a window.
    """
    queries, keys = (q_offset, q_length), (kv_offset, kv_length)
    requested = mask_function if q_length and kv_length else None
    if requested is not None and _asks_for_causal(requested, batch_size, queries, keys, local_size):
        return position_mask(attention_mask, queries, keys, local_size, device)
    return None if attention_mask is None else attention_mask.to(torch.bool)


@torch.compiler.disable()
def _asks_for_causal(
    mask_function: Callable[..., Any],
    batch_size: int,
    queries: tuple[int | Tensor, int],
    keys: tuple[int, int],
    window: int | None,
) -> bool:
    """Whether a mask function is causal, with or without a window; False if it shows everything, or a window on both
    sides, which is passed to the attention separately.

    It is evaluated at neighbouring positions, which reveals packed sequences and blocks, and at both ends.
    """
    index = torch.arange(queries[1]) + int(queries[0])
    rows, last = torch.arange(batch_size)[:, None], index[-1:]
    before, after = (index[:-1], index[1:]) if queries[1] > 1 else (index, index + 1)
    ahead = mask_function(rows, 0, before[None], after[None])
    far = bool(mask_function(0, 0, last, torch.tensor([keys[0]])).all())
    if bool(ahead.all()) and (far or (window is not None and _shows_both_sides(mask_function, window))):
        return False
    behind = queries[1] == 1 or bool(mask_function(rows, 0, after[None], before[None]).all())
    expected = window is None or int(last) - keys[0] < window
    if window is not None:
        behind = (behind or window == 1) and bool(mask_function(0, 0, torch.tensor(window), torch.tensor(1)))
    if bool(ahead.any()) or not behind or far != expected:
        raise InputError(
            'attn_implementation="longspan" serves models in which a token may see every token, or every one before '
            "it with or without a sliding window; this one asks for another mask, as packed sequences do"
        )
    return True


def _shows_both_sides(mask_function: Callable[..., Any], window: int) -> bool:
    """Whether a mask function shows exactly `window` tokens on each side, evaluated at the edges."""
    start, edge = torch.tensor([0, 0]), torch.tensor([window, window + 1])
    return all(mask_function(0, 0, *pair).tolist() == [True, False] for pair in ((start, edge), (edge, start)))


def longspan_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    global_attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: `(B, H, T, D)` each → `(B, T, H, D)`, and no weights.

    Keys and values may have fewer heads than the queries, and in a decoder more positions.

    Raises:
        InputError: no pattern was set, or the model requests something that a pattern cannot express.
    """
    causal = attention_mask is not None and attention_mask.dtype == torch.int64 and attention_mask.ndim == 4
    _check_call(module, query, key, attention_mask, kwargs | {"global_attention_mask": global_attention_mask}, causal)
    window = kwargs.get("sliding_window")
    if _calls is not None:
        _calls.append((causal, window is not None))
    pattern = _pattern(module)
    if causal and attention_mask is not None:
        context = attend_causal(query, key, value, pattern, attention_mask, scale=scaling, dropout=dropout)
        return context.transpose(1, 2).contiguous(), None
    if window is not None:  # the window includes the token itself
        pattern = pattern & Window(window - 1, window - 1)
    if key.shape[1] != query.shape[1]:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    globals = None
    bias = kwargs.get("position_bias")
    terms = [] if bias is None else [PositionBias(bias)]
    if global_attention_mask is not None:
        check_mask("global_attention_mask", global_attention_mask)
        globals = global_attention_mask.to(query.device).bool()
    context = attend(
        query,
        key,
        value,
        pattern=pattern,
        terms=terms,
        key_mask=attention_mask,
        globals=globals,
        scale=scaling,
        dropout_prob=dropout,
    )
    return context.transpose(1, 2).contiguous(), None


def _pattern(module: nn.Module) -> Pattern:
    text = getattr(module.config, "longspan_pattern", None)
    if text is None:
        raise InputError(
            'attn_implementation="longspan" needs a pattern; call '
            'longspan.use_attention(model, "window(128) | first(1)")'
        )
    # A loaded configuration lacks this field, and would be saved without it.
    recorded = getattr(module.config, "attn_implementation", None) == NAME or is_exchanged(module)
    if not torch.compiler.is_compiling() and not recorded:
        config: Any = module.config
        config.attn_implementation = NAME
    return parse(text)


def _check_call(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, options: dict[str, Any], causal: bool
) -> None:
    """Raises `InputError` for arguments that would otherwise be ignored."""
    name = type(module).__name__
    if mask is not None and mask.ndim != 2 and not causal:
        raise InputError(
            f'attention_mask has {mask.ndim} dimensions; with attn_implementation="longspan" give it as (B, T), and '
            "define what tokens see by the pattern"
        )
    unmasked = getattr(module, "is_causal", False) and getattr(module.config, "is_causal", True)
    if not causal and (unmasked or options.get("is_causal") or query.shape[2] != key.shape[2]):
        raise InputError(
            f'attn_implementation="longspan" serves self-attention; {name} looks elsewhere, or is causal without a mask'
        )
    bias = options.get("position_bias")
    if isinstance(bias, Tensor) and bias.ndim == 2 and not causal:  # by offset, see `encoder_by_offset`
        options = options | {"position_bias": None}
    for option in ("position_bias", "softcap", "s_aux", *(("global_attention_mask",) if causal else ())):
        if options.get(option) is not None:
            again = "; call longspan.use_attention(model, model.config.longspan_pattern) after loading"
            remedy = again if option == "position_bias" and hasattr(module, "compute_bias") else ""
            raise InputError(f'attn_implementation="longspan" has no {option}, which {name} asks for{remedy}')
    if options.get("output_attentions"):
        raise InputError(
            'output_attentions=True is not offered by attn_implementation="longspan", which never forms the weights'
        )


# Without a mask function of the same name, transformers silently drops the padding mask.
AttentionInterface.register(NAME, longspan_attention)
AttentionMaskInterface.register(NAME, longspan_mask)
