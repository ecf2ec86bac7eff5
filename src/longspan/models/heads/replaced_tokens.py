"""Which tokens of a text are not its own: the head with which ELECTRA's discriminator is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from transformers.utils import ModelOutput

from longspan.errors import InputError
from longspan.models.configuration import LongspanConfig
from longspan.models.heads.classification import LongspanWithHead
from longspan.models.losses import IGNORED
from longspan.stacks.block import activation


@dataclass
class ReplacedTokensOutput(ModelOutput):
    """Which tokens were replaced.

    Attributes:
        loss: scalar, mean binary cross-entropy over the tokens that have a label.
        logits: `(B, T)`, above 0 where a token looks replaced.
        hidden_states: per layer `(B, T, E)`, when asked for.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class ReplacedTokensHead(nn.Module):
    """`output(activation(dense(x)))`: `(B, T, E)` → `(B, T)`."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.activation_function)
        self.output = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.output(self.activation(self.dense(hidden))).squeeze(-1)


class LongspanForReplacedTokens(LongspanWithHead):
    """Tell replaced tokens from original ones (Clark et al. 2020, ELECTRA, arXiv 2003.10555, section 3)."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.discriminator = ReplacedTokensHead(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        output_attentions: bool | None = None,
        **others: Any,
    ) -> ReplacedTokensOutput | tuple[Any, ...]:
        """`logits` `(B, T)`; `labels` `(B, T)`, 1 = replaced, 0 = original, −100 = not counted, as is padding.
        Inputs as in `LongspanModel.forward`."""
        output = self.encode(
            input_ids,
            attention_mask,
            global_attention_mask,
            token_type_ids,
            inputs_embeds,
            output_hidden_states,
            output_attentions,
            position_ids=position_ids,
            **others,
        )
        logits = self.discriminator(output.last_hidden_state)
        result = ReplacedTokensOutput(
            loss=None if labels is None else replaced_loss(logits, labels, attention_mask),
            logits=logits,
            hidden_states=output.hidden_states,
        )
        return self.finish(result, return_dict)


def replaced_loss(logits: Tensor, labels: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Mean binary cross-entropy of `(B, T)` logits over real tokens with a label, in float32."""
    if labels.shape != logits.shape:
        raise InputError(
            f"labels has shape {tuple(labels.shape)}, the predictions {tuple(logits.shape)}; give one label each"
        )
    counted = labels != IGNORED
    counted = counted if attention_mask is None else counted & attention_mask.bool()
    wanted = labels.masked_fill(~counted, 0).float()
    losses = functional.binary_cross_entropy_with_logits(logits.float(), wanted, reduction="none")
    return (losses * counted).sum() / counted.sum().clamp(min=1)
