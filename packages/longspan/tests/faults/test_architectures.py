"""Published models that cannot come in: by what they are, what their configuration says, or what is asked of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

LONGFORMER = ["lengthen", "model", "--attention", "longformer", "--max-tokens", "128", "--output", "long"]
FUSION = ["lengthen", "model", "--attention", "fusion", "--max-tokens", "128", "--output", "long", "left_tokens=8"]


def config(**keys: Any) -> dict[str, dict[str, Any]]:
    """Keys to set in the checkpoint's configuration."""
    return {"model/config.json": keys}


CASES: dict[str, dict[str, Any]] = {
    "a head of ModernBERT that reads several texts": {
        "checkpoint": "roberta",
        "edit": config(model_type="modernbert", architectures=["ModernBertForMultipleChoice"]),
        "run": LONGFORMER,
        "says": ["'ModernBertForMultipleChoice' is not lengthened", "give ModernBertForMaskedLM or"],
    },
    "an architecture that nobody knows here": {
        "checkpoint": "roberta",
        "edit": config(model_type="albert", architectures=["AlbertForMaskedLM"]),
        "run": LONGFORMER,
        "says": ["model_type='albert'", "distilbert, electra"],
    },
    "a head without counterpart": {
        "checkpoint": "deberta-v2",
        "edit": config(architectures=["DebertaV2ForMultipleChoice"]),
        "run": FUSION,
        "says": ["'DebertaV2ForMultipleChoice' has no counterpart", "DebertaV2ForQuestionAnswering"],
    },
    "a decoder": {
        "checkpoint": "roberta",
        "edit": config(model_type="camembert", architectures=["CamembertForMaskedLM"], is_decoder=True),
        "run": LONGFORMER,
        "says": "is_decoder=True",
    },
    "DeBERTa-v2 without fusion": {
        "checkpoint": "deberta-v2",
        "run": LONGFORMER,
        "says": ["attention='longformer'", "choose attention='fusion'"],
    },
    "DeBERTa-v2 under the default mechanism": {
        "checkpoint": "deberta-v2",
        "run": ["lengthen", "model", "--max-tokens", "128", "--output", "long"],
        "says": "choose attention='fusion'",
    },
    "other buckets than the checkpoint's": {
        "checkpoint": "deberta-v2",
        "run": [*FUSION, "position_buckets=16"],
        "says": ["position_buckets=16 does not fit the source", "position_buckets=8"],
    },
    "untied projections of a tied checkpoint": {
        "checkpoint": "deberta-v2",
        "run": [*FUSION, "tie_position_projections=false"],
        "says": "tie_position_projections=False does not fit the source",
    },
    "a window wider than a table without buckets": {
        "checkpoint": "roberta",
        "run": [*FUSION, "relative_span=4"],
        "says": ["left_tokens=8 exceeds relative_span=4", "narrow the window or widen"],
    },
    "buckets for more offsets than there are": {
        "checkpoint": "roberta",
        "run": [*FUSION, "relative_span=20", "position_buckets=40"],
        "says": "position_buckets=40 leaves no offset of relative_span=20",
    },
    "one bucket": {
        "checkpoint": "roberta",
        "run": [*FUSION, "position_buckets=1"],
        "says": "position_buckets is 1; it must be at least 2",
    },
    "half a bucket": {
        "checkpoint": "roberta",
        "run": [*FUSION, "position_buckets=7.5"],
        "says": "position_buckets is 7.5",
    },
    "a norm without ε": {
        "checkpoint": "roberta",
        "run": [*FUSION, "position_norm_eps=0"],
        "says": "position_norm_eps is 0.0; it must be above 0",
    },
    "ε as a word": {
        "checkpoint": "roberta",
        "run": [*FUSION, "position_norm_eps=small"],
        "says": "position_norm_eps is 'small'",
    },
    "tied projections where there are no positions to keep": {
        "checkpoint": "roberta",
        "run": [*FUSION, "tie_position_projections=true"],
        "says": "tie_position_projections=True leaves nothing",
    },
    "tied as a word": {
        "checkpoint": "roberta",
        "run": [*FUSION, "tie_position_projections=yes"],
        "says": "tie_position_projections is 'yes'; it must be true or false",
    },
    "fewer buckets than weights": {
        "checkpoint": "deberta-v2",
        "edit": config(position_buckets=4),
        "run": FUSION,
        "says": ["do not fit its config.json", "rel_embeddings"],
    },
    "a convolution without its weights": {
        "checkpoint": "deberta-v2",
        "edit": config(conv_kernel_size=3),
        "run": FUSION,
        "says": ["do not fit its config.json", "encoder.conv"],
    },
    "buckets as a word": {
        "checkpoint": "deberta-v2",
        "edit": config(position_buckets="many"),
        "run": FUSION,
        "says": "config.json",
    },
    "embeddings wider than their weights": {
        "checkpoint": "deberta-v2",
        "edit": config(embedding_size=64),
        "run": FUSION,
        "says": "do not fit its config.json",
    },
    "a table shorter than the input": {
        "checkpoint": "deberta-v2-plain",
        "edit": config(max_position_embeddings=100, max_relative_positions=64),
        "run": FUSION,
        "says": ["max_relative_positions=64 without position_buckets", "100 tokens"],
    },
    "fewer tokens than before": {
        "checkpoint": "deberta-v2",
        "run": ["lengthen", "model", "--attention", "fusion", "--max-tokens", "63", "--output", "long"],
        "says": "max_tokens=63 is less than the 64 tokens",
    },
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fault(case: dict[str, Any], check_fault: Callable[..., str]) -> None:
    check_fault(**case)
