"""The options and model class of each head, as plain data with checks, without building the head.

Nothing heavy is imported here, since recipes, model folders and the networks that run without transformers import this.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal

from longspan.errors import InputError
from longspan.imports import Table
from longspan.settings import Dropout, Range, check, from_spec, show


@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """Base class of the options: frozen, keyword-only, every field with a default."""

    head: ClassVar[str]
    """The key in `HEADS`."""
    model: ClassVar[str]
    """The name of the model class."""
    module: ClassVar[str] = ""
    """The module of that class relative to the package of these options (".head"); empty for the same module."""
    auto: ClassVar[str | None] = None
    """The Auto class of transformers that loads it."""
    pipeline: ClassVar[str | None] = None
    """The Hub's name of its task."""
    task: ClassVar[str | None] = None
    """The task for evaluating such a model without a recipe."""
    reads_tokens: ClassVar[bool] = True
    """Whether it uses the states of all tokens, not only of the first one."""

    def __post_init__(self) -> None:
        """Raises `InputError` if a value does not have its field's type, or is outside its limits."""
        check(self)

    @classmethod
    def model_class(cls) -> Any:
        """Returns the class `model`, imported on first access; raises `InputError` if it does not exist."""
        home = next(base for base in cls.__mro__ if "model" in vars(base))
        own = import_module(home.__module__)
        module = import_module(vars(home)["module"], own.__package__) if "module" in vars(home) else own
        if not hasattr(module, cls.model):
            raise InputError(
                f"head {cls.head!r} names the model class {cls.model}, which {module.__name__} does not have; define "
                "it there, or name its module in `module`"
            )
        return getattr(module, cls.model)

    def check_model(self, config: Any) -> None:
        """Raises `InputError` if a model of `config` does not support this head."""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain JSON data with the head's name first; `head_spec` reverses it."""
        return {"head": self.head, **json.loads(json.dumps(asdict(self)))}


Weight = Annotated[float, Range(0, 1e6)]
"""Weight of one of several losses."""


@dataclass(frozen=True, kw_only=True)
class MaskedLM(HeadSpec):
    """Predicts masked tokens.

    Attributes:
        layers: "dense" (dense-activation-norm-linear, all published encoders but one) or "single" (one layer, with
            a bias where the model has `head_bias`: Reformer).
        activation: activation between its two layers, by its transformers name; None means the
            model's `activation_function`.
        contrast_weight: weight of contrastive predictive coding in the loss, see `LongspanForMaskedLM`; with 0 there is
            no layer for it.
    """

    head: ClassVar[str] = "masked_lm"
    model: ClassVar[str] = "LongspanForMaskedLM"
    module: ClassVar[str] = ".masked_lm"
    auto: ClassVar[str | None] = "AutoModelForMaskedLM"
    pipeline: ClassVar[str | None] = "fill-mask"
    task: ClassVar[str | None] = "masked_lm"

    layers: Literal["dense", "single"] = "dense"
    activation: str | None = None
    contrast_weight: Weight = 0.0

    def check_model(self, config: Any) -> None:
        """Raises `InputError` if a layer is tied to a token table of another width."""
        width = config.states_width if self.layers == "single" else config.embedding_width
        if config.tie_word_embeddings and width != config.embedding_width:
            raise InputError(
                f"tie_word_embeddings=True ties a head that reads states of width {width} to a token table of width "
                f"{config.embedding_width}; set it to False, or head.layers to 'dense'"
            )


@dataclass(frozen=True, kw_only=True)
class ReplacedTokens(HeadSpec):
    """Distinguishes replaced tokens from original ones."""

    head: ClassVar[str] = "replaced_tokens"
    model: ClassVar[str] = "LongspanForReplacedTokens"
    module: ClassVar[str] = ".token_classification"
    auto: ClassVar[str | None] = "AutoModelForPreTraining"


@dataclass(frozen=True, kw_only=True)
class SequenceClassification(HeadSpec):
    """Predicts a label, or a number, per document.

    Attributes:
        layers: the layers over the first token: "dense" (dropout-dense-activation-dropout-linear: RoBERTa, Longformer,
            DeBERTa) or "pooler" (pooler-dropout-linear: BERT), which needs a model with `pooler=True`.
        activation: activation after the dense layer: "tanh" (RoBERTa), "gelu" (DeBERTa, ELECTRA), "relu" (DistilBERT).
        dropout: dropout before the last layer; None means the model's.
        input_dropout: dropout before the dense layer; None means `dropout` (RoBERTa), DeBERTa has its own.
    """

    head: ClassVar[str] = "sequence_classification"
    model: ClassVar[str] = "LongspanForSequenceClassification"
    reads_tokens: ClassVar[bool] = False
    module: ClassVar[str] = ".sequence_classification"
    auto: ClassVar[str | None] = "AutoModelForSequenceClassification"
    pipeline: ClassVar[str | None] = "text-classification"
    task: ClassVar[str | None] = "classification"

    layers: Literal["dense", "pooler"] = "dense"
    activation: str = "tanh"
    dropout: Dropout | None = None
    input_dropout: Dropout | None = None

    def check_model(self, config: Any) -> None:
        """Raises `InputError` if the model has no pooler."""
        if self.layers == "pooler" and not config.pooler:
            raise InputError("head.layers='pooler' needs pooler=True; set it, or choose 'dense'")


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(SequenceClassification):
    """Selects the right one of several texts.

    Attributes:
        layers: the layers over the first token of each text, "dense" or "pooler", as in `SequenceClassification`; all
            published models have the pooler.
        activation: activation after the dense layer.
        dropout: dropout before the last layer; None means the model's.
        input_dropout: dropout before the dense layer; None means `dropout`.
    """

    head: ClassVar[str] = "multiple_choice"
    model: ClassVar[str] = "LongspanForMultipleChoice"
    module: ClassVar[str] = ".sequence_classification"
    auto: ClassVar[str | None] = "AutoModelForMultipleChoice"
    pipeline: ClassVar[str | None] = None
    task: ClassVar[str | None] = None


@dataclass(frozen=True, kw_only=True)
class TokenClassification(HeadSpec):
    """Predicts a label per token.

    Attributes:
        dropout: dropout before its one layer; None means the model's.
    """

    head: ClassVar[str] = "token_classification"
    model: ClassVar[str] = "LongspanForTokenClassification"
    module: ClassVar[str] = ".token_classification"
    auto: ClassVar[str | None] = "AutoModelForTokenClassification"
    pipeline: ClassVar[str | None] = "token-classification"

    dropout: Dropout | None = None


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(HeadSpec):
    """Predicts start and end of an answer span.

    Attributes:
        dropout: dropout before its one layer (DistilBERT).
    """

    head: ClassVar[str] = "question_answering"
    model: ClassVar[str] = "LongspanForQuestionAnswering"
    module: ClassVar[str] = ".question_answering"
    auto: ClassVar[str | None] = "AutoModelForQuestionAnswering"
    pipeline: ClassVar[str | None] = "question-answering"

    dropout: Dropout = 0.0


@dataclass(frozen=True, kw_only=True)
class SentenceScoring(HeadSpec):
    """Predicts a score per sentence of a document.

    Attributes:
        layers: blocks over the sequence of sentences; 0 scores each sentence from its own tokens.
        attention: mechanism of these blocks, as in the model's `attention`; its windows count sentences.
        dropout: dropout before the last layer of the scorer; None means the model's.
    """

    head: ClassVar[str] = "sentence_scoring"
    model: ClassVar[str] = "LongspanForSentenceScoring"
    module: ClassVar[str] = ".sentence_scoring"
    pipeline: ClassVar[str | None] = "summarization"
    task: ClassVar[str | None] = "extraction"

    layers: Annotated[int, Range(0, 1000)] = 0
    attention: Any = "longformer"
    dropout: Dropout | None = None

    def __post_init__(self) -> None:
        """Sets every option of the mechanism."""
        from longspan.attention.layers import plain_layers

        super().__post_init__()
        object.__setattr__(self, "attention", plain_layers(self.attention, self.layers))


@dataclass(frozen=True, kw_only=True)
class SentenceEmbedding(HeadSpec):
    """Predicts an embedding per sentence of a document.

    Attributes:
        dimensions: width of the vectors; 384 are those of the MiniLM sentence models.
    """

    head: ClassVar[str] = "sentence_embedding"
    model: ClassVar[str] = "LongspanForSentenceEmbedding"
    module: ClassVar[str] = ".sentence_embedding"
    pipeline: ClassVar[str | None] = "sentence-similarity"
    task: ClassVar[str | None] = "distillation"

    dimensions: Annotated[int, Range(1, 65_536)] = 384


def four_weights(weights: Any, names: str) -> None:
    """Raises `InputError` unless there are four weights of losses."""
    if not isinstance(weights, tuple | list) or len(weights) != 4:
        raise InputError(f"loss_weights is {show(weights)}; give four: {names}")


HEADS: Table[type[HeadSpec]] = Table(
    "heads",
    {
        spec.head: spec
        for spec in (
            MaskedLM,
            ReplacedTokens,
            SequenceClassification,
            MultipleChoice,
            TokenClassification,
            QuestionAnswering,
            SentenceScoring,
            SentenceEmbedding,
        )
    },
)
"""Name → options of the head, with its `model_class`; `longspan.register` adds to them."""


def head_spec(spec: Any) -> HeadSpec:
    """Returns the options of a head from its name, a mapping with it under `"head"`, or options.

    Raises:
        InputError: an unknown head or option, or a value out of range.
    """
    return spec if isinstance(spec, HeadSpec) else from_spec(HEADS, "head", spec, "head")
