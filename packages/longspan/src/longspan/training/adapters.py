"""LoRA with PEFT: adapters are trained while the weights are frozen, saved as by PEFT, and merged into the
final model.
"""

from __future__ import annotations

import shutil
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from longspan.checkpoints.folder import weight_files
from longspan.errors import InputError
from longspan.files import part_of, whole_file
from longspan.imports import require
from longspan.models.card import NAME as CARD
from longspan.models.card import may_write_card
from longspan.progress import without_file_bars
from longspan.training.optimisation import Lora

ADAPTER = "adapter"
"""The folder of the adapter in the output folder, for `PeftModel.from_pretrained(base, "runs/…/adapter")`."""
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json", "README.md")


def check_adapters(*, new: bool) -> None:
    """Raises `InputError` if PEFT is not installed, or a new model has nothing to adapt."""
    if new:
        raise InputError("optimisation.lora adapts weights that are trained already; give model.from, or leave it out")
    require("peft", extra="lora", purpose="optimisation.lora")


def add_adapters(model: Any, lora: Lora) -> Any:
    """Returns the model with adapters, of which only these, `train_whole` and a newly added head are trained.

    Raises:
        InputError: a name in `targets` or `train_whole` does not exist in the model.
    """
    peft = require("peft", extra="lora", purpose="optimisation.lora")
    names = [name for name, _ in model.named_modules() if name]
    for option in ("targets", "train_whole"):
        for wanted in getattr(lora, option):
            if not any(name == wanted or name.endswith(f".{wanted}") for name in names):
                some = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in names if not name[-1].isdigit()))
                raise InputError(
                    f"optimisation.lora.{option} has {wanted!r}, which no module of the model is called; it has {some}"
                )
    heads = {name.rpartition(".")[0] for name in getattr(model, "new_weights", ())} - {""}
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        modules_to_save=sorted({*lora.train_whole, *heads}) or None,
    )
    try:
        with warnings.catch_warnings():
            # PEFT uses a name that transformers has deprecated.
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
            return peft.get_peft_model(model, settings)
    except (ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"optimisation.lora={asdict(lora)} does not fit this model: {reason}") from error


def write_merged(model: Any, checkpoint: Path, folder: Path) -> set[str]:
    """Writes the adapter of a checkpoint into `folder/adapter`, and the model with it merged into `folder`; returns the
    names of the files with its weights.

    `model` is that of `add_adapters`; it is changed.
    """
    peft = require("peft", extra="lora", purpose="optimisation.lora")
    peft.set_peft_model_state_dict(model, peft.load_peft_weights(str(checkpoint), device="cpu"))
    for name in ADAPTER_FILES:
        if (checkpoint / name).is_file():
            with whole_file(folder / ADAPTER / name) as part:
                shutil.copyfile(checkpoint / name, part)
    with part_of(folder, "merged", "partial", folder) as partial:
        with without_file_bars():
            model.merge_and_unload().save_pretrained(partial)
        for file in partial.iterdir():
            if file.name == CARD and not may_write_card(folder):
                continue
            with whole_file(folder / file.name) as part:
                shutil.copyfile(file, part)
        return weight_files(partial)
