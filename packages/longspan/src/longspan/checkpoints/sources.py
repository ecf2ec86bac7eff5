"""Loading of published models: a transformers instance, a directory or a Hub name; safetensors only, no remote code.

The Hub is contacted only for names that a user passes: on the command line, in Python, or in a recipe. A name stored in
a file from an untrusted source, such as an index, is looked up locally and in the cache, see `local_folder`.
"""

from __future__ import annotations

import math
import os
import re
import ssl
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlparse
from urllib.request import Request, build_opener

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from longspan.checkpoints.architectures import ARCHITECTURES, IN_PLACE, class_for
from longspan.checkpoints.attention_interface import use_recorded
from longspan.checkpoints.folder import CONFIG, check_fields, check_model_folder
from longspan.checkpoints.plain_folders import is_plain_folder, read_plain_folder
from longspan.errors import InputError, one_sentence
from longspan.model_files import AGAIN, read_json
from longspan.progress import without_file_bars, without_loading_notes
from longspan.settings import show

PATIENCE = 4.0
"""Seconds after which a host that does not answer counts as unreachable."""
SHOWN_PATH = 300
"""Maximum characters of a path in an error message."""
RUNS = "runs"
"""The output folder of `longspan train`: names that begin with it are never Hub names."""


def is_path(source: str | Path) -> bool:
    """Whether a missing source is a path, which is never looked up on the Hub.

    A Hub name is `name` or `owner/name`. Everything else is a path: more than one slash or one at an end, a backslash,
    a first character `.`, `/` or `~`, and a first part that is `runs` or an existing folder.
    """
    text = str(source)
    first, slash, _ = text.partition("/")
    if not re.fullmatch(r"[^./~\\][^/\\]*(/[^/\\]+)?", text) or Path(text).is_absolute():
        return True
    return first == RUNS or bool(slash and os.path.isdir(first))


def local_folder(source: str) -> Path | None:
    """Returns the folder of a model named in a file, without network access: the folder itself, or the cached one of a
    Hub name."""
    import huggingface_hub

    folder = Path(os.path.expanduser(source))
    if folder.is_dir() or is_path(source):
        return folder if folder.is_dir() else None
    try:
        cached = huggingface_hub.try_to_load_from_cache(source, "config.json")
    except ValueError:  # the Hub has no such names
        return None
    return Path(cached).parent if isinstance(cached, str) else None


def check_reachable(name: str, what: str = "model", file: str = "config.json") -> None:
    """Raises `InputError` unless the cache has `file` of the repository `name`, or the Hub answers; always for a path.

    `what` describes the thing with this name in the message.
    """
    import huggingface_hub

    if is_path(name):
        trained = (
            f"`longspan train` puts models into {RUNS}/: train it first, or " if name.split("/")[0] == RUNS else ""
        )
        raise InputError(
            f"{what} directory {_quoted(os.path.expanduser(name))} does not exist; {trained}give an existing directory "
            "or a Hub name"
        )
    try:
        cached = huggingface_hub.try_to_load_from_cache(name, file)
    except ValueError as error:  # the Hub has no such names
        raise InputError(
            f"{what} {_quoted(name)} is neither a directory nor a Hub name; give one of the two"
        ) from error
    if isinstance(cached, str):
        return
    host = urlparse(huggingface_hub.constants.ENDPOINT).hostname or ""
    reason = "HF_HUB_OFFLINE is set" if huggingface_hub.constants.HF_HUB_OFFLINE else _unreachable(host)
    if reason is not None:
        raise InputError(
            f"{what} '{name}' is neither a directory nor a name that can be fetched: {host} cannot be reached and the "
            f"cache has no such {what} ({reason}); give a directory, or fetch it where there is a network"
        )


def _quoted(name: str) -> str:
    """Quotes a name, escaped if it contains line breaks or control characters."""
    return f"'{name}'" if name.isprintable() and len(name) <= SHOWN_PATH else show(name)


def _unreachable(host: str) -> str | None:
    """Returns the reason why the Hub is unreachable, through the proxy if there is one; None if it answers."""
    import huggingface_hub

    request = Request(huggingface_hub.constants.ENDPOINT, method="HEAD")
    try:
        # `urlopen` would reuse the proxies of its first call.
        with build_opener().open(request, timeout=PATIENCE):
            return None
    except HTTPError:
        return None  # any status is an answer
    except URLError as error:
        # A certificate unknown to Python's store may be known to the one that downloads use.
        return None if isinstance(error.reason, ssl.SSLError) else " ".join(str(error.reason).split())
    except (OSError, HTTPException) as error:
        return " ".join(str(error).split()) or type(error).__name__


def load_any(model_or_path: PreTrainedModel | str | Path, *, in_place: bool = False) -> PreTrainedModel:
    """Returns the Longspan or transformers model of `model_or_path`, in evaluation mode if it is loaded here.

    Args:
        model_or_path: an instance (returned unchanged), a directory written by `save_pretrained`, or a Hub name; for a
            missing directory, `longspan.checkpoints.sources.is_path` decides which of the two a text is.
        in_place: also accept models without a Longspan class that are lengthened in transformers' classes (`IN_PLACE`).

    Raises:
        InputError: the directory is missing, holds no safetensors, only a pickle, a damaged file, an unknown
            architecture, or tensors that do not match its configuration.
    """
    if isinstance(model_or_path, PreTrainedModel):
        return model_or_path
    if not isinstance(model_or_path, str | Path):
        raise InputError(
            f"model_or_path={type(model_or_path).__name__} object is not understood; give a transformers model, "
            "a directory or a model name"
        )
    if not str(model_or_path).strip():
        raise InputError(f"model {str(model_or_path)!r} names nothing; give a directory or a model name")
    path, held = Path(os.path.expanduser(model_or_path)), None
    check_path(path, "model")
    if path.is_dir() and is_plain_folder(path):
        return read_plain_folder(path)
    if path.is_dir():
        held = sum(map(math.prod, check_model_folder(path).values()))
        name = str(path)
    elif path.exists():
        raise InputError(f"model '{path}' is a file; give the directory that holds config.json and model.safetensors")
    else:
        name = str(model_or_path)
        check_reachable(name)
    config = _config_of(name)
    architecture = _architecture_of(name, config)
    model_type = str(config.get("model_type"))
    stays = in_place and model_type in IN_PLACE
    if stays:
        model_class: Any = getattr(transformers, IN_PLACE[model_type].class_of(architecture))
    else:
        model_class = class_for(model_type, architecture)
    if held is not None:
        _check_size(name, model_class, held)
    model = _load(name, model_class)
    if stays:
        use_recorded(model, name)
    return model


def _architecture_of(name: str, config: dict[str, Any]) -> str | None:
    """Returns the class of the files: the first one they name, but for a sentence encoder the class without a head,
    since only these weights are saved."""
    named = (config.get("architectures") or [None])[0]
    if named is None or "For" not in named or config.get("is_encoder_decoder"):
        return named
    from longspan.checkpoints.pooling import MODULES, checkpoint_file

    return named if checkpoint_file(name, MODULES) is None else f"{named.partition('For')[0]}Model"


def check_path(path: Path, argument: str) -> None:
    """Raises `InputError` for paths that cannot be accessed: too long, with a NUL, or circular links."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise InputError(f"{argument} {show(str(path))} cannot be used ({reason}); give an existing one") from error


def read_config(source: str | Path) -> dict[str, Any]:
    """Returns the validated `config.json` of a model folder or Hub name; `{}` for a folder of other files.

    Raises:
        InputError: there is no such model, or its `config.json` is damaged.
    """
    path = Path(os.path.expanduser(source))
    check_path(path, "model")
    if path.is_dir():
        file = path / "config.json"
        return {} if is_plain_folder(path) or not file.exists() else read_json(file)
    if path.exists():
        raise InputError(f"model '{path}' is a file; give the directory that holds config.json and model.safetensors")
    check_reachable(str(source))
    return _config_of(str(source))


def _config_of(name: str) -> dict[str, Any]:
    try:
        config, _ = PreTrainedConfig.get_config_dict(name)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n", 1)[0].rstrip(". ")
        raise InputError(f"model '{name}' is neither a directory nor a name that can be fetched: {reason}") from error
    if not config:
        raise InputError(f"model '{name}' has an empty configuration; give a directory written by save_pretrained")
    check_fields(config, CONFIG, f"the config.json of model '{name}'")
    return config


def _check_size(name: str, model_class: type[PreTrainedModel], held: int) -> None:
    """Raises `InputError` for a configuration with far more numbers than its files, before anything is allocated.

    Mismatching shapes are reported individually when the model is loaded; this check is for sizes that cannot be
    allocated.
    """
    with (
        one_sentence(f"the config.json of model '{name}' is not usable"),
        without_loading_notes(),
        torch.device("meta"),
    ):
        config_class: Any = model_class.config_class
        config = config_class.from_pretrained(name, local_files_only=True)
        empty = model_class(config)
    wanted = sum(parameter.numel() for parameter in empty.parameters())
    # A tied head may count twice here, and a tiny model may lack a whole pooler.
    if wanted > 4 * held + 2**24:
        raise InputError(
            f"the weights of model '{name}' do not fit its config.json, which asks for {wanted:,} numbers where the "
            f"files hold {held:,}"
        )


def _load(name: str, model_class: type[PreTrainedModel]) -> PreTrainedModel:
    model, info = _from_pretrained(name, model_class)
    poolers = {key for key in info["missing_keys"] if "pooler" in key.split(".")}
    if poolers and model_class.__name__.endswith("Model"):
        # Weights saved from a model with a head have no pooler; a randomly initialised one must not be used.
        model, info = _from_pretrained(name, model_class, add_pooling_layer=False)
    _check_loaded(name, info)
    check_finite(model, name)
    return model.eval()


def check_finite(model: PreTrainedModel, name: str) -> None:
    """Raises `InputError` if weights are NaN or infinite; of sharded ones, those of this process."""
    for key, weight in model.named_parameters():
        tensor: Any = getattr(weight, "to_local", lambda weight=weight: weight)()
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise InputError(f"the weights of model '{name}' are damaged: {key} holds NaN or infinity; {AGAIN}")
    for key, tensor in model.named_buffers():
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise InputError(f"the weights of model '{name}' are damaged: {key} holds NaN; {AGAIN}")


def _from_pretrained(name: str, model_class: type[PreTrainedModel], **options: Any) -> Any:
    """Returns the model and transformers' loading info, with our errors."""
    # Mismatches are collected instead of raised, so that the message can name the first of them.
    with one_sentence(f"model '{name}' cannot be loaded"), without_loading_notes(), without_file_bars():
        return model_class.from_pretrained(
            name,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
        )


def _check_loaded(name: str, info: dict[str, Any]) -> None:
    problem = f"the weights of model '{name}' do not fit its config.json"
    mismatched = sorted(info["mismatched_keys"], key=str)
    if mismatched:
        key, shape, wanted = mismatched[0]
        raise InputError(f"{problem}: {key} has shape {tuple(shape)}, but the configuration asks for {tuple(wanted)}")
    missing = sorted(info["missing_keys"])
    if missing:
        raise InputError(f"{problem}: {missing[0]} is missing{_others(missing)}")
    unknown = sorted(key for key in info["unexpected_keys"] if not _belongs_to_other_head(key))
    if unknown:
        raise InputError(f"{problem}: {unknown[0]} has no place in the model{_others(unknown)}")


@cache
def _published_heads() -> set[str]:
    """Returns the first name components of published heads: those that we load, BART's for labels, and that of
    DeBERTa's discriminator."""
    heads = [head for known in ARCHITECTURES.values() for head in known.heads.values()]
    return {"classification_head", "mask_predictions"} | {
        theirs.split(".")[0] for head in heads for theirs, _ in head.pairs
    }


def _others(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _belongs_to_other_head(key: str) -> bool:
    """Whether a tensor belongs to a pre-training head or is an index buffer, which published files often contain."""
    parts = key.split(".")
    # Heads are checked last, because this imports the table of every architecture.
    return "pooler" in parts or parts[-1] in {"position_ids", "token_type_ids"} or parts[0] in _published_heads()
