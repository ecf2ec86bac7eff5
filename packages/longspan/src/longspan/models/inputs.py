"""Arguments of `forward`, each declared once with its documentation, for all models that accept it.

transformers inspects the signature of `forward`: `generate` passes on the arguments it finds there, and the Trainer
selects columns and labels by them. So `takes` gives a method `forward(self, inputs, **others)` the fields of a
dataclass as its signature, and their descriptions as its documentation; the method accesses them as one object.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from longspan.attention.parts.tokens import check_tensor
from longspan.errors import InputError
from longspan.models.packed import documents_of

if TYPE_CHECKING:
    from transformers import Cache
    from transformers.modeling_outputs import BaseModelOutput

Parameters = ParamSpec("Parameters")
Inputs = TypeVar("Inputs")
Model = TypeVar("Model")
Output = TypeVar("Output")


@dataclass(frozen=True)
class ModelInputs:
    """Base class of the arguments; checks the types of tensors. Shapes and values are checked where they are used."""

    def __post_init__(self) -> None:
        for name in TENSORS:
            given = getattr(self, name, None)
            if given is not None and not isinstance(given, Tensor):
                check_batch(name, given)


@dataclass(frozen=True)
class SourceInputs(ModelInputs):
    """Arguments of every model with an encoder.

    Attributes:
        input_ids: `(B, T)` int64 token ids.
        attention_mask: `(B, T)` bool or int, 1/True = real; `None` means all real.
        global_attention_mask: `(B, T)` bool or int, 1/True = attends to every token and is attended to by every token;
            by default as in `config.global_tokens`.
        token_type_ids: `(B, T)` int64, for models with `type_vocab_size` > 0; or `(B, T, K)`, K types per token.
        inputs_embeds: `(B, T, E)` instead of `input_ids`.
        output_hidden_states: also return the states before each layer and after the last; by default as configured.
        output_attentions: also return the weights of every layer, `attentions` and `global_attentions`, as in
            `longspan.attention.features.reported.reported_weights`, computed in addition to the pass; by default as
            configured. Models with a decoder do not support it.
        return_dict: False returns a tuple; by default as configured.
        importance: `(B, T)` from 0 to 1, the importance of each token, for stacks that weight tokens by it (`top_down`
            with `pooling: importance`).
        belongs_to: `(B, T)` int64, structure: the number of the global token to which each token belongs, counted from
            0 in each row, −1 for none; for mechanisms that support it (`etc`).
    """

    input_ids: Tensor | None = None
    attention_mask: Tensor | None = None
    global_attention_mask: Tensor | None = None
    token_type_ids: Tensor | None = None
    inputs_embeds: Tensor | None = None
    output_hidden_states: bool | None = None
    output_attentions: bool | None = None
    return_dict: bool | None = None
    importance: Tensor | None = None
    belongs_to: Tensor | None = None

    def for_encoder(self) -> dict[str, Any]:
        """Returns the arguments of the encoder by name, except `return_dict`."""
        return {name: getattr(self, name, None) for name in ENCODER_ARGUMENTS}


@dataclass(frozen=True)
class EncoderInputs(SourceInputs):
    """Arguments of an encoder, and of the heads on it.

    Attributes:
        position_ids: `(1 or B, T)` int64 rows of the position table, as transformers counts them; by default the tokens
            are counted. Windows always count positions of the input.
        seq_idx: `(B, T)` int64, packed sequences: the number of each token's document, −1 at padding. Documents do not
            attend to each other, and each has its own positions and global tokens. `cu_seq_lens_q` of transformers'
            `DataCollatorWithFlattening` is accepted too; without either and without an `attention_mask`, `position_ids`
            that restart mean the same, as in transformers.
    """

    position_ids: Tensor | None = None
    seq_idx: Tensor | None = None


ENCODER_ARGUMENTS = tuple(field.name for field in fields(EncoderInputs) if field.name != "return_dict")


@dataclass(frozen=True)
class Seq2SeqInputs(SourceInputs):
    """Arguments of an encoder-decoder; those of the encoder are for the source.

    Attributes:
        decoder_input_ids: `(B·beams, T)` int64; consecutive rows attend to the same source.
        decoder_attention_mask: `(B·beams, past + T)` bool or int, 1/True = real; `None` means all real.
        decoder_inputs_embeds: `(B·beams, T, E)` instead of `decoder_input_ids`.
        encoder_outputs: output of `get_encoder()` for this source, which is then not encoded again.
        cache: cache of earlier output tokens; changed in place.
        use_cache: return `cache`; by default as configured, and never with labels.
    """

    decoder_input_ids: Tensor | None = None
    decoder_attention_mask: Tensor | None = None
    decoder_inputs_embeds: Tensor | None = None
    encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None
    cache: Cache | None = None
    use_cache: bool | None = None


@dataclass(frozen=True)
class Seq2SeqLMInputs(Seq2SeqInputs):
    """Arguments of an encoder-decoder with a language-model head.

    Attributes:
        labels: `(B, T)` int64 target tokens; −100 is ignored. Without `decoder_input_ids` the decoder's inputs are the
            labels shifted right, and without either the `input_ids`, as in BART.
        num_items_in_batch: number of real labels by which the loss is divided, for exact gradient accumulation.
    """

    labels: Tensor | None = None
    num_items_in_batch: Tensor | int | None = None


@dataclass(frozen=True)
class TextInputs(ModelInputs):
    """Arguments of every language model without an encoder.

    Attributes:
        input_ids: `(B, T)` int64, the tokens that follow those in the cache.
        attention_mask: `(B, past + T)` bool or int, 1/True = real; `None` means all real. Positions count real tokens,
            so that padding on the left changes nothing.
        cache: cache of earlier tokens; changed in place.
        inputs_embeds: `(B, T, E)` instead of `input_ids`.
        labels: `(B, T)` int64; −100 is ignored.
        use_cache: return `cache`; by default as configured, if every layer has a state, and never with labels.
        output_hidden_states: also return the states before each layer and after the last; by default as configured.
        output_attentions: not supported; see `Attention.weights`.
        return_dict: False returns a tuple; by default as configured.
        logits_to_keep: number of last tokens whose logits are returned, 0 for all.
        num_items_in_batch: number of real labels by which the loss is divided, for exact gradient accumulation.
    """

    input_ids: Tensor | None = None
    attention_mask: Tensor | None = None
    cache: Cache | None = None
    inputs_embeds: Tensor | None = None
    labels: Tensor | None = None
    use_cache: bool | None = None
    output_hidden_states: bool | None = None
    output_attentions: bool | None = None
    return_dict: bool | None = None
    logits_to_keep: int = 0
    num_items_in_batch: Tensor | int | None = None


@dataclass(frozen=True)
class CausalLMInputs(TextInputs):
    """Arguments of a causal language model.

    Attributes:
        labels: `(B, T)` int64, usually `input_ids` themselves: each token is predicted from those before it. −100 is
            ignored. `(B, T + 1)` if the token after the last one is known.
        position_ids: `(1 or B, T)` int64 positions of the tokens, from 0; by default the real tokens are counted.
        shift_labels: `(B, T)` int64 instead of `labels`, shifted already: the token after each; −100 is ignored.
        seq_idx: `(B, T)` int64, packed sequences, as in `EncoderInputs`; the first token of a document is no label for
            the last of the one before it.
    """

    position_ids: Tensor | None = None
    shift_labels: Tensor | None = None
    seq_idx: Tensor | None = None


@dataclass(frozen=True)
class PrefixLMInputs(TextInputs):
    """Arguments of a prefix language model.

    Attributes:
        input_ids: `(B, S)` int64, the source, with padding anywhere; with a cache that is not empty, `(B,
            T)` generated tokens.
        cache: cache of earlier tokens; changed in place. The first tokens in an empty one are the source, including
            the start token.
        inputs_embeds: `(B, S, F)` instead of `input_ids`, already scaled.
        labels: `(B, T)` int64, the target, which follows the source and a start token; −100, at the end of a row, is
            ignored. The logits are `(B, T, V)`.
        global_attention_mask: has no effect: attention within the source is full.
        logits_to_keep: number of last tokens whose logits are returned, 0 for all; with pseudo masks there is only one.
    """

    global_attention_mask: Tensor | None = None


TENSORS = tuple(
    dict.fromkeys(
        field.name
        for kind in (EncoderInputs, Seq2SeqLMInputs, CausalLMInputs, PrefixLMInputs)
        for field in fields(kind)
        if field.type == "Tensor | None"
    )
)
Packed = TypeVar("Packed", EncoderInputs, CausalLMInputs)


def expand_inputs(
    inputs: Callable[Parameters, Inputs],
) -> Callable[[Callable[Concatenate[Model, Inputs, ...], Output]], Callable[Concatenate[Model, Parameters], Output]]:
    """Decorates `forward(self, inputs, **others)` to accept the fields of the dataclass `inputs`, by position
    or by name.

    All other arguments are passed to the method by name, if it accepts any.
    """
    kind: Any = inputs
    names = frozenset(field.name for field in fields(kind))

    def decorated(
        method: Callable[Concatenate[Model, Inputs, ...], Output],
    ) -> Callable[Concatenate[Model, Parameters], Output]:
        @wraps(method)
        def forward(self: Any, *positional: Any, **named: Any) -> Any:
            others = {name: named.pop(name) for name in tuple(named) if name not in names}
            return method(self, kind(*positional, **named), **others)

        signature = inspect.signature(method)
        model, _, *others = signature.parameters.values()
        shared = inspect.signature(kind).parameters.values()
        forward.__signature__ = signature.replace(parameters=[model, *shared, *others])  # pyright: ignore[reportAttributeAccessIssue]
        forward.__doc__ = _with_arguments(method.__doc__, kind)
        return forward

    return decorated


def _with_arguments(documentation: str | None, kind: type) -> str:
    """Returns the docstring of a method, with the attributes of a dataclass and of its bases as arguments."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, section = (inspect.getdoc(base) or "").partition("Attributes:\n")
        for entry in re.split(r"\n(?=    \w)", "\n" + section.partition("\n\n")[0])[1:]:
            texts[entry.strip().partition(":")[0]] = entry
    summary, *rest = inspect.cleandoc(documentation or "").split("\n\n", 1)
    arguments = "Args:\n" + "\n".join(texts[field.name] for field in fields(kind))
    return "\n\n".join([summary, arguments, *rest])


def check_batch(name: str, given: Any) -> None:
    """Raises `InputError` for an argument of a model that is neither a tensor nor None, such as a list of ids."""
    check_tensor(name, given, "give a tensor, as a tokenizer makes with return_tensors='pt'")


def bool_mask(
    name: str, mask: Tensor | None, hidden: Tensor, *, of: str = "input", check: bool = True
) -> Tensor | None:
    """Converts a mask `(B, T)` of states `(B, T, E)` to bool on their device; `check` also checks its values."""
    if mask is None:
        return None
    if tuple(mask.shape) != tuple(hidden.shape[:2]):
        raise InputError(
            f"{name} has shape {tuple(mask.shape)} but the {of} is {tuple(hidden.shape[:2])}; give one value per token"
        )
    if check:
        check_mask(name, mask)
    return mask.to(device=hidden.device, dtype=torch.bool)


def check_mask(name: str, mask: Tensor) -> None:
    """Raises `InputError` for a mask with other values than 0 and 1, which would all count as 1.

    Longformer once marked global tokens with 2, and additive masks have 0 for real tokens. A compiled or exported
    program is not checked, since it would have to read the data.
    """
    if mask.dtype == torch.bool or torch.compiler.is_compiling():
        return
    other = (mask != 0) & (mask != 1)
    if bool(other.any()):
        raise InputError(
            f"{name} holds {mask[other][0].item():g}, but may hold only 0 and 1 (1 = a real token, or a global one); "
            "mark global tokens in a global_attention_mask, or choose them by config.global_tokens"
        )


def tokens_among(ids: Sequence[int], input_ids: Tensor | None, mask: Tensor | None) -> Tensor:
    """Returns the real tokens with one of these ids, `(B, T)` bool."""
    if input_ids is None:
        raise InputError(f"global_tokens={list(ids)} reads input_ids; pass a global_attention_mask with inputs_embeds")
    marked = torch.isin(input_ids, torch.tensor(ids, device=input_ids.device))
    return marked if mask is None else marked & mask


def with_documents(inputs: Packed, others: dict[str, Any]) -> Packed:
    """Returns the inputs with the documents of packed rows in `seq_idx`, for any of the supported formats; removes
    these arguments from `others`, the further arguments of the model. Errors as in `documents_of`.
    """
    given = inputs.input_ids if inputs.inputs_embeds is None else inputs.inputs_embeds
    documents = documents_of(given, inputs.seq_idx, inputs.position_ids, inputs.attention_mask, others)
    return replace(inputs, seq_idx=documents)


WITHOUT_EFFECT = frozenset({"cache_position", "use_cache"})
"""Arguments of transformers' encoders that are ignored."""
REASONS = {
    "head_mask": "attention heads cannot be masked",
    "decoder_head_mask": "attention heads cannot be masked",
    "cross_attn_head_mask": "attention heads cannot be masked",
    "cache": "an encoder has no cache",
    "past_key_values": "an encoder has no cache",
    "encoder_hidden_states": "an encoder attends to its own input only",
    "encoder_attention_mask": "an encoder attends to its own input only",
    "seq_idx": "this model reads one document in a row",
}


def refuse_others(others: dict[str, Any]) -> None:
    """Raises for the first unsupported argument; `None` and values without effect pass.

    Raises:
        InputError: an argument of transformers' classes that is not supported.
        TypeError: an unknown argument.
    """
    for name, value in others.items():
        if name in WITHOUT_EFFECT or (name in REASONS and value is None):
            continue
        if name in REASONS:
            raise InputError(f"{name} was given, but {REASONS[name]}; leave it out")
        raise TypeError(f"forward() got an unexpected keyword argument {name!r}")


def refuse_attentions(output_attentions: bool | None, configured: bool | None) -> None:
    """Raises `InputError` if attention weights are requested of a model with a decoder."""
    if configured if output_attentions is None else output_attentions:
        raise InputError(
            "output_attentions=True is not offered by a model that writes, whose layers keep states; ask its encoder, "
            "where it has one, or call layer.attention.weights(hidden, tokens) on a short input"
        )
