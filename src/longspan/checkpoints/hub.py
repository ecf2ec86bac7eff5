"""Names of models on the Hub: what is one and what is a path, and whether the Hub can be reached.

The Hub is asked only for a name that a user gave: on the command line, in Python, or in a recipe. A name that stands in
a file which may come from anybody, such as an index, is looked up here and in the cache, see `local_folder`.
"""

from __future__ import annotations

import os
import re
import ssl
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlparse
from urllib.request import Request, build_opener

from longspan.errors import InputError

PATIENCE = 4.0
"""Seconds after which a host that does not answer counts as out of reach."""
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
            f"{what} directory '{Path(os.path.expanduser(name))}' does not exist; {trained}give an existing directory "
            "or a Hub name"
        )
    try:
        cached = huggingface_hub.try_to_load_from_cache(name, file)
    except ValueError as error:  # the Hub has no such names
        raise InputError(f"{what} '{name}' is neither a directory nor a Hub name; give one of the two") from error
    if isinstance(cached, str):
        return
    host = urlparse(huggingface_hub.constants.ENDPOINT).hostname or ""
    reason = "HF_HUB_OFFLINE is set" if huggingface_hub.constants.HF_HUB_OFFLINE else _unreachable(host)
    if reason is not None:
        raise InputError(
            f"{what} '{name}' is neither a directory nor a name that can be fetched: {host} cannot be reached and the "
            f"cache has no such {what} ({reason}); give a directory, or fetch it where there is a network"
        )


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
