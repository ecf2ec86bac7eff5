"""A pattern answers for itself: nobody outside its room tests its type or the shape of its expression."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import longspan
import longspan_documents
import longspan_papers
from longspan import attend, register
from longspan.patterns import Blocks, Causal, Either, Fixed, Full, Pattern, Reach, Residues, Span, Strided, Window
from longspan.patterns.base import Without
from longspan.patterns.text import KINDS, text_name

PACKAGES = [Path(package.__file__).parent for package in (longspan, longspan_documents, longspan_papers)]
FILES = {path.relative_to(package.parent).as_posix(): path for package in PACKAGES for path in package.rglob("*.py")}
NAMES = {kind.__name__ for kind in KINDS.values()} | {"Either", "Both", "Without", "Columns"}


def kinds_in(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        name = each.id if isinstance(each, ast.Name) else each.attr if isinstance(each, ast.Attribute) else ""
        if name in NAMES:
            yield name


def kinds_tested(text: str) -> list[str]:
    """Tests of a pattern's type, and comparisons with a pattern, in a file."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            found += [f"{node.lineno}: {name}" for name in kinds_in(node.args[1])]
        elif isinstance(node, ast.Compare):
            found += [f"{node.lineno}: {name}" for each in (node.left, *node.comparators) for name in kinds_in(each)]
        elif isinstance(node, ast.MatchClass):
            found += [f"{node.lineno}: {name}" for name in kinds_in(node.cls)]
    return found


@pytest.mark.parametrize("file", [file for file in FILES if not file.startswith("longspan/patterns/")])
def test_no_kind_of_pattern_is_tested(file: str) -> None:
    assert kinds_tested(FILES[file].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(pattern, Window)",
        "isinstance(pattern, Full | Causal)",
        "isinstance(pattern, (patterns.Either, int))",
        "pattern.second == Causal()",
        "type(pattern) is Fixed",
        "match pattern:\n    case Window(): pass",
    ],
)
def test_it_would_be_found(line: str) -> None:
    assert kinds_tested(line)


@dataclass(frozen=True)
class EveryNth(Pattern):
    """A pattern of one's own: it says where its columns are, and nothing else about its speed."""

    step: int

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return (query_index - key_index) % self.step == 0

    def some(self, span: Span) -> Tensor:
        return Strided(self.step).some(span)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [(key_start - query_start) % self.step]

    def residues(self) -> Residues:
        return Residues(Full(), self.step)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple | list) else (result,)
        self.elements = max([self.elements, *(each.numel() for each in made if isinstance(each, Tensor))])
        return result


@pytest.fixture
def every_nth() -> Iterator[type[Pattern]]:
    register(EveryNth)
    yield EveryNth
    del KINDS[text_name(EveryNth)]


def test_a_pattern_of_ones_own_gets_the_path_of_two_sets(every_nth: type[Pattern]) -> None:
    from longspan.ops.attend.call import Call
    from longspan.ops.tiles.split import Apart, split

    length, stride = 4096, 64
    own = Window(stride - 1, 0) | every_nth(stride) & Causal()
    known = Window(stride - 1, 0) | Strided(stride) & Causal()
    query, key, value = (torch.randn(1, 1, length, 8) for _ in range(3))

    def scores(pattern: Pattern) -> int:
        ((_, apart),) = split(Call(query, key, value, pattern, 1.0))
        assert isinstance(apart, Apart)
        from longspan.ops.tiles.layout import best_layout

        return sum(
            best_layout(part.call.pattern, part.call.query.shape[2], part.call.key.shape[2], 0, query.device).scores
            for part in apart.parts
        )

    assert scores(own) == scores(known) < 0.2 * length**2
    with torch.no_grad(), Largest() as largest:
        result = attend(query, key, value, pattern=own)
    assert largest.elements < length**2 / 4
    torch.testing.assert_close(result, attend(query, key, value, pattern=known), atol=1e-5, rtol=1e-5)
    learned = [each.clone().requires_grad_() for each in (query, key, value)]
    grads = torch.autograd.grad(attend(*learned, pattern=own).square().sum(), learned)
    wanted = torch.autograd.grad(attend(*learned, pattern=known).square().sum(), learned)
    torch.testing.assert_close(grads, wanted, atol=1e-4, rtol=1e-4)


PATTERNS = [
    Full(),
    Causal(),
    Window(5, 3),
    Window(5, 3, 2),
    Blocks(7),
    Blocks(7, 1, 2),
    Blocks(7, 2, start=3),
    Strided(5),
    Fixed(8, 3),
    Window(5, 3) & Causal(),
    Strided(5) & Causal(),
    Fixed(8, 3) & Causal(),
    Window(4, 0) | Strided(5) & Causal(),
    (Window(9, 9) & Causal()) | Strided(5) & Causal(),
    Without(Strided(5), Window(7, 2)),
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_what_a_pattern_says_is_what_it_shows(pattern: Pattern) -> None:
    length = 53
    place = torch.arange(length)
    offset, shown = place[None] - place[:, None], pattern.dense(length)
    first, last, step = pattern.reach()
    assert not (shown & ((offset < first) | (offset > last))).any()
    if step is not None:
        assert torch.equal(shown, (offset >= first) & (offset <= last) & (offset % step == 0))
    assert pattern.is_full == bool(shown.all())
    assert pattern.is_causal == torch.equal(shown, offset <= 0)
    residues = pattern.residues()
    if residues is not None:
        inner = residues.inner.visible(place[:, None] // residues.classes, place[None] // residues.classes)
        assert torch.equal(shown, inner & (offset % residues.classes == 0))
    thin = pattern.thinned(3)
    if thin is not None:
        assert torch.equal(shown[::3, ::3], thin.dense(math.ceil(length / 3)))


@pytest.mark.parametrize("pattern", [each for each in PATTERNS if each.near_far() is not None], ids=str)
def test_near_and_far_show_every_pair_once(pattern: Pattern) -> None:
    length, parts = 53, pattern.near_far()
    assert parts is not None
    keys = torch.arange(length) if parts.columns is None else parts.columns.places(length)
    assert parts.columns is None or parts.columns.count(length) == len(keys)
    shown = parts.near.dense(length).int()
    shown[:, keys] += parts.far.visible(torch.arange(length)[:, None], torch.arange(len(keys))[None]).int()
    assert torch.equal(shown, pattern.dense(length).int())


def test_defaults_promise_nothing() -> None:
    @dataclass(frozen=True)
    class Plain(Pattern):
        def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
            return query_index == key_index

    plain = Plain()
    assert plain.reach() == Reach(-sys.maxsize, sys.maxsize, None)
    assert plain.residues() is plain.near_far() is plain.thinned(2) is None
    assert plain.alternatives() == [plain]
    assert not plain.is_full
    assert not plain.is_causal
    assert Either(plain, Window(1, 1)).alternatives() == [plain, Window(1, 1)]
