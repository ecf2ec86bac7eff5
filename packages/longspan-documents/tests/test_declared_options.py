"""Every option that a verb declares is read somewhere outside its declaration: none is accepted and then ignored."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import longspan
import longspan_documents
from longspan.options import Options, fields_of
from longspan_documents.inference import verbs
from longspan_documents.text import options

DECLARATIONS = {Path(verbs.__file__), Path(options.__file__)}


def declared() -> Iterator[tuple[str, str]]:
    for module in (verbs, options):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Options) and kind.__module__ == module.__name__:
                yield from ((kind.__name__, field.name) for field in fields_of(kind))


@cache
def read_names() -> frozenset[str]:
    """Attributes that the packages read, but for those of the declarations: `options.words` has words."""
    folders = [Path(package.__file__ or "").parent for package in (longspan, longspan_documents)]
    files = [path for folder in folders for path in folder.rglob("*.py") if path not in DECLARATIONS]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))


@pytest.mark.parametrize(("verb", "option"), sorted(set(declared())))
def test_an_option_is_read(verb: str, option: str) -> None:
    assert option in read_names(), f"{verb} declares {option}, and no other file reads it"
