"""Opening a published model: a transformers instance, a directory or a Hub name — safetensors only, no remote code.

The Hub is asked only for a name that a user gave: on the command line, in Python, or in a recipe. A name that stands in
a file which may come from anybody, such as an index, is looked up here and in the cache, see `local_folder`.
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
"""Seconds after which a host that does not answer counts as out of reach."""
SHOWN_PATH = 300
"""Characters of a path that an error shows whole."""
RUNS = "runs"
"""The folder in which `longspan train` puts models: what begins with it is never a name on the Hub."""


def is_path(source: str | Path) -> bool:
    """Whether a source that is not there is a path, and so never looked up on the Hub.

    A Hub name is `name` or `owner/name`. Anything else is a path: more than one slash or one at an end, a backslash, a
    first character `.`, `/` or `~`, and a first part that is `runs` or a folder that is here.
    """
    text = str(source)
    first, slash, _ = text.partition("/")
    if not re.fullmatch(r"[^./~\\][^/\\]*(/[^/\\]+)?", text) or Path(text).is_absolute():
        return True
    return first == RUNS or bool(slash and os.path.isdir(first))


def local_folder(source: str) -> Path | None:
    """The folder of a model that a file names, without the network: itself, or what the cache has of a Hub name."""
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
    """Raise `InputError` unless the cache has `file` of the repository `name`, or the Hub answers; always for a path.

    `what` says in the sentence what the name, which is no folder, stands for.
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
    """A name in quotes, as it is but for characters that break a line or steer a terminal."""
    return f"'{name}'" if name.isprintable() and len(name) <= SHOWN_PATH else show(name)


def _unreachable(host: str) -> str | None:
    """Why the Hub does not answer, through the proxy where there is one; None where it does."""
    import huggingface_hub

    request = Request(huggingface_hub.constants.ENDPOINT, method="HEAD")
    try:
        # Not `urlopen`, which remembers the proxies of its first call.
        with build_opener().open(request, timeout=PATIENCE):
            return None
    except HTTPError:
        return None  # an answer, whatever it says
    except URLError as error:
        # A certificate that Python's own store does not know may well be in the one that downloads use.
        return None if isinstance(error.reason, ssl.SSLError) else " ".join(str(error.reason).split())
    except (OSError, HTTPException) as error:
        return " ".join(str(error).split()) or type(error).__name__


def load_any(model_or_path: PreTrainedModel | str | Path, *, in_place: bool = False) -> PreTrainedModel:
    """The Longspan or transformers model that `model_or_path` stands for, in evaluation mode when it is loaded here.

    Args:
        model_or_path: an instance (returned as it is), a directory written by `save_pretrained`, or a Hub name; which
            of the two a text is, where there is no such directory, says `longspan.checkpoints.sources.is_path`.
        in_place: also one that Longspan has no class for, but lengthens as transformers has it (`IN_PLACE`).

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
    """The class that the files are of: the first that they name, but in an encoder of sentences the model without a
    head, whose weights alone it has, whatever it was trained from."""
    named = (config.get("architectures") or [None])[0]
    if named is None or "For" not in named or config.get("is_encoder_decoder"):
        return named
    from longspan.checkpoints.pooling import MODULES, beside

    return named if beside(name, MODULES) is None else f"{named.partition('For')[0]}Model"


def check_path(path: Path, argument: str) -> None:
    """Refuse a path that the system cannot even look for: too long a name, a NUL, links in a circle."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise InputError(f"{argument} {show(str(path))} cannot be used ({reason}); give an existing one") from error


def read_config(source: str | Path) -> dict[str, Any]:
    """The `config.json` of a model in a folder, or of a Hub name, with values that make sense; `{}` for a folder that
    holds another kind of files.

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
    """Refuse a configuration that asks for far more numbers than its files hold, before any of them is allocated.

    Shapes that differ are named one by one once the model is loaded; this is for sizes that no machine could hold.
    """
    with (
        one_sentence(f"the config.json of model '{name}' is not usable"),
        without_loading_notes(),
        torch.device("meta"),
    ):
        config_class: Any = model_class.config_class
        config = config_class.from_pretrained(name, local_files_only=True)
        empty = model_class(config)
    asked = sum(parameter.numel() for parameter in empty.parameters())
    # A head that is tied when the model is loaded may count twice here, and a tiny model may lack a whole pooler.
    if asked > 4 * held + 2**24:
        raise InputError(
            f"the weights of model '{name}' do not fit its config.json, which asks for {asked:,} numbers where the "
            f"files hold {held:,}"
        )


def _load(name: str, model_class: type[PreTrainedModel]) -> PreTrainedModel:
    model, info = _from_pretrained(name, model_class)
    poolers = {key for key in info["missing_keys"] if "pooler" in key.split(".")}
    if poolers and model_class.__name__.endswith("Model"):
        # Weights saved from a model with a head carry no pooler; a random one must not be taken for theirs.
        model, info = _from_pretrained(name, model_class, add_pooling_layer=False)
    _check_loaded(name, info)
    check_finite(model, name)
    return model.eval()


def check_finite(model: PreTrainedModel, name: str) -> None:
    """Raise `InputError` where weights are NaN or infinite: every output would be, and look like an answer."""
    for key, tensor in model.named_parameters():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise InputError(f"the weights of model '{name}' are damaged: {key} holds NaN or infinity; {AGAIN}")
    for key, tensor in model.named_buffers():
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise InputError(f"the weights of model '{name}' are damaged: {key} holds NaN; {AGAIN}")


def _from_pretrained(name: str, model_class: type[PreTrainedModel], **options: Any) -> Any:
    """The model and transformers' account of its tensors, with our errors."""
    # Misfits are collected instead of raised, so that one sentence can name the first of them.
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
    """Where published files have heads: those that we load, BART's for labels, and that of DeBERTa's discriminator."""
    heads = [head for known in ARCHITECTURES.values() for head in known.heads.values()]
    return {"classification_head", "mask_predictions"} | {
        theirs.split(".")[0] for head in heads for theirs, _ in head.pairs
    }


def _others(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _belongs_to_other_head(key: str) -> bool:
    """Published files often carry the pre-training heads and index buffers beside the weights of the model proper."""
    parts = key.split(".")
    # The heads come last: to know all of them, every architecture's table is imported.
    return "pooler" in parts or parts[-1] in {"position_ids", "token_type_ids"} or parts[0] in _published_heads()
