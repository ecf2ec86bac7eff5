"""Loading of models that summarise: Longspan models, architectures that Longspan converts, and others of
transformers."""

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
    """Load a model that summarises: a generative one, or else a sentence scorer with its tokenizer.

    Args:
        source: a folder or a Hub name.
        language: ISO 639-1 code of the documents, for multilingual models that need a language token.
        decoding: options of generation.
        device: "cpu", "cuda", "cuda:1", …; None is the CPU.
        dtype: "float32", "bfloat16" or "float16"; None is float32.

    Raises:
        InputError: the model cannot be loaded or does not summarise, or an argument does not apply to it.
    """
    if is_sentence_encoder(source):
        raise InputError(f"model {source!r} is a sentence encoder: use --encoder (encoder=… in Python) with a query")
    config_json = read_config(source)
    kind, name = config_json.get("model_type"), architecture_of(config_json)
    writes = writes_texts(kind, name)
    if writes and kind not in ARCHITECTURES:
        model, tokenizer = load_published(source, "sequences", device=device, dtype=dtype)
        _check_rows(tokenizer, model)
        return SequenceWriter(model, tokenizer, source, decoding, config_json, language)
    if not writes and kind != LongspanConfig.model_type and continues_texts(kind, name):
        check_template(load_tokenizer(source), source, name)  # before the weights, which take a while to load
        model, tokenizer = load_published(source, "texts", device=device, dtype=dtype)
        _check_rows(tokenizer, model)
        return ChatWriter(model, tokenizer, source, decoding, config_json, language)
    use = use_of(name)
    if not writes and use is not None and use.command != "summarize":
        labels = len(config_json["id2label"]) if config_json.get("id2label") else config_json.get("num_labels")
        raise other_use(source, name, "which cannot summarise", labels)
    model, tokenizer = load_pair(source, device, dtype)
    if isinstance(model, LongspanForSentenceScoring):
        if decoding != Decoding():
            raise InputError(f"model {source!r} picks sentences and decodes nothing; leave the decoding options out")
        return model, tokenizer
    if isinstance(model, LongspanForConditionalGeneration | LongspanForPrefixLM):
        task = tagging_task(source, model)
        config_json = {} if kind == LongspanConfig.model_type else config_json
        writing: Any = model
        if writes and name.endswith("Model"):
            writing.generation_config = _generation_beside(source) or writing.generation_config
        return OwnWriter(writing, tokenizer, source, decoding, config_json, language, task)
    raise other_use(source, type(model).__name__, "which cannot summarise")


def writer_of(model: Any, tokenizer: Any) -> Writer:
    """Returns the writer for a loaded encoder-decoder, of transformers or Longspan, and its tokenizer.

    Raises:
        InputError: the tokenizer does not belong to the model.
    """
    source, config_json = model.name_or_path or type(model).__name__, model.config.to_dict()
    _check_rows(tokenizer, model)
    if isinstance(model, LongspanForConditionalGeneration):
        return OwnWriter(model.eval(), tokenizer, source, Decoding(), {}, task=tagging_task(source, model))
    return SequenceWriter(model.eval(), tokenizer, source, Decoding(), config_json)


def _generation_beside(source: str) -> Any | None:
    """Returns the generation configuration stored with a bare model, whose class does not load it; None if there is
    none."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(os.path.expanduser(source))
    except OSError:
        return None


def _check_rows(tokenizer: Any, model: Any) -> None:
    """Check that the vocabulary of a tokenizer fits a model. Special tokens may differ, such as those that end a
    turn."""
    rows = SimpleNamespace(vocab_size=len(model.get_input_embeddings().weight))
    check_tokenizer(tokenizer, rows)


def tagging_task(source: str, model: Any) -> Any | None:
    """Returns the task whose tagger weighs tokens for a model, from the recipe in its folder; None if it needs none.

    Raises:
        InputError: no recipe names a tagger, for example because the model was trained only for the upper bound.
    """
    from longspan.stacks import stack_config

    if not stack_config(model.config.stack).reads().importance:
        return None
    from longspan.tasks import task_of_folder

    task: Any = task_of_folder(Path(source))
    if getattr(task, "tagger", None) is None:
        raise InputError(
            f"model {source!r} weights tokens by importance, and no recipe in its folder names a tagger; train it with "
            "task.importance=tagger and task.tagger"
        )
    return replace(task, prefix="", max_source_tokens=model.config.max_position_embeddings)
