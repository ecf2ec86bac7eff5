"""Which backend of the table `attend` takes for a call, decided by hand from what each computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from longspan import attend
from longspan.ops.attend.backends import BACKENDS, cheapest
from longspan.ops.attend.door import checked
from longspan.ops.attend.terms import ContentToPosition, PositionToContent
from longspan.patterns import Causal, Full, Strided, Window


def taken(queries: int, keys: int, pattern: Any, *, learns: bool = False, **options: Any) -> str:
    """The name of the cheapest backend for inputs of two heads."""
    query = torch.zeros(1, 2, queries, 16, requires_grad=learns)
    key = torch.zeros(1, 2, keys, 16)
    given = {"terms": (), "key_mask": None, "globals": None, "global_rows": True, "scale": None, **options}
    given = {"dropout_prob": 0.0, "query_offset": keys - queries, **given}
    with torch.set_grad_enabled(learns):
        backend = cheapest(checked(query, key, key, pattern, **given))
    return next(name for name, each in BACKENDS.items() if each is backend)


def terms(*kinds: Any) -> list[Any]:
    return [kind(torch.zeros(2, 9, 16)) for kind in kinds]


@pytest.mark.parametrize(
    ("queries", "keys", "pattern", "options", "name"),
    [
        (5000, 5000, Full(), {}, "kernel"),
        (5000, 5000, Causal(), {}, "kernel"),
        (1, 5000, Window(64, 0), {}, "single"),  # decoding
        (64, 64, Window(60, 60), {}, "dense"),  # tiles of 32 would compute all pairs as well
        (1000, 1000, Window(4, 4), {"dropout_prob": 0.1}, "blocked"),  # the dense mask drops nothing
        (5000, 5000, Window(64, 64), {}, "tiles"),  # 25 million pairs
        (5000, 5000, Window(64, 64), {"learns": True}, "blocked"),
        (40, 5000, Causal(), {}, "dense"),  # a part of a prompt: nearly all keys are seen
        (128, 128, Window(84, 84), {"terms": terms(ContentToPosition)}, "adding"),
        (128, 128, Window(84, 84), {"terms": terms(ContentToPosition, PositionToContent)}, "blocked"),
        (5000, 5000, Window(84, 84), {"terms": terms(ContentToPosition)}, "blocked"),
        # What is learned through tables of offsets: tiles would compute it a second time.
        (128, 128, Window(9, 9), {"terms": terms(ContentToPosition), "learns": True}, "adding"),
        (128, 128, Window(9, 9), {"terms": terms(ContentToPosition, PositionToContent), "learns": True}, "reference"),
    ],
)
def test_the_cheapest_that_serves_is_taken(queries, keys, pattern, options, name):
    assert taken(queries, keys, pattern, **options) == name


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # PyTorch's own, in its forward mode
def test_what_no_other_differentiates_comes_from_the_reference(monkeypatch):
    """`torch.func.grad` goes through PyTorch's own kernel, forward mode through the reference alone."""
    seen: list[str] = []
    for name in ("kernel", "reference"):
        compute = BACKENDS[name].compute
        recorded = lambda call, name=name, compute=compute: seen.append(name) or compute(call)  # noqa: E731
        monkeypatch.setitem(BACKENDS, name, replace(BACKENDS[name], compute=recorded))
    inputs = torch.randn(1, 2, 30, 16, dtype=torch.float64)
    for pattern, names in ((Full(), ["kernel", "reference"]), (Strided(3), ["reference", "reference"])):
        seen.clear()
        loss = lambda each, pattern=pattern: attend(each, inputs, inputs, pattern=pattern).square().sum()  # noqa: E731
        slope = torch.func.grad(loss)(inputs)
        tangent = torch.randn_like(inputs)
        _, along = torch.func.jvp(loss, (inputs,), (tangent,))
        assert seen == names
        torch.testing.assert_close(along, (slope * tangent).sum())
