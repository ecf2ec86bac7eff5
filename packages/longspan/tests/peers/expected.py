"""What transformers' tests do not get from our models, and why: data for the tests here and for the page about them."""

from __future__ import annotations

VERSION = "5.23.0"
"""Of transformers, whose tests were judged; another version has others."""

FAILING: dict[tuple[str, str], str] = {
    (
        "encoder-decoder",
        "test_generation_tester_mixin_inheritance",
    ): "requires a mixin of tests that the source package omits; "
    "`packages/longspan/tests/contract/test_generation.py` tests the same for every causal mechanism",
    (
        "causal",
        "test_generation_tester_mixin_inheritance",
    ): "the same",
    (
        "causal",
        "test_correct_missing_keys",
    ): "assumes that a base model's weights have shorter names and that a head has separate weights; "
    "here the names are the same, and the head is tied to the token embeddings, so nothing is missing",
}
"""Kind of model and test → why it fails. One that passes after all is a failure of ours: it must leave this table."""

SKIPPED: dict[str, str] = {
    "Model does not output attentions": "sparse mechanisms never form the weights of all pairs; "
    "`output_attentions` returns those of the window, in another shape, and generating models refuse it",
    "Model does not support output_attentions": "the same",
    "Model architecture does not support attentions": "the same; the tests compare transformers' kernels",
    "Cannot capture hidden states": "`capture_outputs` is not used; `output_hidden_states` is supported",
    "No usage of the `capture_outputs` decorator": "the same",
    "No conversion found for": "weights have the same names in the model and in the file",
    "(test )?requires (Flash|MPS|the kernels|multiple|accelerator|deepspeed)": "unavailable hardware or library",
    "Model is not a composite|This model is not composite|No subconfigs": "there is one configuration",
    "No decoder-only language modeling head|No sequence-to-sequence language": "applies to another kind of model",
    "does not support grouped_mm|no sparse experts|no `output_router_logits`": "there are no experts",
    "has no _keep_in_fp32_modules": "no module must stay in float32",
    "RoPE|This model has no `base_model_class` defined": "there are no rotary positions",
    "Model does not have a TP plan": "tensor parallelism is not supported",
    "Model does not have position embeddings": "the mixin resizes positions with a method that few old models have",
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
(`ModelTesterMixin`, `ConfigTester`) on Longspan's: the encoder with five heads, the encoder-decoder and the causal
model, with the mechanisms `longformer`, `poolingformer`, `bigbird` and `full`. The tests are in transformers' source
package, which is downloaded once from the package index; without it they are skipped. Passing: {counts}. This page is
generated from `packages/longspan/tests/peers/expected.py`.

## Failing tests

The suite fails if a test of this table passes, or if any other test fails.

| Model | Test | Reason |
|---|---|---|
{failing}

## Skipped tests

| Message of transformers | Reason |
|---|---|
{skipped}
"""
