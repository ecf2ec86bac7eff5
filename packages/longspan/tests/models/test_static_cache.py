"""Static caches: the same text token for token where layers keep keys and values, one sentence where they do not; and
one compiled graph for all steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import CompileConfig, GenerationConfig, StaticCache

import longspan
from longspan import MECHANISMS, InputError, LongspanConfig
from longspan.attention.support import supports

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 97,
    "init_std": 0.3,
}
IDS = torch.randint(3, 61, (2, 19), generator=torch.Generator().manual_seed(1))
MASK = (torch.arange(19) >= torch.tensor([[0], [5]])).long()
# Sinkhorn keeps keys and values in a static cache too, but has no compiled step.
PREALLOCATED = {
    "sinkhorn",
    *(name for name, kind in MECHANISMS.items() if supports(kind(), "static_cache", causal=True)),
}
CAUSAL = [name for name, config in MECHANISMS.items() if config.causal]


def writer(attention: Any, kind: str = "LongspanForCausalLM", **options: Any) -> Any:
    torch.manual_seed(0)
    return getattr(longspan, kind)(LongspanConfig(attention=attention, **(SIZES | options))).eval()


def written(model: Any, **options: Any) -> Any:
    given = {"input_ids": IDS.masked_fill(MASK == 0, 1), "attention_mask": MASK, "do_sample": False}
    return model.generate(**(given | {"max_new_tokens": 13, "min_new_tokens": 13} | options))


def test_every_causal_mechanism_is_known_here() -> None:
    assert set(CAUSAL) >= PREALLOCATED


@pytest.mark.parametrize("name", CAUSAL)
def test_a_static_cache_writes_the_same_text_or_is_refused(name: str) -> None:
    model = writer(name)
    if name not in PREALLOCATED:
        with pytest.raises(InputError, match=rf"cache_implementation='static' .* attention '{name}' has another state"):
            written(model, cache_implementation="static")
        assert torch.equal(written(model, cache_implementation="dynamic"), written(model))
    else:
        assert torch.equal(written(model, cache_implementation="static"), written(model))
        beams = {"num_beams": 3, "num_return_sequences": 2}
        assert torch.equal(written(model, cache_implementation="static", **beams), written(model, **beams))


def test_beside_an_encoder_and_by_the_generation_configuration() -> None:
    window = {"mechanism": "longformer", "left_tokens": 3, "right_tokens": 3}
    sizes = {"decoder_layers": 2, "decoder_attention": {"mechanism": "longformer", "left_tokens": 4}}
    model = writer(window, "LongspanForConditionalGeneration", **sizes)
    expected = written(model)
    assert torch.equal(written(model, cache_implementation="static"), expected)
    settings = GenerationConfig(cache_implementation="static", max_new_tokens=13, min_new_tokens=13, eos_token_id=2)
    settings.decoder_start_token_id, settings.pad_token_id = 2, 1
    given = {"input_ids": IDS.masked_fill(MASK == 0, 1), "attention_mask": MASK}
    assert torch.equal(model.generate(**given, generation_config=settings), expected)


def everywhere(**options: Any) -> CompileConfig:
    """To compile steps on a processor too, as transformers does on a GPU."""
    given: Any = {"fullgraph": True, "mode": None} | options
    config: Any = CompileConfig(**given)
    config._compile_all_devices = True
    return config


class Counting:
    """A backend that computes what it is given as it stands, and counts graphs and how often they are called."""

    def __init__(self) -> None:
        self.graphs = self.calls = 0
        self.config = everywhere(backend=self)

    def __deepcopy__(self, memo: Any) -> Counting:
        return self

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1

        def run(*given: Any) -> Any:
            self.calls += 1
            return graph.forward(*given)

        return run


@pytest.fixture
def counting() -> Counting:
    torch.compiler.reset()
    return Counting()


NEAR = {"mechanism": "longformer", "left_tokens": 7}
DILATED = {"mechanism": "longformer", "left_tokens": 4, "dilation": [1, 2, 1, 3]}
STRIDED = {"mechanism": "sparse", "kind": "strided", "stride": 4, "heads": "per_head"}
FIXED = {"mechanism": "sparse", "stride": 4, "summary_tokens": 1}
HIGHEST = {"mechanism": "explicit_sparse", "top_k": 4, "top_fraction": 0.3, "local_budget": True}
SPAN = {"mechanism": "adaptive_span", "span_tokens": 16, "ramp_tokens": 4, "initial_span": 0.5}
BOTH = {"mechanism": "longformer", "left_tokens": 3, "right_tokens": 3}
WRITERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "learned positions": (["full", NEAR], "LongspanForCausalLM", {}),
    "every mechanism": (
        ["full", NEAR, DILATED, STRIDED, FIXED, HIGHEST, SPAN, "synthesizer"],
        "LongspanForCausalLM",
        {"num_hidden_layers": 8, "position_embedding": "sinusoidal"},
    ),
    "relative positions": (
        {"mechanism": "full", "positions": "relative"},
        "LongspanForCausalLM",
        {"position_embedding": "none"},
    ),
    "relative positions in a window": (
        NEAR | {"positions": "relative"},
        "LongspanForCausalLM",
        {"position_embedding": "none"},
    ),
    "one block several times": (
        "full",
        "LongspanForCausalLM",
        {"position_embedding": "none", "stack": {"stack": "universal", "halting": "adaptive"}},
    ),
    "two streams": (["full", NEAR], "LongspanForCausalLM", {"stack": {"stack": "reversible"}, "normalization": "pre"}),
    "beside an encoder": (
        BOTH,
        "LongspanForConditionalGeneration",
        {"decoder_layers": 2, "decoder_attention": ["full", NEAR]},
    ),
    "behind a source": ("full", "LongspanForPrefixLM", {}),
}


def test_every_mechanism_that_keeps_keys_and_values_is_compiled_here() -> None:
    layers = [layer if isinstance(layer, str) else layer["mechanism"] for layer in WRITERS["every mechanism"][0]]
    assert set(layers) == PREALLOCATED - {"sinkhorn"}


@pytest.mark.variant
@pytest.mark.parametrize("name", WRITERS)
def test_one_graph_serves_all_steps_and_writes_the_same(name: str, counting: Counting) -> None:
    attention, kind, options = WRITERS[name]
    model = writer(attention, kind, **options)
    more = {"max_new_tokens": 23, "min_new_tokens": 23, "return_dict_in_generate": True, "output_logits": True}
    if kind == "LongspanForPrefixLM":
        model.config.decoder_start_token_id = 2
    static = {"cache_implementation": "static", "compile_config": counting.config}
    expected, output = written(model, **more), written(model, **static, **more)
    assert torch.equal(output.sequences, expected.sequences)
    torch.testing.assert_close(output.logits, expected.logits, atol=1e-5, rtol=0)
    assert (counting.graphs, counting.calls) == (1, 22)  # the first token comes of what is read before

    # Another batch, of other lengths, in another cache of the same size; a source is read in the length that it has.
    width = 19 if model.config.is_encoder_decoder else 11
    given = {"input_ids": IDS.flip(0)[:, :width], "attention_mask": MASK.flip(0)[:, :width]}
    expected, output = written(model, **more, **given), written(model, **static, **more, **given)
    assert torch.equal(output.sequences, expected.sequences)
    assert (counting.graphs, counting.calls) == (1, 44)


@pytest.mark.variant
def test_another_size_of_the_cache_is_another_graph(counting: Counting) -> None:
    """In which dynamo holds numbers that have changed for symbols."""
    model = writer(["full", NEAR])
    static = {"cache_implementation": "static", "compile_config": counting.config}
    for graphs, count in enumerate((3, 5), 1):
        more = {"max_new_tokens": count, "min_new_tokens": count}
        assert torch.equal(written(model, **static, **more), written(model, **more))
        assert counting.graphs == graphs


@pytest.mark.variant
@pytest.mark.parametrize("kind", ["Bart", "Pegasus"])  # with learned positions, and with sinusoids
def test_the_compiled_steps_of_a_published_model_write_what_transformers_writes(kind: str, counting: Counting) -> None:
    sizes: dict[str, Any] = {"d_model": 24, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "encoder_layers": 1}
    sizes |= {"decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "init_std": 0.3}
    ids = {"vocab_size": 61, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes, **ids, forced_eos_token_id=None)
    theirs = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    more = {"no_repeat_ngram_size": 2, "return_dict_in_generate": True, "output_logits": True}
    static = {"cache_implementation": "static", "compile_config": counting.config}
    expected, output = written(theirs, **more), written(longspan.from_transformers(theirs), **static, **more)
    assert torch.equal(output.sequences, expected.sequences)
    torch.testing.assert_close(output.logits, expected.logits, atol=1e-5, rtol=0)
    assert (counting.graphs, counting.calls) == (1, 12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # PyTorch's own
def test_steps_compiled_by_inductor_write_the_same() -> None:
    """A window that the text grows out of, beside an encoder, in the code that a processor runs."""
    torch.compiler.reset()
    model = writer(BOTH, "LongspanForConditionalGeneration", decoder_layers=2, decoder_attention=["full", NEAR])
    more = {"return_dict_in_generate": True, "output_logits": True}
    expected = written(model, **more)
    output = written(model, cache_implementation="static", compile_config=everywhere(), **more)
    assert torch.equal(output.sequences, expected.sequences)
    torch.testing.assert_close(output.logits, expected.logits, atol=1e-5, rtol=0)


@pytest.mark.variant
def test_what_cannot_be_one_graph_is_refused(counting: Counting) -> None:
    model = writer("full")
    for options in ({}, {"cache_implementation": "dynamic"}):
        with pytest.raises(InputError, match="compile_config was given without a static cache"):
            written(model, compile_config=counting.config, **options)
    static = {"cache_implementation": "static", "compile_config": counting.config}
    for name, value in {"num_beams": 3, "prefill_chunk_size": 5}.items():
        with pytest.raises(InputError, match=f"compile_config was given, and {name}={value} goes other ways"):
            written(model, **static, **{name: value})
    with pytest.raises(InputError, match="compile_config was given, and a step of attention 'sinkhorn' is not one"):
        written(writer("sinkhorn"), **static)
    sums = writer("linear")
    with pytest.raises(InputError, match="cache, a StaticCache, contains keys and values, and attention 'linear'"):
        written(sums, cache=StaticCache(config=sums.config, max_cache_len=40))
    model.generation_config.compile_config = counting.config
    with pytest.raises(InputError, match="compile_config was given without"):
        written(model)
    assert counting.graphs == 0


@pytest.mark.variant
@torch.no_grad()
def test_a_static_cache_that_is_full_says_so() -> None:
    model = writer(["full", NEAR])
    cache = StaticCache(config=model.config, max_cache_len=20)
    model(IDS, cache=cache)
    with pytest.raises(InputError, match="cache has room for 20 tokens, and 2 more would make 21"):
        model(IDS[:, :2], cache=cache)
    torch.compiler.reset()
    step = torch.compile(model, fullgraph=True, backend="eager")
    step(IDS[:, :1], cache=cache)
    with pytest.raises(RuntimeError, match="cache is full"):
        step(IDS[:, :1], cache=cache)
