"""What transformers' tests ask of a model: tiny configurations, inputs, and which classes they are run with."""

from __future__ import annotations

import copy
from typing import Any

import torch

from longspan import models
from longspan.models import LongspanConfig

MECHANISMS: dict[str, Any] = {
    "longformer": {"mechanism": "longformer", "left_tokens": 2, "right_tokens": 1},
    "poolingformer": {
        "mechanism": "poolingformer",
        "left_tokens": 2,
        "right_tokens": 1,
        "pooled_left_tokens": 4,
        "pooled_right_tokens": 4,
        "kernel": 3,
        "stride": 2,
    },
    "bigbird": {"mechanism": "bigbird", "block_tokens": 3, "random_blocks": 1},
    "full": {"mechanism": "full"},
}
ENCODERS = (
    models.LongspanModel,
    models.LongspanForMaskedLM,
    models.LongspanForMultipleChoice,
    models.LongspanForQuestionAnswering,
    models.LongspanForSequenceClassification,
    models.LongspanForTokenClassification,
)
KINDS: dict[str, tuple[type, ...]] = {
    "encoder": ENCODERS,
    "encoder-decoder": (models.LongspanForConditionalGeneration,),
    "causal": (models.LongspanForCausalLM,),
}


class Tester:
    """The `model_tester` of one kind of model with one mechanism in each layer."""

    batch_size = 3
    seq_length = 7
    is_training = True
    hidden_size = 16
    num_hidden_layers = 2
    num_attention_heads = 2
    num_choices = 2

    def __init__(self, kind: str, mechanism: str) -> None:
        self.kind, self.mechanism = kind, MECHANISMS[mechanism]

    def get_config(self) -> LongspanConfig:
        plan: dict[str, Any] = {"attention": self.mechanism}
        if self.kind == "encoder-decoder":
            plan |= {"decoder_layers": 2, "decoder_attention": self.mechanism}
        if self.kind == "encoder":
            plan |= {"type_vocab_size": 2, "pooler": True}
        return LongspanConfig(
            vocab_size=61,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=20,
            max_position_embeddings=40,
            dropout=0.1,
            **plan,
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[LongspanConfig, dict[str, Any]]:
        ids = torch.randint(3, 61, (self.batch_size, self.seq_length))
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.kind == "encoder-decoder":
            inputs["decoder_input_ids"] = torch.randint(3, 61, (self.batch_size, self.seq_length))
        return self.get_config(), inputs


class Prepared:
    """How the inputs become those of a class: transformers looks its own classes up by name."""

    model_tester: Any

    def _prepare_for_class(self, inputs: dict[str, Any], kind: type, return_labels: bool = False) -> dict[str, Any]:
        inputs, rows = copy.deepcopy(inputs), self.model_tester.batch_size
        if kind is models.LongspanForMultipleChoice:
            inputs = {
                name: value[:, None].repeat(1, self.model_tester.num_choices, 1)
                if isinstance(value, torch.Tensor) and value.ndim > 1
                else value
                for name, value in inputs.items()
            }
        if return_labels and kind is not models.LongspanModel:
            per_row = (models.LongspanForMultipleChoice, models.LongspanForSequenceClassification)
            if kind is models.LongspanForQuestionAnswering:
                inputs |= {"start_positions": torch.zeros(rows).long(), "end_positions": torch.zeros(rows).long()}
            else:
                inputs["labels"] = torch.zeros(rows if kind in per_row else (rows, self.model_tester.seq_length)).long()
        return inputs
