"""The model card in every saved folder: the model's properties, its origin, and how to load it."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from longspan.models.heads import HEADS
from longspan.stacks import stack_config

NAME = "README.md"
ABOUT_LOADING = "## How to load it"
MARK = "<!-- This card was written by Longspan when the model was saved; a card without this line is left alone. -->"
KINDS: dict[str, tuple[str | None, str | None]] = {
    "LongspanModel": ("AutoModel", "feature-extraction"),
    "LongspanForCausalLM": ("AutoModelForCausalLM", "text-generation"),
    "LongspanForConditionalGeneration": ("AutoModelForSeq2SeqLM", "summarization"),
    "LongspanForPrefixLM": (None, "summarization"),
    "LongspanTrunk": (None, "feature-extraction"),
}
"""Model class without a head → the Auto class that loads it, and the Hub's name of its task."""


def auto_and_pipeline(name: str) -> tuple[str | None, str | None]:
    """Returns the Auto class of a model class, and the Hub's name of its task, each `None` if there is none."""
    heads = {spec.model: (spec.auto, spec.pipeline) for spec in HEADS.values()}
    return {**KINDS, **heads}.get(name, (None, None))


def write_card(model: Any, folder: Path) -> None:
    """Writes the card into a folder, unless it has a card that somebody else wrote."""
    if may_write_card(folder):
        (folder / NAME).write_text(model_card(model), encoding="utf-8")


def may_write_card(folder: Path) -> bool:
    """Whether a folder has no card, or one written by Longspan."""
    file = folder / NAME
    if file.is_symlink() or (file.exists() and not file.is_file()):
        return False
    return not file.exists() or MARK in file.read_text(encoding="utf-8", errors="replace")


def model_card(model: Any) -> str:
    """Returns the card of a model, with the front matter for the Hub; unknown values are omitted."""
    config = model.config
    name = type(model).__name__.removeprefix("FSDP")  # PyTorch creates a class for a model with sharded weights
    auto, task = auto_and_pipeline(name)
    stack = stack_config(config.stack)
    mechanisms = [
        stack.stack if stack.brings_attention else config.layer_attention(layer).mechanism
        for layer in range(config.num_hidden_layers)
    ]
    front = ["library_name: longspan"]
    front += [f"pipeline_tag: {task}"] if task else []
    front += [f"base_model: {json.dumps(config.source_name)}"] if config.source_name else []
    front += ["tags:", *(f"- {tag}" for tag in ("longspan", "long-context", *sorted(set(mechanisms))))]
    report = getattr(model, "report", None)  # the report of `lengthen`, if this very model was lengthened
    sections = [
        "---\n" + "\n".join(front) + "\n---\n" + MARK,
        f"# {name} for up to {config.max_position_embeddings:,} tokens",
        _what(model, mechanisms),
        "" if report is None else f"## How it was lengthened\n\n```text\n{report}\n```",
        _loading(name, auto),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _what(model: Any, mechanisms: list[str]) -> str:
    config = model.config
    groups = []
    for mechanism, members in groupby(range(len(mechanisms)), key=mechanisms.__getitem__):
        layers = list(members)
        groups.append(f"`{mechanism}` (layer {layers[0]}{f' to {layers[-1]}' if len(layers) > 1 else ''})")
    source = "weights made with Longspan"
    if config.source_model_type:
        name = f" `{config.source_name}`" if config.source_name else ""
        source = f"a published `{config.source_model_type}` model{name}"
    lines = {
        "Started from": source,
        "Encoder": f"{config.num_hidden_layers} layers, {config.hidden_size} wide, attention {', '.join(groups)}",
        "Decoder": f"{config.decoder_layers} layers" if config.decoder_layers else "",
        "Parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
        "Vocabulary": f"{config.vocab_size:,} tokens",
        "Global tokens by default": config.global_tokens,
    }
    return "\n".join(f"- {name}: {text}" for name, text in lines.items() if text)


def _loading(name: str, auto: str | None) -> str:
    if auto is None:
        code = f"from longspan.models import {name}\n\nmodel = {name}.from_pretrained(folder)"
    else:
        code = f"import longspan  # makes the model known to transformers\nfrom transformers import {auto}\n\n"
        code += f"model = {auto}.from_pretrained(folder)"
    return f"{ABOUT_LOADING}\n\n```python\n{code}\n```"
