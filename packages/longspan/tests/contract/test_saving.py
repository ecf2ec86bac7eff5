"""What is written and read again is the same: as JSON, as a copy, as safetensors, and whole models."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from closeness import check_outputs, check_weights
from longspan.attention import MECHANISMS, attention_config
from longspan.errors import InputError

from .forms import HEADS, WIDTH


def test_the_registry_is_consistent(config):
    assert MECHANISMS[config.mechanism] is type(config)
    assert config.source
    assert config.cost
    assert config.scores_per_token(4096) > 0
    assert config.scores_per_token(0) >= 0


def test_configurations_survive_json_copies_and_pickle(config):
    data = json.loads(json.dumps(config.to_dict()))
    for again in (attention_config(data), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert again == config
        assert hash(again) == hash(config)
    assert next(iter(data)) == "mechanism"


def test_an_unknown_option_is_refused(config):
    with pytest.raises(InputError, match=r"unknown key 'attention\.windwo'"):
        attention_config({**config.to_dict(), "windwo": 3})
    with pytest.raises(InputError, match="dropout is 'high'"):
        attention_config({**config.to_dict(), "dropout": "high"})


def test_heads_must_divide_the_width(plain_form):
    for heads in (4, 0):
        with pytest.raises(InputError, match=f"heads={heads} does not divide width=6"):
            plain_form.config.build(width=WIDTH, heads=heads, causal=plain_form.causal)


def test_modules_survive_copies_and_safetensors(form, tmp_path):
    module, hidden = form.build(), torch.randn(2, 31, WIDTH, dtype=torch.float64)
    tokens = form.tokens(31, "right", form.globals[-1])
    save_file(module.state_dict(), tmp_path / "weights.safetensors")
    loaded = form.config.build(width=WIDTH, heads=HEADS, causal=form.causal).double()
    loaded.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    for again in (loaded, copy.deepcopy(module)):
        check_weights(again, module)
        check_outputs(again(hidden, tokens), module(hidden, tokens))
