"""The inputs of a model, and the `Tokens` that every mechanism of it reads, described once per forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longspan.attention import Tokens
from longspan.errors import InputError

if TYPE_CHECKING:
    from longspan.models.fields import ModelFields
    from longspan.stacks import StackConfig


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """What an encoder is given of a batch; what each means says `LongspanModel.forward`.

    Attributes:
        input_ids: `(B, T)` int64, or `None` with `inputs_embeds`.
        attention_mask: `(B, T)`, 1/True = real; `None` means all real.
        global_attention_mask: `(B, T)`, 1/True = global; `None` leaves it to `config.global_tokens`.
        token_type_ids: `(B, T)` or `(B, T, K)` int64.
        inputs_embeds: `(B, T, F)` instead of `input_ids`.
        position_ids: `(1 or B, T)` int64 rows of the position table.
        importance: `(B, T)`, 0 or more.
        first_position: where the batch begins in longer documents of which it is a piece.
    """

    input_ids: Tensor | None = None
    attention_mask: Tensor | None = None
    global_attention_mask: Tensor | None = None
    token_type_ids: Tensor | None = None
    inputs_embeds: Tensor | None = None
    position_ids: Tensor | None = None
    importance: Tensor | None = None
    first_position: int = 0


def describe_tokens(config: ModelFields, inputs: ModelInputs, hidden: Tensor, border: Tensor | None = None) -> Tokens:
    """Bool masks and global slots of a batch.

    Args:
        config: `global_tokens` decides which tokens are global when no mask is passed.
        inputs: their masks, and the ids where the rule is "question".
        hidden: `(B, T, E)`, for shape and device.
        border: as in `Tokens`.
    """
    mask = bool_mask("attention_mask", inputs.attention_mask, hidden)
    is_global = bool_mask("global_attention_mask", inputs.global_attention_mask, hidden)
    count = config.max_global_tokens
    if is_global is None:
        if config.global_tokens == "none" or hidden.shape[1] == 0:
            return Tokens(mask=mask, border=border)
        is_global = _default_globals(config, hidden, inputs.input_ids, mask)
        count = 1 if config.global_tokens == "first" else count
    if count is None and torch.compiler.is_compiling():
        raise InputError("max_global_tokens=None reads the data; set it in the configuration to compile with globals")
    return Tokens(mask=mask, is_global=is_global, border=border).with_slots(count)


def border_of(config: ModelFields, inputs: ModelInputs) -> Tensor:
    """`(B,)` int64, the place at which the second part of each row begins, for stacks that read parts apart.

    A model with several token types is told by them: the second part begins with the first real token of another type
    than 0. Otherwise it begins with the first real token behind the first separator. A row without one has T here.

    Raises:
        InputError: neither types nor a separator can tell.
    """
    input_ids, token_type_ids = inputs.input_ids, inputs.token_type_ids
    if token_type_ids is not None and config.type_vocab_size > 1:
        second = (token_type_ids[..., 0] if token_type_ids.dim() == 3 else token_type_ids) != 0
    elif input_ids is not None and config.sep_token_id is not None:
        is_separator = (input_ids == config.sep_token_id).long()
        second = is_separator.cumsum(1) - is_separator > 0
    else:
        missing = "sep_token_id is None" if input_ids is not None else "inputs_embeds show no separator"
        raise InputError(
            f"the stack reads question and passage apart, and nothing tells where the passage begins ({missing}); give "
            "token_type_ids, which are 1 there, to a model with type_vocab_size=2, or input_ids with a sep_token_id"
        )
    if inputs.attention_mask is not None:
        second = second & inputs.attention_mask.bool()
    return (second.cumsum(1) == 0).sum(1)


def checked_importance(stack: StackConfig, importance: Tensor | None, hidden: Tensor) -> Tensor:
    """How important each token of states `(B, T, E)` is, `(B, T)`, on their device.

    Raises:
        InputError: it is given to a stack that does not weigh tokens, or not given to one that does; it is of another
            shape, negative, or not finite.
    """
    if not stack.reads().importance:
        raise InputError(
            f"importance was given, but the stack {stack.stack!r} as configured does not weigh tokens; leave it out"
        )
    if importance is None:
        raise InputError(
            "importance is missing, and the stack weighs tokens by it (pooling='importance'); give a number from 0 to "
            "1 for each token, as an importance tagger does, or configure pooling='average'"
        )
    if tuple(importance.shape) != tuple(hidden.shape[:2]):
        raise InputError(
            f"importance has shape {tuple(importance.shape)} but the input is {tuple(hidden.shape[:2])}; give one "
            "number per token"
        )
    if not torch.compiler.is_compiling():
        wrong = ~(importance.isfinite() & (importance >= 0))
        if bool(wrong.any()):
            raise InputError(f"importance holds {importance[wrong][0].item():g}; give probabilities, from 0 to 1")
    return importance.to(hidden.device)


def bool_mask(
    name: str, mask: Tensor | None, hidden: Tensor, *, of: str = "input", check: bool = True
) -> Tensor | None:
    """A mask `(B, T)` of states `(B, T, E)` as bool, on their device; `check` looks at its values too."""
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
    """Raise `InputError` for a mask with other values than 0 and 1, which would all be read as 1.

    Longformer once marked global tokens by a 2, and additive masks hold 0 where a token is real. A compiled or exported
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


def _default_globals(config: ModelFields, hidden: Tensor, input_ids: Tensor | None, mask: Tensor | None) -> Tensor:
    """`(B, T)` bool by the rule `config.global_tokens`."""
    position = torch.arange(hidden.shape[1], device=hidden.device).expand(hidden.shape[:2])
    if config.global_tokens == "first":
        return position == 0 if mask is None else mask & (mask.cumsum(1) == 1)
    if input_ids is None:
        raise InputError("global_tokens='question' reads input_ids; pass a global_attention_mask with inputs_embeds")
    # Tokens before the first separator: none has been counted up to and including the token itself.
    question = (input_ids == config.sep_token_id).cumsum(1) == 0
    if not torch.compiler.is_compiling() and bool(question.all(1).any()):
        raise InputError(
            f"global_tokens='question' found no sep_token_id={config.sep_token_id} in a row of input_ids; put one "
            "behind each question, or pass a global_attention_mask"
        )
    return question
