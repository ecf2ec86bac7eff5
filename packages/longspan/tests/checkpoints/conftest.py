"""Tiny random models of transformers, with weights large enough that every mistake shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from longspan.patterns import parse

ENCODER = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 53,
}
SEQUENCE = {
    "vocab_size": 61,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 36,
    "max_position_embeddings": 53,
}
SIZES: dict[str, dict[str, Any]] = {
    "Bert": ENCODER,
    "Roberta": ENCODER | {"max_position_embeddings": 55, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "XLMRoberta": ENCODER | {"max_position_embeddings": 55, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "Camembert": ENCODER | {"max_position_embeddings": 55, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "DistilBert": {
        "vocab_size": 61,
        "dim": 24,
        "n_layers": 2,
        "n_heads": 3,
        "hidden_dim": 40,
        "max_position_embeddings": 53,
    },
    "BigBird": ENCODER | {"max_position_embeddings": 56, "block_size": 4, "num_random_blocks": 1, "sep_token_id": 5},
    "Electra": ENCODER | {"embedding_size": 16},
    "Longformer": ENCODER | {"max_position_embeddings": 66, "type_vocab_size": 1, "attention_window": [4, 8]},
    "Deberta": ENCODER | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "layer_norm_eps": 1e-7},
    "DebertaV2": ENCODER
    | {
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_biased_input": False,
        "position_buckets": 8,
        "max_relative_positions": 30,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    },
    "Reformer": {
        "vocab_size": 61,
        "hidden_size": 24,
        "num_attention_heads": 2,
        "attention_head_size": 5,
        "feed_forward_size": 40,
        "attn_layers": ["local", "lsh", "local", "lsh"],
        "lsh_attn_chunk_length": 8,
        "local_attn_chunk_length": 4,
        "num_buckets": 4,
        "num_hashes": 2,
        "hash_seed": 3,
        "axial_pos_shape": [4, 18],
        "axial_pos_embds_dim": [10, 14],
        "max_position_embeddings": 72,
    },
    "Bart": SEQUENCE,
    "MBart": SEQUENCE | {"scale_embedding": True, "decoder_start_token_id": 5},
    "Pegasus": SEQUENCE | {"scale_embedding": True, "decoder_start_token_id": 0, "forced_eos_token_id": None},
    "Marian": SEQUENCE | {"decoder_start_token_id": 1, "pad_token_id": 1, "eos_token_id": 2},
    "BigBirdPegasus": SEQUENCE | {"max_position_embeddings": 56, "block_size": 4, "num_random_blocks": 1},
    "LED": {key: value for key, value in SEQUENCE.items() if key != "max_position_embeddings"}
    | {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 29, "attention_window": [8, 4]},
}


@pytest.fixture
def published() -> Callable[..., PreTrainedModel]:
    """`published("BertForMaskedLM", option=value)` → that class of transformers with random weights, for evaluation."""

    def make(name: str, **options: Any) -> PreTrainedModel:
        family = name.split("For")[0].split("Model")[0].removesuffix("MT")
        config = getattr(transformers, f"{family}Config")(**(SIZES[family] | options))
        model = getattr(transformers, name)(config)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        for module in model.modules():
            if hasattr(module, "create_weight"):  # sinusoids, which are no weights
                module.weight.data.copy_(module.create_weight())
        if "final_logits_bias" in dict(model.named_buffers()):
            model.final_logits_bias.normal_()
        return model.eval()

    return make


@pytest.fixture
def batch() -> Callable[..., dict[str, Tensor]]:
    """`batch(model, tokens)` → random ids, the second of three rows half padded and the third by one token."""

    def make(model: PreTrainedModel, tokens: int, *, globals: bool = False) -> dict[str, Tensor]:
        config: Any = model.config
        ids = torch.randint(3, config.vocab_size, (3, tokens))
        mask = torch.ones(3, tokens, dtype=torch.long)
        mask[1, (tokens + 1) // 2 :] = 0
        mask[2, max(1, tokens - 1) :] = 0
        ids[mask == 0] = config.pad_token_id
        inputs = {"input_ids": ids, "attention_mask": mask}
        if globals:
            marked = torch.zeros_like(mask)
            marked[0, tokens // 3] = 1
            marked[:, 0] = 1
            marked[2, tokens // 2] = 1
            inputs["global_attention_mask"] = marked
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = torch.randint(3, config.vocab_size, (3, 7))
        return inputs

    return make


@pytest.fixture
def widest() -> Callable[..., float]:
    """`widest(left, right, mask)` → the largest difference of two tensors, over the real tokens where `mask` fits."""

    def measure(left: Tensor, right: Tensor, mask: Tensor | None = None) -> float:
        assert left.shape == right.shape
        difference = (left - right).detach().abs()
        if mask is not None and difference.shape[:2] == mask.shape:
            difference = difference[mask.bool()]
        return float(difference.max()) if difference.numel() else 0.0

    return measure


OUTPUTS = ("last_hidden_state", "pooler_output", "logits", "start_logits", "end_logits")


@pytest.fixture
def outputs() -> Callable[..., dict[str, Tensor]]:
    """`outputs(model, inputs)` → the last states and whatever the head says, by name."""

    @torch.no_grad()
    def read(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        found = model(**inputs, output_hidden_states=True)
        if "prediction_logits" in found:
            found["logits"] = found["prediction_logits"]
        states = found["encoder_last_hidden_state"] if "decoder_input_ids" in inputs else found["hidden_states"][-1]
        return {"states": states} | {name: found[name] for name in OUTPUTS if found.get(name) is not None}

    return read


@pytest.fixture
def assert_equal(outputs: Callable[..., dict[str, Tensor]], widest: Callable[..., float]) -> Callable[..., None]:
    """`assert_equal(theirs, ours, inputs, limit)`: both give the same outputs, equal on the real tokens."""

    def check(theirs: PreTrainedModel, ours: PreTrainedModel, inputs: dict[str, Tensor], limit: float = 1e-5) -> None:
        want, got = outputs(theirs, inputs), outputs(ours, inputs)
        assert want.keys() == got.keys()
        for name, tensor in want.items():
            mask = None if name == "logits" and "decoder_input_ids" in inputs else inputs["attention_mask"]
            assert widest(tensor, got[name], mask) <= limit, name

    return check


@pytest.fixture
def exact_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeBERTa-v2's 1/√(n·D) in float64 too, which it rounds to float32; comparisons in float32 leave it as it is."""
    monkeypatch.setattr(
        "transformers.models.deberta_v2.modeling_deberta_v2.scaled_size_sqrt",
        lambda query, terms: torch.tensor(query.size(-1) * terms, dtype=torch.float64).sqrt(),
    )


BODY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
TOKENS = {"vocab_size": 61, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
DECODER = BODY | TOKENS | {"intermediate_size": 48, "max_position_embeddings": 128}
SMALL_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
BOTH = {"use_sliding_window": True, "sliding_window": 6, "layer_types": ["full_attention", "sliding_attention"]}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", TOKENS | SMALL_GPT2),
    "llama": ("LlamaForCausalLM", DECODER),
    "mistral": ("MistralForCausalLM", DECODER | {"sliding_window": None}),
    "mistral with a window": ("MistralForCausalLM", DECODER | {"sliding_window": 7}),
    "qwen2": ("Qwen2ForCausalLM", DECODER),
    "qwen3": ("Qwen3ForCausalLM", DECODER),
    "qwen3 with both kinds of layers": ("Qwen3ForCausalLM", DECODER | BOTH),
}


@pytest.fixture
def decoder() -> Callable[..., PreTrainedModel]:
    """Make `decoder(name, **options)`, a tiny random decoder of transformers with grouped heads where it can."""

    def make(name: str, **options: Any) -> PreTrainedModel:
        torch.manual_seed(0)
        kind = getattr(transformers, DECODERS[name][0])
        model = kind(kind.config_class(**DECODERS[name][1] | options)).eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        for module in model.modules():
            if hasattr(module, "create_weight"):  # sinusoids, which are no weights
                module.weight.data.copy_(module.create_weight())
        return model

    return make


@pytest.fixture
def by_hand() -> Callable[[PreTrainedModel, str], PreTrainedModel]:
    """Make `by_hand(model, pattern)`: transformers' own attention in it, under the dense mask of the pattern.

    The mask is the one that transformers makes for "sdpa", less what the pattern does not show among real tokens.
    """

    def change(model: PreTrainedModel, text: str) -> PreTrainedModel:
        pattern, heads = parse(text), model.config.num_attention_heads

        def mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, attention_mask=None, **rest):
            theirs = sdpa_mask(
                batch_size, q_length, kv_length, q_offset, kv_offset, attention_mask=attention_mask,
                **rest | {"allow_is_causal_skip": False},
            )  # fmt: skip
            end = max(kv_offset + kv_length, int(q_offset) + q_length)
            real = torch.ones(batch_size, end) if attention_mask is None else attention_mask.long()
            real = torch.nn.functional.pad(real, (0, max(0, end - real.shape[1])))
            place = (real.cumsum(1) - 1).long().clamp(min=0)
            query = place[:, int(q_offset) : int(q_offset) + q_length, None]
            key = place[:, None, kv_offset : kv_offset + kv_length]
            each = [pattern.head(head).visible(query, key) for head in range(heads)]
            return theirs & torch.stack(each, dim=1)

        AttentionInterface.register("by_hand", AttentionInterface()["sdpa"])
        AttentionMaskInterface.register("by_hand", mask)
        model.set_attn_implementation("by_hand")
        return model

    return change
