"""Names of models on the Hub: refused at once where there is no way to it, not after half a minute of retries."""

from __future__ import annotations

import ssl
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import urlparse
from urllib.request import Request, build_opener

from longspan.errors import InputError

PATIENCE = 4.0
"""Seconds after which a host that does not answer counts as out of reach."""


def check_reachable(name: str, what: str = "model", file: str = "config.json") -> None:
    """Raise `InputError` unless the cache has `file` of the repository `name`, or the Hub answers.

    `what` says in the sentence what the name, which is no folder, stands for.
    """
    import huggingface_hub

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
