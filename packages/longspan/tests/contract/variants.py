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
    "slots": 5,
}
"""Sizes for short inputs, given to every mechanism that has an option of the name and none in its place."""

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "full": {
        "plain": {},
        "relative": {"positions": "relative", "share_biases": False, "bias": False, "clamp_tokens": 4},
    },
    "longformer": {
        "relative": {"positions": "relative", "dilation": (1, 3)},
        "plain": {},
        "dilated": {"dilation": (1, 3)},
        "one-sided": {"left_tokens": 0, "right_tokens": 5, "separate_global_projections": False},
    },
    "adaptive_span": {
        "plain": {"span_tokens": 30, "ramp_tokens": 12},
        "near": {"span_tokens": 9, "ramp_tokens": 3, "sees_itself": True, "bias": True},
        "dynamic": {"span_tokens": 21, "ramp_tokens": 5, "dynamic": True, "span_penalty": 0},
        "far": {"span_tokens": 300, "ramp_tokens": 7, "dynamic": True, "sees_itself": True, "span_penalty": 0},
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
        "three-levels": {
            "levels": [
                {"left_tokens": 5, "right_tokens": 4},
                {"left_tokens": 8, "right_tokens": 7, "kernel": 2, "stride": 2},
                {"left_tokens": 11, "right_tokens": 12, "kernel": 4, "stride": 3, "pooling": "max"},
            ],
            "init": "normal",
        },
        "one-level": {"levels": [{"left_tokens": 4, "right_tokens": 2}]},
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
    "etc": {
        "plain": {"radius_tokens": 3, "clamp_tokens": 2},
        "drawn": {"window": "blocks", "radius_tokens": 32, "random_blocks": 2, "projections": "pieces"},
    },
    "routing": {
        "plain": {"clusters": 3, "cluster_tokens": 5},
        "balanced": {"clusters": 3, "selection": "balanced"},
        "published": {"clusters": 3, "selection": "balanced", "causal_form": "published"},
        "few": {"clusters": 2, "cluster_tokens": 2, "left_tokens": 0, "right_tokens": 0, "seed": 3},
    },
    "cluster": {
        "plain": {"clusters": 3, "chunk_tokens": 6},
        "neighbours": {"clusters": 5, "chunk_tokens": 4, "side_chunks": 1, "seed": 3},
    },
    "reformer": {
        "plain": {"chunk_tokens": 32, "bucket_tokens": 32, "causal_tokens": 64},
        "local": {"local": True, "chunk_tokens": 16, "head_width": 5, "bias": False},
        "thrice": {"chunk_tokens": 16, "rounds": 6, "buckets": 2, "chunks_after": 2, "correct_duplicates": False},
    },
    "linformer": {
        "plain": {},
        "each-head": {"sharing": "none", "slots": 40},
        "one": {"sharing": "layerwise"},
        "input": {"sharing": "key_value", "compress_input": True},
        "random": {"projection": "random", "compress_input": True, "slots": 31},
        "mean": {"projection": "mean", "slots": 512},
        "max": {"projection": "max", "slots": 512, "compress_input": True},
        "conv": {"projection": "conv", "slots": 512},
        "conv-each-head": {"projection": "conv", "sharing": "none", "slots": 300},
    },
    "compressed": {
        "plain": {},
        "mean": {"pooling": "mean", "stride": 4},
        "max": {"pooling": "max", "stride": 2},
        "each": {"stride": 1},
    },
    "sinkhorn": {
        "plain": {"noise": 0.0},
        "learned": {"noise": 0.0, "block_tokens": 5, "sort_net": "mlp", "most_blocks": 2000},
        "linear": {"noise": 0.0, "block_tokens": 4, "sort_net": "linear", "most_blocks": 2000},
        "hybrid": {"noise": 0.0, "block_tokens": 5, "target_attention": "full"},
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
    "performer": {
        "plain": {"features": 7},
        "hyperbolic": {"features": 8, "hyperbolic": True, "orthogonal": False},
        "relu": {"kernel": "relu", "features": 23},
    },
    "synthesizer": {
        "plain": {"max_tokens": 640},
        "random": {"max_tokens": 640, "members": ("random",)},
        "drawn": {"max_tokens": 640, "members": ("fixed_random", "factorised_random"), "rank": 3},
        "factorised": {"max_tokens": 640, "members": ("factorised_dense",), "tile_tokens": 9},
        "mixture": {"max_tokens": 640, "members": ("vanilla", "random", "dense", "factorised_dense")},
        "vanilla": {"max_tokens": 640, "members": ("vanilla", "factorised_random")},
    },
    "blockwise": {
        "plain": {},
        "small": {"block_tokens": 5},
        "shifted": {"block_tokens": 16, "least_blocks": 3, "shifts": (1, 2)},
    },
    "explicit_sparse": {
        "plain": {"top_k": 3, "top_fraction": 0.7},
        "local": {"top_k": 4, "top_fraction": 0.8, "local_budget": True},
    },
    "sparse": {
        "plain": {"stride": 6, "summary_tokens": 2},
        "sub-blocks": {"stride": 6, "summary_tokens": 2, "heads": "per_head", "sub_blocks": 2},
        "strided": {"kind": "strided", "stride": 7},
        "taking-turns": {"kind": "strided", "stride": 5, "heads": "per_head"},
    },
}
"""Mechanism → name of the variant → options on top of `SMALL`."""
