"""Base class of the heads: the encoder below, its inputs, and the arguments that the head adds to them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from longspan.errors import InputError
from longspan.models.configuration import LongspanConfig
from longspan.models.encoder_model import LongspanModel
from longspan.models.fields import check_compressed
from longspan.models.heads.specs import HeadSpec
from longspan.models.inputs import EncoderInputs, expand_inputs, with_documents
from longspan.models.losses import IGNORED, with_stack_loss
from longspan.models.pretrained import LongspanPreTrainedModel


class LongspanWithHead(LongspanPreTrainedModel):
    """Base class of the heads. A head defines three members::

        spec = TokenClassification                     # its options, see `specs`; `self.options` has their values

        def add_layers(self, config): ...              # its modules, over the encoder in `self.model`

        def predict(self, encoded, attention_mask, *, labels=None): ...   # its outputs, and the loss

    The keyword arguments of `predict` become arguments of `forward`, from which transformers' Trainer finds the labels.
    A configuration for another head, or for none, is copied, with the defaults of this head.
    """

    spec: ClassVar[type[HeadSpec]]
    own_arguments: ClassVar[tuple[str, ...]] = ()
    """Arguments of `forward` that `predict` uses."""
    model: LongspanModel
    predict: Callable[..., Any]
    """Maps the encoder's output and the `(B, T)` mask to a `ModelOutput`."""

    def __init__(self, config: LongspanConfig) -> None:
        if not config.is_for(self.spec):
            config = copy.deepcopy(config)
            config.head = self.spec().to_dict()
        super().__init__(config)
        check_compressed(self.config, self.spec())
        self.options: Any = self.config.head_options(self.spec)
        self.model = LongspanModel(self.config)
        self.add_layers(self.config)
        self.post_init()

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "predict" in cls.__dict__:
            _add_arguments(cls)

    def add_layers(self, config: Any) -> None:
        """Creates the layers above the encoder, as attributes; `self.options` and `self.model` are set before."""
        raise NotImplementedError

    def counted(self, labels: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Returns which labels `(B, T)` the mean loss includes, bool; for heads with `reads_each_token`."""
        return labels != IGNORED

    def encode(self, inputs: dict[str, Any], own: dict[str, Any]) -> Any:
        """Returns the encoder's output; overridden by heads that process long documents in pieces. `own` are the
        arguments of `predict`.
        """
        return self.model(**inputs, return_dict=True)

    @expand_inputs(EncoderInputs)
    def forward(self, inputs: EncoderInputs, **others: Any) -> Any:
        """Returns the outputs of `predict`, whose keyword arguments are in `**others`, and the loss if
        there are labels.
        """
        own = {name: others.pop(name) for name in self.own_arguments if name in others}
        if others or inputs.seq_idx is not None or inputs.position_ids is not None:
            inputs = with_documents(inputs, others)
        if inputs.seq_idx is not None and not self.reads_each_token:
            raise InputError(
                f"seq_idx packs several documents in a row, and {type(self).__name__} has one output per "
                "row; give each document a row of its own"
            )
        attention_mask, output_attentions = inputs.attention_mask, inputs.output_attentions
        encoded = self.encode({**inputs.for_encoder(), **others}, own)
        divided = self.model.encoder.sequence_group
        own = {name: value for name, value in own.items() if name in self.own_arguments}
        output = self.predict(encoded, attention_mask, **own)
        each = self.reads_each_token and own.get("num_items_in_batch") is None
        if divided is not None and output.get("loss") is not None and each:
            from longspan.models.sequence_parallel import share_of_labels

            share = share_of_labels(self.counted(own["labels"], attention_mask), divided)
            output["loss"] = output["loss"] * share.to(output["loss"].dtype)
        if encoded.hidden_states is not None:
            output["hidden_states"] = encoded.hidden_states
        if self.config.output_attentions if output_attentions is None else output_attentions:
            if getattr(encoded, "attentions", None) is None:
                raise InputError(
                    f"output_attentions=True is not offered by {type(self).__name__}, which does not read each row "
                    "as one text; ask its base_model"
                )
            output["attentions"] = encoded.attentions
            if encoded.global_attentions is not None:
                output["global_attentions"] = encoded.global_attentions
        if getattr(encoded, "stack_loss", None) is not None and output.get("loss") is not None:
            count = own.get("num_items_in_batch")
            output["loss"] = with_stack_loss(output["loss"], encoded, labels=own.get("labels"), count=count)
        return self.finish(output, inputs.return_dict)


def _add_arguments(cls: type[LongspanWithHead]) -> None:
    """Adds the arguments of `predict` to the signature of a head's `forward`, which Trainer and pipelines inspect."""
    predicted = inspect.signature(cls.predict).parameters.values()
    own = [parameter for parameter in predicted if parameter.kind is parameter.KEYWORD_ONLY]

    def forward(self: LongspanWithHead, *inputs: Any, **named: Any) -> Any:
        return LongspanWithHead.forward(self, *inputs, **named)

    shared = inspect.signature(LongspanWithHead.forward)
    *inputs, others = shared.parameters.values()
    forward.__signature__ = shared.replace(parameters=[*inputs, *own, others])  # pyright: ignore[reportFunctionMemberAccess]
    forward.__doc__ = cls.predict.__doc__
    forward.__qualname__ = f"{cls.__qualname__}.forward"
    cls.own_arguments = tuple(parameter.name for parameter in own)
    cls.forward = forward


def dropout_of(config: Any, chosen: float | None) -> nn.Dropout:
    """Returns a head's dropout, by default that of the model."""
    return nn.Dropout(config.dropout if chosen is None else chosen)
