"""Without the library that it is for, a module of `longspan_documents.integrations` says which extra brings it."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from longspan import InputError

EXTRAS = {"langchain": "langchain_core", "sentence_transformers": "sentence_transformers"}


@pytest.mark.parametrize("module", EXTRAS)
def test_the_extra_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = {name for name in sys.modules if name.partition(".")[0] == EXTRAS[module]}
    for name in {EXTRAS[module], *imported}:
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"longspan_documents.integrations.{module}", raising=False)
    extra = module.replace("_", "-")
    with pytest.raises(
        InputError, match=rf"longspan_documents\.integrations\.{module} needs the '{extra}' extra; .*pip install"
    ):
        import_module(f"longspan_documents.integrations.{module}")
