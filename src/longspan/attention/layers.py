"""The mechanisms of the layers of a model, as plain data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from longspan.attention import attention_config
from longspan.errors import InputError


def plain_layers(spec: Any, layers: int) -> dict[str, Any] | list[dict[str, Any]]:
    """One mechanism spec, or a list of one per layer, as plain JSON data with every option filled in."""
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        if len(spec) != layers:
            raise InputError(
                f"attention lists {len(spec)} mechanisms for num_hidden_layers={layers}; give one per layer"
            )
        return [_plain_spec(entry) for entry in spec]
    return _plain_spec(spec)


def _plain_spec(spec: Any) -> dict[str, Any]:
    data = attention_config(spec).to_dict()
    # A dropout that nobody chose is left open, so that `attention_dropout` keeps deciding it.
    chosen = isinstance(spec, dict) and "dropout" in spec
    if not chosen and not data.get("dropout"):
        data.pop("dropout", None)
    return json.loads(json.dumps(data))
