"""`attn_implementation="longspan"`: a pattern inside unmodified transformers encoders and decoders (BERT, Llama, …).

    model = AutoModel.from_pretrained("bert-base-uncased")
    longspan.use_attention(model, "window(128) | first(1)")
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
    longspan.use_attention(model, "window(1024) | first(4)")

Weights and classes stay transformers'; only the tokens that see each other change, and memory becomes linear in the
length. The pattern is kept in the configuration, so a saved model finds it again when it is loaded after `import
longspan`, and without that import transformers refuses to load it. The longest input stays the model's own; more
positions are made by `lengthen`.

After loading, `use_attention(model, model.config.longspan_pattern)` also brings back what only a call can: the check
that masks hold 0 and 1 alone, and the key by which a copy that is saved before any forward finds its pattern.
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
    """Let the tokens of an unmodified transformers encoder or decoder see each other by `pattern`.

    A decoder never sees ahead: it takes the part of the pattern that looks back, so `window(1024) | first(4)` there
    means `(window(1024) | first(4)) & causal`, and where the model has a sliding window of its own, no more than that.
    Positions count real tokens, so that padding on any side changes nothing, at once, in pieces or token by token.

    Of T5, mT5 and UMT5 the encoder takes the pattern, whose scores keep their numbers by distance; the decoder stays
    as it is. So does MPNet. What is saved of them is read by transformers as the model that it was, with full
    attention, and by Longspan with the pattern.

    The same holds for an encoder that has windows of its own in some layers, as ModernBERT has: there it is the
    intersection of window and pattern, and the pattern alone elsewhere.

    In an encoder, tokens marked in a `global_attention_mask` `(B, T)` passed to the model's forward attend everywhere
    and are attended by everyone (in models that hand extra arguments on to their attention, as BERT, RoBERTa,
    DistilBERT and ELECTRA do).

    Args:
        model: a model that takes its attention from transformers' `AttentionInterface`; changed in place.
        pattern: a pattern of `longspan.patterns`, or its text such as "window(128) | first(1)".
        max_tokens: the longest input from now on, of a model with rotary positions, or numbers by distance as T5 has,
            which have no table and no end; its `config.max_position_embeddings`, or `n_positions`, then says so. Under
            windows narrower than the old length every distance but those to tokens that see everything is one that the
            model knows. None leaves it.

    Returns:
        The model.

    Raises:
        InputError: an encoder–decoder, a model with an attention of its own, an encoder with windows that it does not
            ask of its attention, a pattern that cannot be read, or `max_tokens` for a model without rotary positions or
            with some that depend on the length; the model is then as it was. Three tokens are run through it to find
            out.
    """
    check_kind(model, "model", PreTrainedModel, "a transformers model")
    whole: PreTrainedModel = model
    if (encoder := encoder_by_offset(model)) is not None:
        model = encoder
    elif getattr(model.config, "is_encoder_decoder", False) or getattr(model.config, "add_cross_attention", False):
        raise InputError(
            f"model={type(model).__name__} has a decoder that looks at an encoder; use_attention serves encoders "
            "and decoders that stand alone, and the encoders of T5, mT5 and UMT5, longspan.lengthen also others"
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
    # What a saved configuration says of it: transformers itself reads the second when it loads the model.
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
    for one in (config, whole.config):
        one.longspan_pattern = text
        if max_tokens is not None:
            setattr(one, "max_position_embeddings" if whole is model else "n_positions", max_tokens)
    body = model.base_model
    if _check_masks not in body._forward_pre_hooks.values():
        body.register_forward_pre_hook(_check_masks, with_kwargs=True)
    return whole


def _set_implementation(model: PreTrainedModel, name: str, asks: bool) -> None:
    """Choose an attention; transformers does not where layers ask nobody for one."""
    if asks:
        model.set_attn_implementation(name)
        return
    config: Any = model.config
    config._attn_implementation = name


def use_recorded(model: PreTrainedModel, name: str) -> None:
    """Give a loaded model the pattern that its `config.json` records, if any.

    Encoders and decoders find it by themselves, those of T5's kind and MPNet do not.

    Raises:
        InputError: the model, called `name`, cannot take it.
    """
    recorded = getattr(model.config, "longspan_pattern", None)
    if recorded is None:
        return
    try:
        use_attention(model, recorded)
    except InputError as error:
        raise InputError(f"the config.json of model '{name}' says longspan_pattern={show(recorded)}: {error}") from None


def _check_rotary(model: PreTrainedModel, max_tokens: int) -> None:
    """Refuse a longest input where positions have an end, or turn by an angle that depends on the longest input."""
    config: Any = model.config
    convert(Count, max_tokens, "max_tokens")
    given = getattr(config, "rope_parameters", None)
    if not given:
        raise InputError(
            f"max_tokens={max_tokens} needs rotary positions, which {type(model).__name__} has not; leave it out, or "
            "use longspan.lengthen"
        )
    # One for all layers, or one for each kind of layer.
    for rope in given.values() if all(isinstance(one, dict) for one in given.values()) else (given,):
        if rope.get("rope_type", "default") != "default":
            raise InputError(
                f"max_tokens={max_tokens} needs rotary positions that are the same at every length, and "
                f"{type(model).__name__} has those of type {rope['rope_type']!r}; leave it out"
            )


def _check_masks(body: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Look at the padding mask before transformers reads it as true and false."""
    mask = named.get("attention_mask", arguments[1] if len(arguments) > 1 else None)
    if isinstance(mask, Tensor) and mask.ndim == 2:
        check_mask("attention_mask", mask)


def _try(model: PreTrainedModel) -> None:
    """Run the model on three tokens, so that what it asks of its attention shows now and not at the first document.

    Raises:
        InputError: it asks for something that a pattern cannot give, does not ask at all, or does not read token ids.
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
    asked = sum(with_window for _, with_window in calls)
    if window is not None and asked != layers and not all(causal for causal, _ in calls):
        raise InputError(f"it has windows of its own, of {window} tokens")


_calls: list[tuple[bool, bool]] | None = None
"""While a model is tried: for each attention that was asked for here, whether it is a decoder's, and has a window."""


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
    """transformers' mask interface, never a `(T, S)` mask.

    An encoder's is the padding mask `(B, S)` as bool, a decoder's the positions of its tokens (`position_mask`).

    Raises:
        InputError: the model asks for a mask that is neither full nor causal, with or without a window.
    """
    queries, keys = (q_offset, q_length), (kv_offset, kv_length)
    asked = mask_function if q_length and kv_length else None
    if asked is not None and _asks_for_causal(asked, batch_size, queries, keys, local_size):
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
    """Whether a mask function is causal, with a window or without; False where it shows everything, or what lies within
    a window on both sides, which the attention is told by itself.

    It is asked about neighbours, which shows packed sequences and blocks, and about the two ends.
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
    """Whether a mask function shows `window` tokens on each side and no more, asked about the edges."""
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
        InputError: no pattern was chosen, or the model asks for something that a pattern cannot give.
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
    if window is not None:  # it counts the token itself
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
    # A configuration that was loaded no longer says this, and would be saved without.
    said = getattr(module.config, "attn_implementation", None) == NAME or is_exchanged(module)
    if not torch.compiler.is_compiling() and not said:
        config: Any = module.config
        config.attn_implementation = NAME
    return parse(text)


def _check_call(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, options: dict[str, Any], causal: bool
) -> None:
    """Refuse what would otherwise be left out silently."""
    name = type(module).__name__
    if mask is not None and mask.ndim != 2 and not causal:
        raise InputError(
            f'attention_mask has {mask.ndim} dimensions; with attn_implementation="longspan" give it as (B, T), and '
            "say what tokens see in the pattern"
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


# Without a mask function of the same name, transformers drops the padding mask silently.
AttentionInterface.register(NAME, longspan_attention)
AttentionMaskInterface.register(NAME, longspan_mask)
