"""The purpose of a model, by its class name, and the command for it, for error messages about models of another
kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from longspan.errors import InputError


class Use(NamedTuple):
    """The kind of a model, its command ("" for several), and the commands that accept it."""

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
"""Suffix of a class name → purpose of such a model."""


def architecture_of(config: Mapping[str, Any]) -> str:
    """Returns the first class name in a `config.json`; "" if there is none."""
    names = config.get("architectures") or [""]
    return str(names[0])


def use_of(name: str, labels: int | None = None) -> Use | None:
    """Returns the purpose of a model class; None if it is unknown.

    Args:
        name: name of the class.
        labels: number of labels, if known; with a single one, the model scores pairs of texts.
    """
    if labels == 1 and name.endswith("ForSequenceClassification"):
        return RERANKS
    ends = [end for end in USES if name.endswith(end)]
    return USES[max(ends, key=len)] if ends else None


def other_use(source: object, name: str, lack: str, labels: int | None = None) -> InputError:
    """Returns the error for a model passed to a command for another kind.

    Args:
        source: folder or name of the model.
        name, labels: see `use_of`.
        lack: its missing capability, such as "which cannot summarise".
    """
    use = use_of(name, labels)
    remedy = "give another" if use is None else f"it is {use.kind}: give it to {use.takers}"
    return InputError(f"model {str(source)!r} is a {name}, {lack}; {remedy}")


OTHER_HEADS = (
    *("ForSequenceClassification", "ForQuestionAnswering", "ForTokenClassification", "ForCausalLM"),
    *("EncoderModel", "Encoder", "Decoder"),
)
"""Suffixes of classes made from an encoder-decoder, or from half of one, that do not write a text from another."""


def writes_texts(kind: Any, name: str) -> bool:
    """Whether a transformers model, by `model_type` and class, is an encoder-decoder that writes: including the bare
    model, since its head is the token table, and published files name it (BART) or a removed class (T5)."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

    return kind in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES and not name.endswith(OTHER_HEADS)


def continues_texts(kind: Any, name: str) -> bool:
    """Whether a transformers model, by `model_type` and class, is a causal language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return name.endswith(("ForCausalLM", "LMHeadModel")) or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind) == name
