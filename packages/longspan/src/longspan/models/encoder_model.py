"""The encoder as a model of transformers, with a pooler if configured."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from longspan.attention.base import projected
from longspan.attention.features.packed import begins
from longspan.models.configuration import LongspanConfig
from longspan.models.encoder import Encoder, first_token
from longspan.models.inputs import EncoderInputs, expand_inputs, refuse_others, with_documents
from longspan.models.outputs import EncoderOutput
from longspan.models.pretrained import CheckpointedBlock, LongspanPreTrainedModel


class LongspanModel(LongspanPreTrainedModel):
    """The encoder without a head: maps token ids to contextual states."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config, block=CheckpointedBlock)
        self.pooler = Pooler(config) if config.pooler else None
        self.post_init()

    @expand_inputs(EncoderInputs)
    def forward(self, inputs: EncoderInputs, **others: Any) -> EncoderOutput | tuple[Tensor, ...]:
        """Encode a batch.

        `**others` are further arguments of transformers' classes, which must be `None` or without effect here.

        Returns:
            `last_hidden_state` `(B, T, E)`; `pooler_output` `(B, E)`, or a row for each document of packed rows, if the
            configuration has a pooler, or the stack a summary vector, such as the relay of a star; `ponder_times` `(B,
            T)` for stacks with adaptive halting, and in training their `stack_loss`; and `memory_states` `(B, M, E)` of
            a model with `num_memory_tokens`, which with `compress_after` are its `last_hidden_state` too.

        Raises:
            InputError: a mask of another shape than the input; an input longer than `max_position_embeddings`.
        """
        if others or inputs.seq_idx is not None or inputs.position_ids is not None:
            inputs = with_documents(inputs, others)
            refuse_others(others)
        given = {name: getattr(inputs, name) for name in EncoderInputs.__dataclass_fields__}
        encoded = self.encoder(**{**given, "return_dict": True})
        pooled = encoded.get("pooler_output")
        if self.pooler is not None:
            states = encoded.last_hidden_state
            if inputs.seq_idx is not None:
                states = states[begins(inputs.seq_idx)][:, None]
            elif pooled is None:
                states = self.encoder.first_states(states, inputs.attention_mask)[:, None]
            pooled = self.pooler(states, pooled)
        output: Any = EncoderOutput(**{**encoded, "pooler_output": pooled})
        named = self.config.return_dict if inputs.return_dict is None else inputs.return_dict
        return output if named else output.to_tuple()


class Pooler(nn.Module):
    """`tanh(dense(first token))`: `(B, T, E)` → `(B, E)`; or of the summary vector of a stack."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.states_width, config.hidden_size)

    def forward(self, hidden: Tensor, summary: Tensor | None = None) -> Tensor:
        return projected(self.dense, first_token(hidden) if summary is None else summary).tanh()


def encoder_of(model: LongspanPreTrainedModel) -> LongspanModel | None:
    """Returns the encoder below a head, or the model itself if it is one; None if there is none, or also a decoder."""
    encoder = model if isinstance(model, LongspanModel) else getattr(model, "model", None)
    return encoder if isinstance(encoder, LongspanModel) and not model.config.is_encoder_decoder else None
