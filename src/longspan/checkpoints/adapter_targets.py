"""What PEFT adapts where a configuration of it names no modules: it looks a model type up in its own tables."""

from __future__ import annotations

from importlib import import_module

from longspan.imports import after_import
from longspan.models.configuration import LongspanConfig

TARGETS = ["query", "value"]
"""The projections that Hu et al. 2021 (LoRA, arXiv 2106.09685, section 4.2) adapt; BERT's have the same names."""


def _tell_peft() -> None:
    """Put our models into every table of PEFT, one for each of its methods, in which BERT stands with these modules."""
    for name, table in vars(import_module("peft.utils")).items():
        if name.endswith("_TARGET_MODULES_MAPPING") and table.get("bert") == TARGETS:
            table[LongspanConfig.model_type] = TARGETS


after_import(("peft.utils",), _tell_peft)
