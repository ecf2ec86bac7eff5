"""Opening a model that summarises: a Longspan one, one that Longspan runs as its own, or any other of transformers."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from longspan.checkpoints.architectures import ARCHITECTURES
from longspan.checkpoints.loading import check_tokenizer, load_pair, load_tokenizer
from longspan.checkpoints.published import load_published
from longspan.checkpoints.sentence_modules import is_sentence_encoder
from longspan.checkpoints.sources import read_config
from longspan.errors import InputError
from longspan.inference.model_use import architecture_of, continues_texts, other_use, use_of, writes_texts
from longspan.models import (
    LongspanConfig,
    LongspanForConditionalGeneration,
    LongspanForPrefixLM,
    LongspanForSentenceScoring,
)
from longspan_documents.inference.abstractive.chat import ChatWriter, check_template
from longspan_documents.inference.abstractive.writers import OwnWriter, SequenceWriter, Writer
from longspan_documents.inference.verbs import Decoding


def load_summarizing(
    source: str, *, language: str | None, decoding: Decoding, device: str | None, dtype: str | None
) -> Writer | tuple[Any, Any]:
    """The model in a folder or of a Hub name, ready to summarise: one that writes, or else one that picks sentences,
    with its tokenizer.

    Args:
        source: the folder or name.
        language: ISO 639-1 code of the documents, for models that are told which language to write.
        decoding: how it writes.
        device: "cpu", "cuda", "cuda:1", …; None is the processor.
        dtype: "float32", "bfloat16" or "float16"; None is float32.

    Raises:
        InputError: it cannot be loaded, does not summarise, or an argument is not for it.
    """
    if is_sentence_encoder(source):
        raise InputError(f"model {source!r} is a sentence encoder: use --encoder (encoder=… in Python) with a query")
    said = read_config(source)
    kind, name = said.get("model_type"), architecture_of(said)
    writes = writes_texts(kind, name)
    if writes and kind not in ARCHITECTURES:
        model, tokenizer = load_published(source, "sequences", device=device, dtype=dtype)
        _check_rows(tokenizer, model)
        return SequenceWriter(model, tokenizer, source, decoding, said, language)
    if not writes and kind != LongspanConfig.model_type and continues_texts(kind, name):
        check_template(load_tokenizer(source), source, name)  # before the weights, which take a while
        model, tokenizer = load_published(source, "texts", device=device, dtype=dtype)
        _check_rows(tokenizer, model)
        return ChatWriter(model, tokenizer, source, decoding, said, language)
    use = use_of(name)
    if not writes and use is not None and use.command != "summarize":
        labels = len(said["id2label"]) if said.get("id2label") else said.get("num_labels")
        raise other_use(source, name, "which cannot summarise", labels)
    model, tokenizer = load_pair(source, device, dtype)
    if isinstance(model, LongspanForSentenceScoring):
        if decoding != Decoding():
            raise InputError(f"model {source!r} picks sentences and decodes nothing; leave the decoding options out")
        return model, tokenizer
    if isinstance(model, LongspanForConditionalGeneration | LongspanForPrefixLM):
        task = tagging_task(source, model)
        said = {} if kind == LongspanConfig.model_type else said
        writing: Any = model
        if writes and name.endswith("Model"):
            writing.generation_config = _generation_beside(source) or writing.generation_config
        return OwnWriter(writing, tokenizer, source, decoding, said, language, task)
    raise other_use(source, type(model).__name__, "which cannot summarise")


def writer_of(model: Any, tokenizer: Any) -> Writer:
    """The writer with an encoder–decoder that transformers has loaded, or a Longspan one, and its tokenizer.

    Raises:
        InputError: the tokenizer is not the model's.
    """
    source, said = model.name_or_path or type(model).__name__, model.config.to_dict()
    _check_rows(tokenizer, model)
    if isinstance(model, LongspanForConditionalGeneration):
        return OwnWriter(model.eval(), tokenizer, source, Decoding(), {}, task=tagging_task(source, model))
    return SequenceWriter(model.eval(), tokenizer, source, Decoding(), said)


def _generation_beside(source: str) -> Any | None:
    """What lies beside a bare model, which does not read it, since it does not write; None where there is nothing."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(os.path.expanduser(source))
    except OSError:
        return None


def _check_rows(tokenizer: Any, model: Any) -> None:
    """Refuse a tokenizer that cannot belong to a model. Special tokens may differ: those that end a turn do."""
    rows = SimpleNamespace(vocab_size=len(model.get_input_embeddings().weight))
    check_tokenizer(tokenizer, rows)


def tagging_task(source: str, model: Any) -> Any | None:
    """The task with whose tagger a model weighs tokens, by the recipe beside it; None for a model that does not.

    Raises:
        InputError: no recipe names a tagger, as where a model was trained for the upper bound alone.
    """
    from longspan.stacks import stack_config

    if not stack_config(model.config.stack).reads().importance:
        return None
    from longspan.tasks import task_beside

    task: Any = task_beside(Path(source))
    if getattr(task, "tagger", None) is None:
        raise InputError(
            f"model {source!r} weighs tokens by importance, and no recipe beside it names a tagger; train it with "
            "task.importance=tagger and task.tagger"
        )
    return replace(task, prefix="", max_source_tokens=model.config.max_position_embeddings)
