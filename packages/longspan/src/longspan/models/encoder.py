"""The encoder as transformers expects it: its layers, its outputs, and the model of it alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from longspan.attention.base import projected
from longspan.attention.features.packed import begins
from longspan.models.configuration import LongspanConfig
from longspan.models.inputs import ModelInputs, documents_of
from longspan.models.network import EncoderNetwork, first_token
from longspan.models.outputs import EncoderOutput
from longspan.models.pretrained import CheckpointedBlock, LongspanPreTrainedModel, refuse_others
from longspan.models.reported import Weights, check_layers, recorded_weights


class Encoder(EncoderNetwork):
    """The encoder with transformers' arguments and outputs. `generate()` calls it once per document."""

    config: LongspanConfig
    main_input_name = "input_ids"
    block = CheckpointedBlock

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        importance: Tensor | None = None,
        belongs_to: Tensor | None = None,
        seq_idx: Tensor | None = None,
    ) -> EncoderOutput | tuple[Tensor, ...]:
        """Encode a batch: `(B, T)` ids and masks → states `(B, T, E)`; arguments as in `LongspanModel.forward`."""
        inputs = ModelInputs(
            input_ids=input_ids,
            attention_mask=attention_mask,
            global_attention_mask=global_attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            importance=importance,
            belongs_to=belongs_to,
            documents=seq_idx,
        )
        keep = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        weights: Weights | None = None
        if self.config.output_attentions if output_attentions is None else output_attentions:
            with recorded_weights(self.layers) as weights:
                encoded = self.encode(inputs, output_hidden_states=keep)
            check_layers(weights, self.config.num_hidden_layers, self.stack.stack)
        else:
            encoded = self.encode(inputs, output_hidden_states=keep)
        source = encoded.source if self.config.is_encoder_decoder else None
        output: Any = EncoderOutput(
            last_hidden_state=encoded.states,
            hidden_states=encoded.all_hidden_states,
            pooler_output=encoded.summary,
            ponder_times=encoded.aux.ponder_times,
            stack_loss=encoded.aux.loss if self.training else None,
            source_states=None if source is None else source.states,  # pyright: ignore[reportArgumentType]
            source_mask=None if source is None else source.mask,
            memory_states=encoded.memory,  # pyright: ignore[reportArgumentType]
        )
        if weights is not None:
            output["attentions"] = tuple(local for local, _ in weights)
            if any(far is not None for _, far in weights):
                output["global_attentions"] = tuple(far for _, far in weights)
        return output.to_tuple() if return_dict is False else output


class Pooler(nn.Module):
    """`tanh(dense(first token))`: `(B, T, E)` → `(B, E)`; or of the vector that a stack sums each row up in."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.states_width, config.hidden_size)

    def forward(self, hidden: Tensor, summary: Tensor | None = None) -> Tensor:
        return projected(self.dense, first_token(hidden) if summary is None else summary).tanh()


class LongspanModel(LongspanPreTrainedModel):
    """The encoder alone: token ids in, contextual states out."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config)
        self.pooler = Pooler(config) if config.pooler else None
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        importance: Tensor | None = None,
        belongs_to: Tensor | None = None,
        seq_idx: Tensor | None = None,
        **others: Any,
    ) -> EncoderOutput | tuple[Tensor, ...]:
        """Encode a batch.

        Args:
            input_ids: `(B, T)` int64 token ids.
            attention_mask: `(B, T)` bool or int, 1/True = real; `None` means all real.
            global_attention_mask: `(B, T)` bool or int, 1/True = attends everywhere and is attended by everyone;
                `None` leaves the choice to `config.global_tokens`.
            token_type_ids: `(B, T)` int64, for models with `type_vocab_size` > 0; or `(B, T, K)`, K types per token.
            inputs_embeds: `(B, T, E)` instead of `input_ids`.
            output_hidden_states: also return the states before each layer and after the last.
            output_attentions: also return the weights of every layer, `attentions` and `global_attentions`, as in
                `longspan.attention.features.reported.reported_weights`; they are computed beside the pass.
            return_dict: False returns a tuple; `None` leaves it to the configuration.
            position_ids: `(1 or B, T)` int64 rows of the position table, as transformers counts them; `None` counts the
                tokens. Windows go by the place in the input all the same.
            importance: `(B, T)` from 0 to 1, how important each token is, for stacks that weigh tokens by it
                (`top_down` with `pooling: importance`).
            belongs_to: `(B, T)` int64, structure: the number of the global token to which each token belongs, counted
                from 0 in each row, −1 for none; for mechanisms that read it (`etc`).
            seq_idx: `(B, T)`, several documents in one row: the number of each token's document, −1 at padding. Each is
                read as if it stood alone, and positions and global tokens are counted in it. transformers'
                `DataCollatorWithFlattening` gives it, or `cu_seq_lens_q`, which is taken too; and where neither is
                there and no `attention_mask`, `position_ids` that begin again say as much, as in transformers.
            **others: further arguments of transformers' classes, as long as they ask for nothing.

        Returns:
            `last_hidden_state` `(B, T, E)`, and `pooler_output` `(B, E)`, or a row for each document of packed rows,
            when the configuration has a pooler, or a stack that sums each row up in one vector, such as the relay of a
            star; `ponder_times` `(B, T)` where the tokens of a stack stop by themselves, and in training the
            `stack_loss` that comes with them; and `memory_states` `(B, M, E)` of a model with `num_memory_tokens`,
            which with `compress_after` are its `last_hidden_state` too.

        Raises:
            InputError: a mask of another shape than the input; an input longer than `max_position_embeddings`.
        """
        if seq_idx is not None or position_ids is not None or others:
            given = input_ids if inputs_embeds is None else inputs_embeds
            seq_idx = documents_of(given, seq_idx, position_ids, attention_mask, others)
            refuse_others(others)
        encoded = self.encoder(
            input_ids=input_ids,
            attention_mask=attention_mask,
            global_attention_mask=global_attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            position_ids=position_ids,
            importance=importance,
            belongs_to=belongs_to,
            seq_idx=seq_idx,
        )
        pooled = encoded.get("pooler_output")
        if self.pooler is not None:
            states = encoded.last_hidden_state
            if seq_idx is not None:
                states = states[begins(seq_idx)][:, None]
            elif pooled is None:
                states = self.encoder.first_states(states, attention_mask)[:, None]
            pooled = self.pooler(states, pooled)
        output: Any = EncoderOutput(**{**encoded, "pooler_output": pooled})
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()


def encoder_of(model: LongspanPreTrainedModel) -> LongspanModel | None:
    """The encoder below a head, or the model itself where it is one; None where there is none, or a decoder too."""
    encoder = model if isinstance(model, LongspanModel) else getattr(model, "model", None)
    return encoder if isinstance(encoder, LongspanModel) and not model.config.is_encoder_decoder else None
