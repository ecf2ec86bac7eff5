"""ETC's labels are those of the published code; what it shares with a plain Transformer; what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from longspan.attention import MECHANISMS, EtcConfig, Tokens, attention_config
from longspan.errors import InputError

WIDTH, HEADS = 6, 2


def built(**options: Any) -> Any:
    """A module whose weights are all random and different."""
    module = MECHANISMS["etc"](**{"radius_tokens": 3, "clamp_tokens": 2} | options).build(width=WIDTH, heads=HEADS)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module.double()


def test_labels_are_those_of_the_published_generator():
    """Ids of `RelativePositionGenerator(3)` in the authors' code, there 0 to k to the right and k + 1 to 2k to the
    left."""
    published = torch.tensor(
        [
            [0, 1, 2, 3, 3, 3],
            [4, 0, 1, 2, 3, 3],
            [5, 4, 0, 1, 2, 3],
            [6, 5, 4, 0, 1, 2],
            [6, 6, 5, 4, 0, 1],
            [6, 6, 6, 5, 4, 0],
        ]
    )
    row_of_id = torch.tensor([3, 4, 5, 6, 2, 1, 0])  # ours count from -k to k
    module = built(radius_tokens=9, clamp_tokens=3)
    for layer in (module.query, module.key):
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    with torch.no_grad():
        weights = module.weights(torch.randn(1, 6, WIDTH, dtype=torch.float64))
        expected = (module.long_label_bias[:, row_of_id[published]] * module.scale).softmax(-1)
    torch.testing.assert_close(weights[0], expected)


def test_a_radius_over_everything_without_labels_is_a_plain_transformer():
    module = built(radius_tokens=50, clamp_tokens=None, shared_output=True)
    plain = MECHANISMS["full"]().build(width=WIDTH, heads=HEADS).double()
    plain.load_state_dict(module.state_dict())
    hidden, mask = torch.randn(2, 31, WIDTH, dtype=torch.float64), torch.rand(2, 31) < 0.8
    tokens = Tokens(mask=mask, is_global=torch.rand(2, 31) < 0.3)
    torch.testing.assert_close(module(hidden, tokens)[mask], plain(hidden, Tokens(mask=mask))[mask])


def test_random_blocks_come_beside_the_radius():
    """Where global tokens stand among them changes neither blocks nor draws."""
    module = built(window="blocks", radius_tokens=4, random_blocks=2, block_tokens=5)
    is_global = torch.arange(64) % 16 == 3
    hidden = torch.randn(1, 64, WIDTH, dtype=torch.float64)
    weights = module.weights(hidden, Tokens(is_global=is_global[None]))[0] > 0
    assert weights[:, is_global].all()
    assert weights[:, :, is_global].all()
    weights, block = weights[:, ~is_global][:, :, ~is_global], torch.arange(60) // 5
    assert torch.equal(weights, module.weights(hidden[:, :60])[0] > 0)
    near = (block - block[:, None]).abs() <= 1
    assert weights[:, near].all()
    assert ((weights & ~near).sum(-1) == 2 * 5).all()
    assert not torch.equal(weights[0], weights[1])


def test_new_labels_do_not_disturb_trained_weights():
    module = EtcConfig(radius_tokens=3).build(width=WIDTH, heads=HEADS)
    assert module.long_labels.std() > 0.3
    started = module.warm_start(["long_labels", "global_labels", "global_output.weight", "global_output.bias"])
    assert started["long_labels"] == "new"
    assert started["global_output.weight"] == "from_local"
    assert not module.long_labels.any()
    assert torch.equal(module.get_parameter("global_output.weight"), module.output.weight)


def test_what_is_not_there_is_refused():
    module, hidden = built(), torch.zeros(1, 5, WIDTH).double()
    is_global = torch.tensor([[True, True, False, False, False]])
    for belongs_to, mask, wrong in (
        ([9, 0, 1, 2, 0], None, "holds 2 in row 0, which has 2 global tokens"),
        ([0, 0, 1, -2, 0], None, "holds -2 in row 0"),
        ([0, 0, 1, 0, 0], [False, True, True, True, True], "holds 1 in row 0, which has 1 global"),
    ):
        tokens = Tokens(
            mask=None if mask is None else torch.tensor([mask]),
            is_global=is_global,
            belongs_to=torch.tensor([belongs_to]),
        )
        with pytest.raises(InputError, match=wrong) as refusal:
            module(hidden, tokens)
        assert "\n" not in str(refusal.value)
    with pytest.raises(InputError, match="holds 0 in row 0, which has 0 global"):
        module(hidden, Tokens(belongs_to=torch.zeros(1, 5, dtype=torch.int64)))
    with pytest.raises(InputError, match=r"belongs_to has shape \(1, 4\), but the sequence needs \(1, 5\)"):
        module(hidden, Tokens(is_global=is_global, belongs_to=torch.zeros(1, 4, dtype=torch.int64)))
    with pytest.raises(InputError, match="belongs_to is torch"):
        Tokens(belongs_to=is_global)
    other = MECHANISMS["longformer"]().build(width=WIDTH, heads=HEADS).double()
    with pytest.raises(InputError, match="'longformer' reads no structure"):
        other(hidden, Tokens(is_global=is_global, belongs_to=torch.zeros(1, 5, dtype=torch.int64)))


@pytest.mark.parametrize(
    ("option", "value"),
    [("radius_tokens", 0), ("clamp_tokens", 0), ("block_tokens", 0), ("random_blocks", -1), ("projections", "four")],
)
def test_impossible_options_are_refused(option, value):
    with pytest.raises(InputError, match=option):
        attention_config({"mechanism": "etc", option: value})


def test_random_blocks_belong_to_blocks():
    with pytest.raises(InputError, match="random_blocks=2 belong to window='blocks'"):
        attention_config({"mechanism": "etc", "random_blocks": 2})


def test_it_has_no_causal_form():
    with pytest.raises(InputError, match="no causal form, since its global tokens see the whole text"):
        MECHANISMS["etc"]().build(width=WIDTH, heads=HEADS, causal=True)
