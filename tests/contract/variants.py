"""Which options of each mechanism the laws are run with. One that is not named here is run with `SMALL` alone."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "left_tokens": 3,
    "right_tokens": 2,
    "pooled_left_tokens": 7,
    "pooled_right_tokens": 8,
    "relative_span": 5,
    "global_buckets": 3,
    "global_span": 17,
    "block_tokens": 32,
}
"""Sizes for short inputs, given to every mechanism that has an option of the name."""

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "longformer": {
        "plain": {},
        "dilated": {"dilation": (1, 3)},
        "one-sided": {"left_tokens": 0, "right_tokens": 5, "separate_global_projections": False},
    },
    "poolingformer": {
        "plain": {},
        "per-query": {"windows": "per_query", "pooling": "max", "tie_levels": True},
        "ahead": {
            "pooling": "mean",
            "kernel": 4,
            "stride": 3,
            "pooled_left_tokens": 0,
            "separate_global_projections": False,
        },
    },
    "bigbird": {
        "plain": {},
        "extended": {
            "block_tokens": 5,
            "extra_tokens": 4,
            "global_blocks": 0,
            "random_blocks": 0,
            "side_blocks": 2,
            "separate_global_projections": True,
        },
    },
    "fusion": {
        "plain": {},
        "one-level": {"two_level": False, "separate_global_projections": True, "p2c_index": "paper"},
        "buckets": {
            "position_buckets": 4,
            "relative_span": 9,
            "position_norm_eps": 1e-3,
            "tie_position_projections": True,
            "windows": "per_query",
        },
    },
}
"""Mechanism → name of the variant → options on top of `SMALL`."""
