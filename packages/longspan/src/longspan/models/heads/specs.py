"""What each head can be told, and which model class has it: options as plain data, with their checks, before
anything of it is built.

Nothing heavy is imported here: recipes, folders of models and the networks that run without transformers read this.
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
    """Base of every head's options: frozen, keyword-only, every field with a default."""

    head: ClassVar[str]
    """The key under which `HEADS` lists it."""
    model: ClassVar[str]
    """The name of the model class."""
    module: ClassVar[str] = ""
    """Where that class stands, from the package of these options on (".head"); where they stand themselves if empty."""
    auto: ClassVar[str | None] = None
    """The Auto class of transformers that loads it."""
    pipeline: ClassVar[str | None] = None
    """The Hub's name for what it does."""
    task: ClassVar[str | None] = None
    """The task that such a model is scored on when no recipe lies beside it."""
    reads_tokens: ClassVar[bool] = True
    """Whether it reads the states of all tokens, and not the first one alone."""

    def __post_init__(self) -> None:
        """Refuse what is not of its field's type, or outside its limits."""
        check(self)

    @classmethod
    def model_class(cls) -> Any:
        """The class that `model` names, imported when it is asked for; `InputError` where it is not there."""
        home = next(base for base in cls.__mro__ if "model" in vars(base))
        own = import_module(home.__module__)
        module = import_module(vars(home)["module"], own.__package__) if "module" in vars(home) else own
        if not hasattr(module, cls.model):
            raise InputError(
                f"head {cls.head!r} names the model class {cls.model}, which {module.__name__} does not have; define "
                "it there, or say in `module` where it is"
            )
        return getattr(module, cls.model)

    def check_model(self, config: Any) -> None:
        """Raise `InputError` where a model of `config` cannot carry this head."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data with the head's name first; `head_spec` reverses it."""
        return {"head": self.head, **json.loads(json.dumps(asdict(self)))}


Weight = Annotated[float, Range(0, 1e6)]
"""Of one of several losses."""


@dataclass(frozen=True, kw_only=True)
class MaskedLM(HeadSpec):
    """Predict masked tokens.

    Attributes:
        layers: "dense" (dense-activation-norm-linear, all published encoders but one) or "single" (one layer, with
            a bias where the model has `head_bias`: Reformer).
        activation: between its two layers, by its transformers name; None means the model's `activation_function`.
        contrast_weight: of contrastive predictive coding in the loss, see `LongspanForMaskedLM`; 0 has no layer for it.
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
        """Refuse to tie a layer to a token table of another width."""
        width = config.states_width if self.layers == "single" else config.embedding_width
        if config.tie_word_embeddings and width != config.embedding_width:
            raise InputError(
                f"tie_word_embeddings=True ties a head that reads states of width {width} to a token table of width "
                f"{config.embedding_width}; set it to False, or head.layers to 'dense'"
            )


@dataclass(frozen=True, kw_only=True)
class ReplacedTokens(HeadSpec):
    """Tell replaced tokens from original ones."""

    head: ClassVar[str] = "replaced_tokens"
    model: ClassVar[str] = "LongspanForReplacedTokens"
    module: ClassVar[str] = ".token_classification"
    auto: ClassVar[str | None] = "AutoModelForPreTraining"


@dataclass(frozen=True, kw_only=True)
class SequenceClassification(HeadSpec):
    """A label, or a number, per document.

    Attributes:
        layers: what stands on the first token: "dense" (dropout-dense-activation-dropout-linear: RoBERTa, Longformer,
            DeBERTa) or "pooler" (pooler-dropout-linear: BERT), which needs a model with `pooler=True`.
        activation: after the dense layer: "tanh" (RoBERTa), "gelu" (DeBERTa, ELECTRA), "relu" (DistilBERT).
        dropout: before the last layer; None means the model's.
        input_dropout: before the dense layer; None means `dropout` (RoBERTa), DeBERTa has its own.
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
        """Refuse to read a pooler that is not there."""
        if self.layers == "pooler" and not config.pooler:
            raise InputError("head.layers='pooler' needs pooler=True; set it, or choose 'dense'")


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(SequenceClassification):
    """Which of some texts is right.

    Attributes:
        layers: what stands on the first token of each text, "dense" or "pooler", as in `SequenceClassification`; all
            published models have the pooler.
        activation: after the dense layer.
        dropout: before the last layer; None means the model's.
        input_dropout: before the dense layer; None means `dropout`.
    """

    head: ClassVar[str] = "multiple_choice"
    model: ClassVar[str] = "LongspanForMultipleChoice"
    module: ClassVar[str] = ".sequence_classification"
    auto: ClassVar[str | None] = "AutoModelForMultipleChoice"
    pipeline: ClassVar[str | None] = None
    task: ClassVar[str | None] = None


@dataclass(frozen=True, kw_only=True)
class TokenClassification(HeadSpec):
    """A label per token.

    Attributes:
        dropout: before its one layer; None means the model's.
    """

    head: ClassVar[str] = "token_classification"
    model: ClassVar[str] = "LongspanForTokenClassification"
    module: ClassVar[str] = ".token_classification"
    auto: ClassVar[str | None] = "AutoModelForTokenClassification"
    pipeline: ClassVar[str | None] = "token-classification"

    dropout: Dropout | None = None


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(HeadSpec):
    """Start and end of an answer span.

    Attributes:
        dropout: before its one layer (DistilBERT).
    """

    head: ClassVar[str] = "question_answering"
    model: ClassVar[str] = "LongspanForQuestionAnswering"
    module: ClassVar[str] = ".question_answering"
    auto: ClassVar[str | None] = "AutoModelForQuestionAnswering"
    pipeline: ClassVar[str | None] = "question-answering"

    dropout: Dropout = 0.0


@dataclass(frozen=True, kw_only=True)
class SentenceScoring(HeadSpec):
    """A score per sentence of a document.

    Attributes:
        layers: blocks over the sequence of sentences; 0 scores each sentence from its own tokens.
        attention: mechanism of these blocks, as in the model's `attention`; its windows count sentences.
        dropout: before the last layer of the scorer; None means the model's.
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
        """Fill in every option of the mechanism."""
        from longspan.attention.layers import plain_layers

        super().__post_init__()
        object.__setattr__(self, "attention", plain_layers(self.attention, self.layers))


@dataclass(frozen=True, kw_only=True)
class SentenceEmbedding(HeadSpec):
    """A vector per sentence of a document.

    Attributes:
        dimensions: of the vectors; 384 are those of the MiniLM sentence models.
    """

    head: ClassVar[str] = "sentence_embedding"
    model: ClassVar[str] = "LongspanForSentenceEmbedding"
    module: ClassVar[str] = ".sentence_embedding"
    pipeline: ClassVar[str | None] = "sentence-similarity"
    task: ClassVar[str | None] = "distillation"

    dimensions: Annotated[int, Range(1, 65_536)] = 384


def four_weights(weights: Any, names: str) -> None:
    """Raise `InputError` for other than four weights of losses."""
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
"""Name → options, whose `model_class` has such a head; `longspan.register` adds to them."""


def head_spec(spec: Any) -> HeadSpec:
    """The options of a head from its name, a mapping with it under `"head"`, or options made already.

    Raises:
        InputError: an unknown head or option, or a value out of range.
    """
    return spec if isinstance(spec, HeadSpec) else from_spec(HEADS, "head", spec, "head")
