"""What operators keep stays under its budget, whatever the lengths, and is neither wrong nor lost too early."""

from __future__ import annotations

import threading

import pytest
import torch

from longspan import attend
from longspan.ops.runtime import ALWAYS, BUDGET, LAYOUT_CACHE, OVERHEAD, LayoutCache, cached, weight
from longspan.ops.tiles.layout import best_layout
from longspan.patterns import Fixed, PooledWindow, Window

MEGABYTE = 1 << 20


def megabytes(count: float) -> torch.Tensor:
    return torch.zeros(int(count * MEGABYTE), dtype=torch.uint8)


def test_the_one_unused_for_longest_goes_first() -> None:
    store = LayoutCache(budget=10 * MEGABYTE)
    for name in "abcdefghi":  # nine of them fit
        store.get(name, lambda: megabytes(1))
    assert store.bytes == 9 * (MEGABYTE + 2 * OVERHEAD)
    store.get("a", pytest.fail)  # used: now "b" is the oldest
    store.get("j", lambda: megabytes(1.5))
    computed = []
    for name in "acdefghij":
        store.get(name, lambda name=name: computed.append(name))
    assert computed == []
    store.get("b", lambda: computed.append("b"))
    assert computed == ["b"]


def test_the_newest_stay_whatever_their_size() -> None:
    store = LayoutCache(budget=MEGABYTE)
    for number in range(3 * ALWAYS):
        store.get(number, lambda: megabytes(2))
        assert len(store) == min(number + 1, ALWAYS)
    for number in range(2 * ALWAYS, 3 * ALWAYS):
        store.get(number, pytest.fail)
    store.clear()
    assert (len(store), store.bytes) == (0, 0)


def test_small_entries_are_not_for_nothing() -> None:
    store = LayoutCache(budget=100 * OVERHEAD)
    for number in range(1000):
        store.get(number, lambda: None)
    assert len(store) == 100


def test_every_tensor_of_a_layout_is_weighed() -> None:
    layout = best_layout(Window(100, 30), 1000, 1000, 0, torch.device("cpu"))
    parts = [part for group in layout.groups for part in (group.rows, group.columns, group.masks, group.mask_ids)]
    assert weight(layout) >= sum(part.numel() * part.element_size() for part in parts if part is not None)


@pytest.mark.variant
def test_many_lengths_stay_under_the_budget() -> None:
    LAYOUT_CACHE.clear()
    most = 0
    for length in [*range(100, 4000, 97), *range(101, 1024, 23)]:
        for pattern in (Window(128, 128), PooledWindow(128, 128, 5, 4)):
            query = torch.randn(1, 1, length, 2)
            attend(query, query, query, pattern=pattern)
            most = max(most, LAYOUT_CACHE.bytes)
    assert BUDGET / 2 < most <= BUDGET  # it was full, and no fuller
    assert sum(weight(value) for value, _ in LAYOUT_CACHE._entries.values()) == LAYOUT_CACHE.bytes


def test_results_do_not_depend_on_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [300, 77, 300, 1100, 77, 300, 1100]
    inputs = {length: torch.randn(1, 2, length, 8) for length in lengths}

    def run() -> list[torch.Tensor]:
        return [attend(*[inputs[length]] * 3, pattern=Window(40, 9) | Fixed(32, 4)) for length in lengths]

    LAYOUT_CACHE.clear()
    ample = run()
    LAYOUT_CACHE.clear()
    monkeypatch.setattr(LAYOUT_CACHE, "budget", 1)
    scarce = run()
    assert len(LAYOUT_CACHE) <= ALWAYS
    assert all(torch.equal(one, other) for one, other in zip(ample, scarce, strict=True))


def test_threads_agree() -> None:
    store = LayoutCache(budget=40 * OVERHEAD)
    failed = []

    def work(seed: int) -> None:
        for number in range(2000):
            key = (number * seed) % 90
            if store.get(key, lambda key=key: (key,)) != (key,):
                failed.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 7, 11, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert store.bytes == sum(size for _, size in store._entries.values()) <= 40 * OVERHEAD


def test_a_compiled_graph_computes_what_it_needs() -> None:
    @cached
    def ramp(length: int) -> torch.Tensor:
        return torch.arange(length)

    @torch.compile(fullgraph=True, backend="eager")
    def doubled(values: torch.Tensor) -> torch.Tensor:
        return values * 2 + ramp(values.shape[0])

    LAYOUT_CACHE.clear()
    assert torch.equal(doubled(torch.ones(5)), torch.arange(5) + 2.0)
    assert len(LAYOUT_CACHE) == 0


def test_what_a_transform_computes_ends_with_it() -> None:
    pattern = Window(3, 2)
    query = torch.randn(1, 1, 50, 4)

    def total(values: torch.Tensor) -> torch.Tensor:
        return attend(values, values, values, pattern=pattern).sum()

    LAYOUT_CACHE.clear()
    inside = torch.func.grad(total)(query)
    assert len(LAYOUT_CACHE) == 0
    plain = query.clone().requires_grad_()
    total(plain).backward()
    assert len(LAYOUT_CACHE) > 0
    torch.testing.assert_close(inside, plain.grad)
    torch.testing.assert_close(torch.func.grad(total)(query), plain.grad)


def test_what_inference_keeps_serves_a_call_that_learns():
    cached = LayoutCache()
    with torch.inference_mode():
        mask = cached.get("mask", lambda: torch.ones(3))
    learning = torch.ones(3, requires_grad=True)
    (learning * mask).sum().backward()
    assert learning.grad is not None
    assert learning.grad.tolist() == [1, 1, 1]
