"""What Longspan needs of transformers: every name is listed in one file, and the installed version has it."""

from __future__ import annotations

import ast
import inspect
import pkgutil
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest
import torch
import transformers
from transformers import DynamicCache

import longspan
import longspan_documents
import longspan_papers
from longspan import InputError, LongspanConfig, LongspanForCausalLM, LongspanForConditionalGeneration, LongspanModel
from longspan.checkpoints.published import _LOADERS
from longspan.models.card import KINDS
from longspan.models.transformers_names import (
    CACHE,
    IMPORTED,
    LOOKED_UP,
    NEW_CACHE,
    OLD_CACHE,
    OVERRIDDEN,
    enable_checkpointing,
)

PACKAGES = (longspan, longspan_documents, longspan_papers)
NOT_IMPORTABLE_HERE = (
    "longspan_documents.integrations.",
    "longspan_documents.cli.demo",
    "longspan.cli.__main__",
    "longspan.__main__",
)
"""Modules that need an extra which the tests do not install, or that run when they are imported."""


def names_in_code():
    """Module → names imported from it anywhere in the package."""
    found = {}
    for path in (path for package in PACKAGES for path in Path(package.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "transformers":
                found.setdefault(node.module, set()).update(alias.name for alias in node.names)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "transformers":
                found.setdefault("transformers", set()).add(node.attr)
    return found


def all_classes():
    walks = (pkgutil.walk_packages(package.__path__, f"{package.__name__}.") for package in PACKAGES)
    for module in chain.from_iterable(walks):
        if not module.name.startswith(NOT_IMPORTABLE_HERE):
            import_module(module.name)
    waiting, classes = [object], set()
    while waiting:
        for kind in type.__subclasses__(waiting.pop()):
            if kind not in classes:
                classes.add(kind)
                waiting.append(kind)
    return {kind for kind in classes if str(kind.__module__).startswith(("longspan.", "longspan_"))}


def test_every_import_is_listed_and_there():
    listed = {module: set(names) for module, names in IMPORTED.items()}
    assert names_in_code() == listed
    for module, names in IMPORTED.items():
        for name in names:
            assert hasattr(import_module(module), name) or find_spec(f"{module}.{name}"), (module, name)


def test_every_class_that_is_looked_up_by_name_is_there():
    looked_up = {auto for auto, _ in KINDS.values() if auto} | set(_LOADERS.values())
    assert looked_up
    assert not [name for name in looked_up if not hasattr(transformers, name)]


def test_what_transformers_looks_up_on_a_model_is_still_looked_up():
    for module, names in LOOKED_UP.items():
        source = inspect.getsource(import_module(module))
        assert not [name for name in names if name not in source]


@pytest.mark.slow
def test_every_member_that_is_overridden_is_listed_and_there():
    places = {"CacheLayerMixin": "cache_utils", "DynamicLayer": "cache_utils", "Pipeline": "pipelines.base"}
    bases = {
        name: getattr(import_module(f"transformers.{places[name]}") if name in places else transformers, name)
        for name in OVERRIDDEN
    }
    for name, members in OVERRIDDEN.items():
        for member in members:
            assert hasattr(bases[name], member), (name, member)
    listed = {member for members in (*OVERRIDDEN.values(), *LOOKED_UP.values()) for member in members}
    for kind in all_classes():
        for base in inspect.getmro(kind)[1:]:
            if str(base.__module__).startswith("transformers.") and not issubclass(base, dict):
                shared = {name for name in vars(kind).keys() & vars(base).keys() if not name.startswith("__")}
                assert shared - {"_abc_impl"} <= listed, (kind, base)


def tiny(kind, **options):
    torch.manual_seed(5)
    sizes = {"vocab_size": 43, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    return kind(LongspanConfig(num_hidden_layers=2, max_position_embeddings=64, **sizes, **options)).eval()


IDS = torch.tensor([[5, 9, 17, 3, 31, 8, 22]])


@pytest.mark.parametrize("name", [NEW_CACHE, OLD_CACHE])
def test_a_cache_is_taken_and_returned_under_both_names(name):
    model = tiny(LongspanForCausalLM, attention={"mechanism": "longformer", "left_tokens": 3, "right_tokens": 0})
    whole = model(IDS).logits
    first = model(IDS[:, :4], use_cache=True)
    state = getattr(first, name)
    assert state is first[CACHE]
    rest = model(IDS[:, 4:], **{name: state})
    torch.testing.assert_close(rest.logits, whole[:, 4:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [NEW_CACHE, OLD_CACHE])
@pytest.mark.parametrize("kind", [LongspanForCausalLM, LongspanForConditionalGeneration])
def test_generate_takes_a_cache_under_both_names(kind, name):
    seq2seq = kind is LongspanForConditionalGeneration
    model = tiny(kind, **({"decoder_layers": 2, "decoder_start_token_id": 1} if seq2seq else {}))
    options = {"max_new_tokens": 6, "do_sample": False, "num_beams": 1}
    cache = transformers.EncoderDecoderCache(DynamicCache(), DynamicCache()) if seq2seq else DynamicCache()
    written = model.generate(IDS, **options, **{name: cache})
    assert torch.equal(written, model.generate(IDS, use_cache=False, **options))
    assert cache.get_seq_length() == 6 + (0 if seq2seq else IDS.shape[1] - 1)


def test_two_caches_or_a_cache_for_an_encoder_are_refused():
    with pytest.raises(InputError, match="cache and past_key_values are two names of one argument"):
        tiny(LongspanForCausalLM)(IDS, cache=DynamicCache(), past_key_values=DynamicCache())
    for name in (NEW_CACHE, OLD_CACHE):
        with pytest.raises(InputError, match=f"{name} was given, but an encoder has no cache"):
            tiny(LongspanModel)(IDS, **{name: DynamicCache()})


def test_checkpointed_blocks_drop_their_state_as_transformers_has_it():
    """While training with checkpoints a block runs twice; with a state it would remember its tokens twice."""
    model = tiny(LongspanForCausalLM).train()
    enable_checkpointing(model)
    cache = DynamicCache()
    model(IDS, cache=cache, use_cache=True).logits.sum().backward()
    assert cache.get_seq_length() == 0
