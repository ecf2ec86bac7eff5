"""Which published architecture a configuration of ours looks like."""

from __future__ import annotations

from typing import Any

from longspan.checkpoints.architectures.deberta import LATER


def natural_architecture(config: Any) -> str:
    """The `model_type` of the first architecture that fits the attention and the conventions of a `LongspanConfig`."""
    if config.stack["stack"] == "reversible":
        return "reformer"
    if config.stack["stack"] == "recurrent":
        return "transfo-xl"
    layers = [config.layer_attention(layer) for layer in range(config.num_hidden_layers)]
    fusions = [layer for layer in layers if layer.mechanism == "fusion"]
    if fusions:
        return "deberta-v2" if any(getattr(layer, name) for layer in fusions for name in LATER) else "deberta"
    windowed = any(layer.mechanism != "full" for layer in layers)
    if config.decoder_layers:
        return "led" if windowed else "mbart" if config.normalization == "pre" else "bart"
    if windowed or config.positions_skip_padding:
        return "longformer" if windowed else "roberta"
    if config.embedding_width != config.hidden_size:
        return "electra"
    # BERT always has token types, DistilBERT none.
    return "bert" if config.type_vocab_size else "distilbert"
