"""Opening a published model: a transformers instance, a directory or a Hub name — safetensors only, no remote code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from longspan.errors import InputError
from longspan.hub import check_reachable
from longspan.progress import without_file_bars

ClassLookup = Callable[[str, str | None], type[PreTrainedModel]]
"""From `model_type` and the first of `architectures` (or None) to the class that loads it; raises `InputError`."""


def open_model(model_or_path: PreTrainedModel | str | Path, class_for: ClassLookup) -> PreTrainedModel:
    """Return the model that `model_or_path` stands for, in evaluation mode when it is loaded here.

    Args:
        model_or_path: an instance (returned as it is), a directory written by `save_pretrained`, or a Hub name.
        class_for: which class loads a given `model_type` and architecture name.

    Raises:
        InputError: the directory is missing, holds no safetensors, only a pickle, a damaged file, an unknown
            architecture, or tensors that do not fit its configuration.
    """
    if isinstance(model_or_path, PreTrainedModel):
        return model_or_path
    if not isinstance(model_or_path, str | Path):
        raise InputError(
            f"model_or_path={type(model_or_path).__name__} object is not understood; give a transformers model, "
            "a directory or a model name"
        )
    path = Path(model_or_path).expanduser()
    if path.is_dir():
        _check_files(path)
        name = str(path)
    elif path.exists():
        raise InputError(f"model '{path}' is a file; give the directory that holds config.json and model.safetensors")
    elif path.is_absolute() or str(model_or_path).startswith((".", "~")) or len(path.parts) > 2:
        raise InputError(f"model directory '{path}' does not exist; give an existing directory or a model name")
    else:
        name = str(model_or_path)
        check_reachable(name)
    config = _read_config(name)
    architectures = config.get("architectures") or [None]
    return _load(name, class_for(str(config.get("model_type")), architectures[0]))


def _check_files(directory: Path) -> None:
    """Raise a clear `InputError` for a directory whose files cannot be a checkpoint, before anything is loaded."""
    if not (directory / "config.json").is_file():
        raise InputError(f"'{directory}' has no config.json; give a directory written by save_pretrained")
    _check_config(directory / "config.json")
    files = sorted(directory.glob("*.safetensors"))
    pickles = [*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth"), *directory.glob("*.ckpt")]
    if not files and pickles:
        raise InputError(
            f"'{directory}' holds its weights only as a pickle ({pickles[0].name}), which is never loaded because it "
            "can run code; convert it to safetensors first"
        )
    if not files:
        raise InputError(f"'{directory}' holds no *.safetensors file; give a directory written by save_pretrained")
    for file in sorted({*files, *_shards(directory)}):
        _check_file(file)


def _check_config(file: Path) -> None:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # of which broken JSON and broken UTF-8 are kinds
        raise InputError(f"'{file}' is damaged: it is not valid JSON ({error}); fetch the checkpoint again") from error
    if not isinstance(config, dict):
        raise InputError(f"'{file}' is damaged: it holds no JSON object; fetch the checkpoint again")


def _shards(directory: Path) -> list[Path]:
    """The files that the index names, if the checkpoint is in several pieces."""
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        return []
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"'{index}' is not a valid index of safetensors shards; fetch the checkpoint again") from error
    return [directory / name for name in names]


def _check_file(file: Path) -> None:
    if not file.is_file():
        raise InputError(f"'{file}' is named by the index but is missing; fetch the checkpoint again")
    try:
        with safe_open(file, framework="pt") as opened:
            opened.keys()
    except SafetensorError as error:
        raise InputError(f"'{file}' is damaged or cut short ({error}); fetch the checkpoint again") from error


def _read_config(name: str) -> dict[str, Any]:
    try:
        config, _ = PreTrainedConfig.get_config_dict(name)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n", 1)[0].rstrip(". ")
        raise InputError(f"model '{name}' is neither a directory nor a name that can be fetched: {reason}") from error
    if not config:
        raise InputError(f"model '{name}' has an empty configuration; give a directory written by save_pretrained")
    return config


def _load(name: str, model_class: type[PreTrainedModel]) -> PreTrainedModel:
    model, info = _from_pretrained(name, model_class)
    poolers = {key for key in info["missing_keys"] if "pooler" in key.split(".")}
    if poolers and model_class.__name__.endswith("Model"):
        # Weights saved from a model with a head carry no pooler; a random one must not be taken for theirs.
        model, info = _from_pretrained(name, model_class, add_pooling_layer=False)
    _check_loaded(name, info)
    return model.eval()


def _from_pretrained(name: str, model_class: type[PreTrainedModel], **options: Any) -> Any:
    """The model and transformers' account of its tensors, with our errors."""
    try:
        # Misfits are collected instead of raised, so that one sentence can name the first of them.
        with _quiet(), without_file_bars():
            return model_class.from_pretrained(
                name,
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **options,
            )
    except (OSError, SafetensorError) as error:
        reason = str(error).split("\n", 1)[0].rstrip(". ")
        raise InputError(f"model '{name}' cannot be loaded from safetensors: {reason}") from error
    except InputError:
        raise
    except (ValueError, TypeError) as error:
        # `config.json` holds a value that the class refuses (a head count that does not divide the width, …).
        reason = " ".join(str(error).split()).rstrip(". ")
        raise InputError(f"the config.json of model '{name}' is not usable: {reason}") from error


def _check_loaded(name: str, info: dict[str, Any]) -> None:
    problem = f"the weights of model '{name}' do not fit its config.json"
    mismatched = sorted(info["mismatched_keys"], key=str)
    if mismatched:
        key, found, wanted = mismatched[0]
        raise InputError(f"{problem}: {key} has shape {tuple(found)}, but the configuration asks for {tuple(wanted)}")
    missing = sorted(info["missing_keys"])
    if missing:
        raise InputError(f"{problem}: {missing[0]} is missing{_others(missing)}")
    unknown = sorted(key for key in info["unexpected_keys"] if not _belongs_to_other_head(key))
    if unknown:
        raise InputError(f"{problem}: {unknown[0]} has no place in the model{_others(unknown)}")


HEADS = {
    "cls",
    "lm_head",
    "lm_predictions",
    "mask_predictions",
    "generator_predictions",
    "generator_lm_head",
    "discriminator_predictions",
    "vocab_transform",
    "vocab_layer_norm",
    "vocab_projector",
    "pre_classifier",
    "classifier",
    "qa_outputs",
    "classification_head",
    "final_logits_bias",
}
"""Where published files keep heads."""


def _others(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _belongs_to_other_head(key: str) -> bool:
    """Published files often carry the pre-training heads and index buffers beside the weights of the model proper."""
    parts = key.split(".")
    return parts[0] in HEADS or "pooler" in parts or parts[-1] in {"position_ids", "token_type_ids"}


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide transformers' own loading table: its findings are checked here and raised as errors."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
