"""What transformers' tests do not get from our models, and why: data for the tests here and for the page about them."""

from __future__ import annotations

VERSION = "5.23.0"
"""Of transformers, whose tests were judged; another version has others."""

FAILING: dict[tuple[str, str], str] = {
    (
        "encoder-decoder",
        "test_generation_tester_mixin_inheritance",
    ): "asks for a mixin of tests that the source package leaves out; its laws are those of "
    "`packages/longspan/tests/contract/test_generation.py`, for every mechanism that writes",
    (
        "causal",
        "test_generation_tester_mixin_inheritance",
    ): "the same",
    (
        "causal",
        "test_correct_missing_keys",
    ): "takes for granted that a base model's weights have shorter names and that a head has weights of its own; "
    "here the names are the same, and the head is the token table, so nothing is missing",
}
"""Kind of model and test → why it fails. One that passes after all is a failure of ours: it must leave this table."""

SKIPPED: dict[str, str] = {
    "Model does not output attentions": "a long mechanism never forms the weights of all pairs; "
    "`output_attentions` gives those of its window, in another shape, and models that write refuse it",
    "Model does not support output_attentions": "the same",
    "Model architecture does not support attentions": "the same; what is compared is transformers' own kernels",
    "Cannot capture hidden states": "`capture_outputs` of transformers is not used; `output_hidden_states` is",
    "No usage of the `capture_outputs` decorator": "the same",
    "No conversion found for": "weights have the same names in the model and in the file",
    "(test )?requires (Flash|MPS|the kernels|multiple|accelerator|deepspeed)": "hardware or a library that is not here",
    "Model is not a composite|This model is not composite|No subconfigs": "there is one configuration",
    "No decoder-only language modeling head|No sequence-to-sequence language": "is for another kind of model",
    "does not support grouped_mm|no sparse experts|no `output_router_logits`": "there are no experts",
    "has no _keep_in_fp32_modules": "no module has to stay in float32",
    "RoPE|This model has no `base_model_class` defined": "rotary positions are none of ours",
    "Model does not have a TP plan": "no plan for tensor parallelism is offered",
    "Model does not have position embeddings": "the mixin resizes positions by a method of a few old models",
    "test is slow": "transformers runs it on accelerators only; "
    "`packages/longspan/tests/contract/test_compiled.py` compiles ours",
}
"""What transformers says when it skips (a regular expression) → what it means here. None may be unused."""

PASSING = {"encoder": 73, "encoder-decoder": 73, "causal": 72}
"""Kind of model → how many tests pass, with every mechanism."""


def page() -> str:
    """The page of the documentation, whose source is here."""
    failing = "\n".join(f"| {kind} | `{test}` | {reason} |" for (kind, test), reason in FAILING.items())
    skipped = "\n".join(
        f"| {said.replace('|', ' / ').replace('(', '').replace(')', '').replace('?', '')} | {reason} |"
        for said, reason in SKIPPED.items()
    )
    counts = ", ".join(
        f"{count} with {'an' if kind[0] == 'e' else 'a'} {kind} model" for kind, count in PASSING.items()
    )
    return f"""# transformers' own tests

`packages/longspan/tests/peers` runs the tests that transformers {VERSION} has for each of its models
(`ModelTesterMixin`, `ConfigTester`) on ours: the encoder with five heads, the encoder–decoder and the causal model,
with the mechanisms `longformer`, `poolingformer`, `bigbird` and `full`. They come from transformers' source package,
which the package index is asked for once; without it they are skipped. Passing: {counts}. This page is generated from
`packages/longspan/tests/peers/expected.py`.

## What fails

A test in this table that passes fails the suite, as does any other that fails.

| Model | Test | Why |
|---|---|---|
{failing}

## What is skipped

| transformers says | Here |
|---|---|
{skipped}
"""
