"""BigBird and BigBird-Pegasus: random blocks, and transformers' names of their fields.

BigBird is BERT with block-sparse attention, a one-layer pooler, and classification with a dense layer of its own. Its
embeddings have dropout before the normalisation, ours after it: outputs are equal, training is as BERT's. Its question
answering head has a feed-forward layer and masks the question, which ours does not, so it is not supported.

BigBird-Pegasus has mBART's order of layers without a norm of the embeddings, and BigBird's blocks in the encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from longspan.checkpoints.architectures import bart
from longspan.checkpoints.architectures import bert as encoder
from longspan.checkpoints.mapping import Architecture, Head, Pairs, alike
from longspan.errors import InputError


def _read(config: Any) -> dict[str, Any]:
    return encoder.read(config) | {
        "scale_embedding": config.rescale_embeddings,
        "attention": read_attention(config),
    }


def read_attention(config: Any) -> str | list[dict[str, Any]]:
    """Returns our attention layers for theirs, each with its own seed."""
    if config.attention_type == "original_full":
        return "full"
    spec = {
        "mechanism": "bigbird",
        "block_tokens": config.block_size,
        "random_blocks": config.num_random_blocks,
        "random": "transformers",
        "drawn_tokens": config.max_position_embeddings,
    }
    return [spec | {"seed": layer} for layer in range(config.num_hidden_layers)]


def _write(config: Any) -> dict[str, Any]:
    fields = {"rescale_embeddings": config.scale_embedding, "use_bias": True}
    return encoder.write(config) | fields | write_attention(config)


def write_attention(config: Any) -> dict[str, Any]:
    """Returns their fields for our attention.

    Raises:
        InputError: random blocks are drawn as in the paper.
    """
    spec = config.layer_attention(0).to_dict()
    if spec["mechanism"] != "bigbird":
        return {"attention_type": "original_full"}
    if spec["random"] != "transformers":
        raise InputError(
            f"random={spec['random']!r} draws other blocks than transformers' BigBird; only random='transformers' can "
            "be represented there"
        )
    sizes = {"block_size": spec["block_tokens"], "num_random_blocks": spec["random_blocks"]}
    return sizes | {"attention_type": "block_sparse"}


def _classifier(config: Any) -> dict[str, Any]:
    """The dense layer has the activation of the blocks."""
    return {"activation": config.hidden_act, "dropout": config.classifier_dropout}


def with_biases(state: Mapping[str, Tensor], config: Any, projections: tuple[str, ...]) -> Mapping[str, Tensor]:
    """Adds biases of 0 to projections without any (`use_bias=False`), because ours always have them."""
    if config.use_bias:
        return state
    biases = {
        f"{name.removesuffix('weight')}bias": weight.new_zeros(len(weight))
        for name, weight in state.items()
        if name.endswith(tuple(f"{projection}.weight" for projection in projections))
    }
    return {**state, **biases}


BIG_BIRD = replace(
    encoder.BERT,
    model_type="big_bird",
    body=(*encoder.BODY[:-1], ("pooler", "pooler.dense")),
    heads={
        "BigBirdModel": Head("LongspanModel"),
        "BigBirdForMaskedLM": Head("LongspanForMaskedLM", encoder.BERT_MASKED_LM),
        "BigBirdForPreTraining": encoder.PRETRAINING,
        "BigBirdForSequenceClassification": replace(encoder.classifier(encoder.DENSE_CLASSIFIER), options=_classifier),
        "BigBirdForTokenClassification": encoder.TOKENS,
    },
    names=encoder.NAMES + alike("sep_token_id"),
    read=_read,
    write=_write,
    unpack=lambda state, config: with_biases(state, config, ("self.query", "self.key", "self.value")),
)


_THEIRS, _OURS = "encoder.layers.{i}.self_attn", "encoder.layers.{i}.attention"
# Their `layernorm_embedding` is applied after the last layer.
_NORMS: Pairs = tuple((f"{side}.layernorm_embedding", f"{side}.final_norm") for side in ("encoder", "decoder"))
PEGASUS_BODY: Pairs = (
    *_NORMS,
    *bart.stack_pairs("encoder"),
    *((f"{_THEIRS}.self.{name}", f"{_OURS}.{name}") for name in ("query", "key", "value")),
    (f"{_THEIRS}.output", f"{_OURS}.output"),
    *bart.DECODER,
    ("shared", "encoder.embeddings.token"),
)
PEGASUS_PROJECTIONS = (
    *("self.query", "self.key", "self.value", "self_attn.output"),
    *("q_proj", "k_proj", "v_proj", "out_proj"),
)
"""Linear layers that have biases only with `use_bias`."""


def _read_pegasus(config: Any) -> dict[str, Any]:
    bart.warn_of_layerdrop(config)
    return {
        "max_decoder_position_embeddings": config.max_position_embeddings,
        "attention": read_attention(config),
    }


BIGBIRD_PEGASUS = Architecture(
    model_type="bigbird_pegasus",
    prefix="model",
    body=PEGASUS_BODY,
    our_body="",
    heads=bart.generation_heads("BigBirdPegasus"),
    names=bart.NAMES + alike("max_position_embeddings", "scale_embedding"),
    fixed={**bart.FIXED, "position_offset": 0, "normalization": "pre", "embedding_norm": False},
    read=_read_pegasus,
    write=lambda config: {"use_bias": True} | write_attention(config),
    unpack=lambda state, config: with_biases(state, config, PEGASUS_PROJECTIONS),
)
