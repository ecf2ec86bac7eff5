"""What tasks with labels say of them to a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def label_numbers(labels: Sequence[str]) -> dict[str, int]:
    """Each label's place among a model's outputs."""
    return {label: number for number, label in enumerate(labels)}


def label_fields(labels: Sequence[str]) -> dict[str, Any]:
    """The fields of a configuration that give a model an output for each label, under its name."""
    return {"id2label": dict(enumerate(labels)), "label2id": label_numbers(labels)}
