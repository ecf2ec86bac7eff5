"""What a model is for, by the name of its class, and which command takes it: for models given to another command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from longspan.errors import InputError


class Use(NamedTuple):
    """What a model is, the command that it is for ("" for several), and who takes it."""

    kind: str
    command: str
    takers: str


_WRITES = Use("a model that writes", "summarize", "`longspan summarize --model`")
_ANSWERS = Use("a model of questions", "answer", "`longspan answer --model`")
_ENCODES = Use(
    "an encoder", "", "`longspan answer --encoder` or `longspan embed --encoder`, or train it (`model.from`)"
)
_CONTINUES = Use(
    "a language model",
    "generate",
    "`longspan generate` if it was trained here, or to `longspan summarize --model` if it has a chat template",
)
RERANKS = Use("a cross-encoder", "answer", "`longspan answer --reranker`")
USES: Mapping[str, Use] = {
    "ForSequenceClassification": Use("a classifier", "classify", "`longspan classify --model`"),
    "ForQuestionAnswering": _ANSWERS,
    "ForNaturalQuestions": _ANSWERS,
    "ForCoreference": Use("a model of coreference", "coref", "`longspan coref --model`"),
    "ForCandidateScoring": Use("a model that chooses among candidates", "choose", "`longspan choose --model`"),
    "ForTokenClassification": Use("a tagger", "importance", "`longspan importance --model` if it was trained for that"),
    "ForSentenceScoring": Use("a model that picks sentences", "summarize", "`longspan summarize --model`"),
    "ForSentenceEmbedding": Use("a sentence encoder", "embed", "`longspan embed --model`"),
    "ForPrefixLM": _WRITES,
    "ForConditionalGeneration": _WRITES,
    "MTModel": _WRITES,
    "ForCausalLM": _CONTINUES,
    "LMHeadModel": _CONTINUES,
    "ForMultipleChoice": Use("a model of multiple choice", "evaluate", "`longspan evaluate`"),
    "ForMaskedLM": _ENCODES,
    "ForReplacedTokens": _ENCODES,
    "ForPreTraining": _ENCODES,
    "Model": _ENCODES,
}
"""End of a class's name → what such a model is for."""


def architecture_of(said: Mapping[str, Any]) -> str:
    """The class that a `config.json` names first; "" where it names none."""
    names = said.get("architectures") or [""]
    return str(names[0])


def use_of(name: str, labels: int | None = None) -> Use | None:
    """What a model of that class is for; None for a class that is not known.

    Args:
        name: of the class.
        labels: how many it tells apart, where that is known; one alone scores pairs of texts.
    """
    if labels == 1 and name.endswith("ForSequenceClassification"):
        return RERANKS
    ends = [end for end in USES if name.endswith(end)]
    return USES[max(ends, key=len)] if ends else None


def other_use(source: object, name: str, lack: str, labels: int | None = None) -> InputError:
    """The refusal of a model that was given to a command that it is not for.

    Args:
        source: folder or name of the model.
        name, labels: see `use_of`.
        lack: what it does not do, such as "which cannot summarise".
    """
    use = use_of(name, labels)
    remedy = "give another" if use is None else f"it is {use.kind}: give it to {use.takers}"
    return InputError(f"model {str(source)!r} is a {name}, {lack}; {remedy}")


OTHER_HEADS = (
    *("ForSequenceClassification", "ForQuestionAnswering", "ForTokenClassification", "ForCausalLM"),
    *("EncoderModel", "Encoder", "Decoder"),
)
"""Ends of classes that are made of an encoder–decoder, or of half of one, and write no text from another."""


def writes_texts(kind: Any, name: str) -> bool:
    """Whether a model of transformers, by its `model_type` and its class, is an encoder–decoder that writes: the bare
    model too, since its head is the token table, and published files name it (BART) or a class that is gone (T5)."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

    return kind in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES and not name.endswith(OTHER_HEADS)


def continues_texts(kind: Any, name: str) -> bool:
    """Whether a model of transformers, by its `model_type` and its class, is a causal language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return name.endswith(("ForCausalLM", "LMHeadModel")) or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind) == name
