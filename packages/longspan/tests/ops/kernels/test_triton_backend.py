"""Asking for the kernels of Triton: by scope in whole layers, where it is missing, and what stays as it was."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from longspan.attention import MECHANISMS
from longspan.attention.parts.tokens import Tokens
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.kernels.triton_backend import PREFERENCE, prefer_triton
from longspan.patterns import Window

triton = pytest.importorskip("triton", reason="needs the extra 'triton'")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Ours(TorchDispatchMode):
    """The names of our operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "longspan":
            self.names.add(func._schema.name.removeprefix("longspan::"))
        return func(*args, **(kwargs or {}))


LAYERS = {
    "poolingformer": {"left_tokens": 4, "right_tokens": 4, "pooled_left_tokens": 12, "pooled_right_tokens": 12},
    "fusion": {"left_tokens": 4, "right_tokens": 4, "relative_span": 8, "two_level": False},
    "linear": {},
    "performer": {"features": 6},
}
KERNELS = {
    "poolingformer": {"banded_attention", "ldconv_pool"},
    "fusion": {"banded_attention"},
    "linear": {"causal_chunks"},
    "performer": {"causal_chunks"},
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_gives_the_same_with_the_kernels_and_checkpoints(name: str) -> None:
    causal = name in ("linear", "performer")
    layer = MECHANISMS[name](**LAYERS[name]).build(width=16, heads=1, causal=causal).to(DEVICE)
    for parameter in layer.parameters():  # what starts at zero would hide a level
        torch.nn.init.normal_(parameter, std=0.2)
    hidden = torch.randn(2, 19, 16, device=DEVICE, requires_grad=True)
    mask = torch.ones(2, 19, dtype=torch.bool, device=DEVICE)
    mask[1, 11:] = False
    marks = None if causal else torch.arange(19, device=DEVICE).expand(2, -1) == 3
    leaves = [hidden, *layer.parameters()]

    def results() -> list[torch.Tensor | None]:
        out = checkpoint(layer, hidden, Tokens(mask=mask, is_global=marks), use_reentrant=False)
        return [out, *torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)]

    wanted = results()
    with prefer_triton(), Ours() as ours:
        found = results()
    assert KERNELS[name] <= ours.names, ours.names
    for own, true in zip(found, wanted, strict=True):
        assert (own is None) == (true is None)
        if own is not None:
            torch.testing.assert_close(own, true, rtol=1e-4, atol=1e-4)


def test_a_compiled_graph_holds_the_operator() -> None:
    query = torch.randn(1, 1, 5, 16, device=DEVICE, requires_grad=True)

    def call(query: torch.Tensor) -> torch.Tensor:
        return attend(query, query, query, pattern=Window(2, 1), backend="triton")

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    for found, wanted in zip(
        *([out := f(query), torch.autograd.grad(out.sum(), query)[0]] for f in (compiled, call)), strict=True
    ):
        torch.testing.assert_close(found, wanted)


def test_auto_takes_none_of_it_unless_it_is_preferred() -> None:
    query = torch.randn(1, 1, 300, 8, device=DEVICE, requires_grad=True)
    with Ours() as ours:
        attend(query, query, query, pattern=Window(2, 1))
    assert "banded_attention" not in ours.names
    assert not PREFERENCE.triton


def test_what_it_does_not_serve_goes_the_usual_way_within_the_scope() -> None:
    query = torch.randn(1, 1, 9, 8, dtype=torch.float64, device=DEVICE)
    with prefer_triton():
        found = attend(query, query, query, pattern=Window(2, 1))
    torch.testing.assert_close(found, attend(query, query, query, pattern=Window(2, 1), backend="reference"))


def test_without_triton_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    sentence = r"backend='triton' needs the 'triton' extra; install it with: pip install 'longspan\[triton\]'"
    query = torch.randn(1, 1, 4, 8, device=DEVICE)
    with pytest.raises(InputError, match=sentence):
        attend(query, query, query, pattern=Window(1, 1), backend="triton")
    with pytest.raises(InputError, match=sentence), prefer_triton():
        pass
    attend(query, query, query, pattern=Window(1, 1))


def test_on_a_processor_without_the_interpreter_it_says_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    query = torch.randn(1, 1, 4, 8)
    with pytest.raises(InputError, match=r"backend='triton' runs on CUDA only, and the input is on cpu; use"):
        attend(query, query, query, pattern=Window(1, 1), backend="triton")
