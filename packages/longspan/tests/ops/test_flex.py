"""The block tables of FlexAttention against the dense mask; the kernel itself where there is a GPU."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

from fake_cuda import FakeCuda
from longspan.errors import InputError
from longspan.ops import attend
from longspan.ops.attend import backends, flex
from longspan.ops.attend.backends import BACKENDS
from longspan.ops.attend.call import Call, mask_of_slots, slots_of_mask
from longspan.ops.attend.flex import block_mask_of, turns_of
from longspan.ops.attend.flex_options import program_options
from longspan.ops.attend.flex_tables import BLOCK, tables_of
from longspan.ops.attend.reference import dense_mask
from longspan.ops.attend.terms import Bias, ContentToPosition, PositionBias, PositionToContent, SoftSpan
from longspan.ops.runtime import one_pass
from longspan.ops.tiles import layout
from longspan.patterns import (
    Blocks,
    Causal,
    DrawnBlocks,
    First,
    Fixed,
    Full,
    PerHead,
    PlannedBlocks,
    PooledWindow,
    RandomBlocks,
    Strided,
    Window,
)

PATTERNS = [
    Full(),
    Causal(),
    Window(150, 40),
    Window(30, 30, 5),
    First(2),
    Blocks(100),
    Strided(7) & Causal(),
    Fixed(64, 8),
    RandomBlocks(64, 2, 1),
    DrawnBlocks(64, 2, 1),
    PerHead([Window(10, 10), DrawnBlocks(30, 2) | Blocks(30), PlannedBlocks(16, 3)]),
    PooledWindow(200, 180, 5, 4),
    Window(20, 0) | First(1),
    PerHead([Window(10, 10), Window(20, 20, 3), Full()]),
    PerHead([Blocks(20, 1, 1) | DrawnBlocks(20, 3, seed, 20, 1, 1) for seed in range(3)]),
]
TERMS = [
    lambda length: Bias(torch.randn(2, 1, length, length)),
    lambda length: PositionBias(torch.randn(3, 11)),
    lambda length: ContentToPosition(torch.randn(3, 7, 32), query_bias=torch.randn(3, 32)),
    lambda length: PositionToContent(torch.randn(3, 8, 32), globals=False),
    lambda length: SoftSpan(40 * torch.rand(2, 3, length), 60),
]
COMPILED = [
    PATTERNS[10],
    PerHead([Full(), Causal(), Window(30, 30, 5)]),
    PerHead([First(2), Blocks(100), Window(20, 0) | First(1)]),
    PerHead([Strided(7) & Causal(), Fixed(64, 8), PooledWindow(200, 180, 5, 4)]),
    PerHead([RandomBlocks(64, 2, 1), DrawnBlocks(64, 2, 1), Full()]),
]
"""Every pattern in a program that is compiled, three in each: a compilation takes a compiler of C++ many seconds."""


def dense_of(block_mask, batch, heads, queries, keys):
    """What a kernel that trusts the tables computes: of absent blocks nothing, of full ones all, else the predicate."""
    seen = torch.zeros(2, batch, heads, queries, keys, dtype=torch.bool)
    query, key = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    sides = [
        (block_mask.kv_num_blocks, block_mask.kv_indices, False, 0),
        (block_mask.full_kv_num_blocks, block_mask.full_kv_indices, True, 0),
        (block_mask.q_num_blocks, block_mask.q_indices, False, 1),
        (block_mask.full_q_num_blocks, block_mask.full_q_indices, True, 1),
    ]
    for b in range(batch):
        for h in range(heads):
            exact = block_mask.mask_mod(torch.tensor(b), torch.tensor(h), query, key).expand(queries, keys)
            for counts, indices, full, side in sides:
                if counts is None:
                    continue
                assert counts.shape[1] in (1, heads)
                own_b, own_h = min(b, counts.shape[0] - 1), min(h, counts.shape[1] - 1)
                for row in range(counts.shape[2]):
                    for column in indices[own_b, own_h, row, : int(counts[own_b, own_h, row])].tolist():
                        at = (row, column) if side == 0 else (column, row)
                        pairs = tuple(slice(place * BLOCK, (place + 1) * BLOCK) for place in at)
                        assert not seen[side, b, h][pairs].any(), "a block that is computed twice"
                        seen[side, b, h][pairs] = True if full else exact[pairs]
    assert torch.equal(seen[0], seen[1]), "forward and backward see different pairs"
    return seen[0]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize(
    ("queries", "keys", "offset", "with_globals"),
    [(389, 389, 0, False), (389, 389, 0, True), (5, 300, 295, False), (300, 131, 0, False)],
)
@pytest.mark.parametrize("padded", [False, True])
def test_tables_hold_the_pattern(pattern, queries, keys, offset, with_globals, padded):
    key_mask = slots = is_global = None
    if padded:
        key_mask = torch.rand(2, keys) < 0.9
        key_mask[1, 200:] = False
    if with_globals:
        slots = torch.tensor([[0, 77, 388], [130, -1, -1]])
        if key_mask is not None:
            slots = torch.where(key_mask.gather(1, slots.clamp(min=0)), slots, -1)
        is_global = mask_of_slots(slots, keys)
    block_mask = block_mask_of(pattern, queries, keys, offset, torch.device("cpu"), key_mask, slots)
    visible = dense_mask(
        pattern,
        queries,
        keys,
        key_mask=key_mask,
        is_global=None,
        query_offset=offset,
        device=torch.device("cpu"),
    )
    if slots is not None:  # global keys are seen behind the text, and not in it
        visible = (visible & ~is_global[:, None, None]).expand(2, *visible.shape[1:])
        behind = (slots >= 0)[:, None, None].expand(*visible.shape[:3], -1)
        visible = torch.cat([visible, behind], -1)
    found = dense_of(block_mask, 2, 3, queries, visible.shape[-1])
    assert torch.equal(found, visible.expand_as(found))


def test_tables_are_as_wide_as_their_fullest_row():
    sizes = (Window(150, 150), 128 * 64, 128 * 64, 0, 0)
    tables = tables_of(*sizes, False, torch.device("cpu"))
    assert tables.partial.index.shape == (1, 1, 64, 4)
    # One block is full; but PyTorch 2.11 reads both tables by the strides of the first.
    assert tables.full.index.shape == (1, 1, 64, 4)
    assert int(tables.full.count.max()) == 1
    assert tables.full_of_keys.index.shape == tables.partial_of_keys.index.shape
    # Two blocks lie wholly in padding, and nobody reads them.
    thin = tables_of(*sizes, True, torch.device("cpu")).thinned(torch.arange(128 * 64)[None] < 128 * 62)
    assert thin.partial.index.shape == (1, 1, 64, 5)
    assert thin.partial.count[0, 0, 60:].tolist() == [4, 3, 2, 1]
    assert thin.partial_of_keys.count[0, 0, 61:].tolist() == [5, 0, 0]


def test_blocks_without_data_are_computed_once(memory):
    sizes = (PATTERNS[-1], 4099, 4099, 0, torch.device("cpu"))
    block_mask = block_mask_of(*sizes)
    with memory() as made:
        assert block_mask_of(*sizes) is block_mask
    assert made.largest == 0
    real = torch.rand(2, 4099) < 0.9
    with one_pass():
        padded = block_mask_of(*sizes, real)
        assert block_mask_of(*sizes, real) is padded
        assert block_mask_of(*sizes, real.clone()) is not padded
    with one_pass():
        assert block_mask_of(*sizes, real) is not padded


def test_no_table_has_all_blocks(memory, monkeypatch):
    monkeypatch.setattr(layout, "CELLS", 1 << 12)
    length = 1 << 14
    with memory() as made:
        tables_of(Window(256, 256), length, length, 0, 0, False, torch.device("cpu"))
    assert made.largest < (length // BLOCK) ** 2 / 3


class Odd(Window):
    """A pattern that no compiler reads: it looks at the data."""

    def visible(self, query_index, key_index):
        assert int(query_index.max()) >= 0
        return super().visible(query_index, key_index)


FAR = [
    (Window(128, 128) | Strided(128), 510),
    (Window(128, 0) | (Strided(128) & Causal()), 383),
    (Fixed(128, 32) & Causal(), 2304),
    (Window(64, 64, 4), 376),
    (PerHead([Window(64, 64), Window(64, 64), Window(64, 64, 2), Window(64, 64, 3)]), 1147),
]


@pytest.mark.parametrize(("pattern", "count"), FAR, ids=lambda value: str(value))
def test_few_blocks_are_computed_where_keys_are_far_apart(pattern, count, monkeypatch):
    """Of 16,384 blocks of a head at 16,384 tokens; the last pattern has three turns."""
    monkeypatch.setattr(Tensor, "is_cuda", True)  # processors compute no sets of keys apart
    hidden = torch.zeros(1, 4, 16384, 16)
    parts = [part.call for _, parts in turns_of(Call(hidden, hidden, hidden, pattern, 1.0)) for part in parts]
    found = 0
    for call in parts:
        sizes = (call.query.shape[2], call.key.shape[2], call.query_offset, hidden.device)
        block_mask = block_mask_of(call.pattern, *sizes, call.key_mask)
        counts = [block_mask.kv_num_blocks, block_mask.full_kv_num_blocks]
        found += sum(int(each.sum()) for each in counts if each is not None)
    assert found == count


@pytest.mark.slow
def test_blocks_are_traced_without_a_look_at_the_data():
    """A compiled graph is one program for all masks, though draws of BigBird depend on how long each row is."""
    pattern = Blocks(64, 1, 1) | DrawnBlocks(64, 1, 1, 64, 1)

    def run(*inputs, key_mask):
        return attend(*inputs, pattern=pattern, key_mask=key_mask, backend="flex")

    compiled = torch.compile(run, fullgraph=True, backend="eager")
    inputs, masks = padded_batch(length=700, heads=1, width=16)
    with torch.no_grad():
        for key_mask in (masks["key_mask"], masks["key_mask"].roll(1, 0)):
            expected = attend(*inputs, pattern=pattern, key_mask=key_mask, backend="reference")
            torch.testing.assert_close(compiled(*inputs, key_mask=key_mask), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.variant
@torch.no_grad()
def test_what_cannot_be_compiled_is_told_and_computed_in_tiles(monkeypatch):
    inputs = [torch.randn(1, 2, 200, 16) for _ in range(3)]
    expected = attend(*inputs, pattern=Window(20, 20), backend="reference")
    with pytest.raises(InputError, match=r"backend='flex' cannot be compiled for pattern odd\(20, 20\) .*blocked"):
        attend(*inputs, pattern=Odd(20, 20), backend="flex")
    # `auto` as on a GPU: one warning, and the tiles ever after.
    monkeypatch.setattr(flex, "_failed", set())
    serves = replace(BACKENDS["flex"], serves=lambda call: flex._kind(call) not in flex._failed)
    monkeypatch.setitem(BACKENDS, "flex", serves)
    monkeypatch.setattr(backends, "DENSE_PAIRS", 0)
    monkeypatch.setattr(Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.warns(UserWarning, match="backend='blocked' instead") as warned:
        results = [attend(*inputs, pattern=Odd(20, 20)) for _ in range(3)]
    assert len(warned) == 1
    for each in results:
        torch.testing.assert_close(each, expected)


def test_what_flex_does_not_serve_is_an_error():
    inputs = [torch.randn(1, 2, 20, 16) for _ in range(3)]
    with pytest.raises(InputError, match="no gradients on a processor"):
        attend(*[each.clone().requires_grad_() for each in inputs], pattern=Full(), backend="flex")
    with pytest.raises(InputError, match="serves no torch"):
        attend(*[each.double() for each in inputs], pattern=Full(), backend="flex")


def padded_batch(length=389, heads=3, width=32):
    """Query, key and value of two rows, one of them padded, and their masks."""
    inputs = [torch.randn(2, heads, length, width) for _ in range(3)]
    key_mask = torch.arange(length)[None] < torch.tensor([[length], [240]])
    return inputs, {"key_mask": key_mask, "globals": torch.tensor([[0, 77], [3, -1]])}


@pytest.mark.slow
@torch.no_grad()
def test_compiled_programs_equal_the_reference():
    """Through Inductor: one function has more programs than PyTorch's limit of 8."""
    alone = [(Window(150, 40), ()), (Window(150, 40), TERMS), (PATTERNS[-1], ())]
    cases = [(pattern, masked, terms) for pattern, terms in alone for masked in (False, True)]
    cases += [(pattern, True, ()) for pattern in COMPILED]
    for pattern, masked, terms in cases:
        inputs, masks = padded_batch()
        own = [term(389) for term in terms]
        expected, found = (
            attend(*inputs, pattern=pattern, terms=own, backend=backend, **(masks if masked else {}))
            for backend in ("reference", "flex")
        )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_programs_of_long_texts_have_options_of_their_own():
    """Short queries are served by a program for decoding, for whose size other tiles are too large."""
    with FakeCuda(values=False) as device:
        make = partial(torch.empty, dtype=torch.bfloat16, device=device)
        sizes = ((4096, 64), (16, 64), (4096, 32), (4096, 256), (4096, 512))
        long, short, narrow, wide, widest = (make(1, 2, *size) for size in sizes)
        assert program_options(long) == {"kernel_options": {"fwd_num_warps": 8}}
        assert program_options(long, "buckets") == program_options(long, "tables") == program_options(long)
        assert program_options(long, "products")["kernel_options"]["fwd_num_stages"] == 1
        assert program_options(long.float(), "products")["kernel_options"]["fwd_BLOCK_N"] == 32
        assert program_options(wide)["kernel_options"]["bwd_BLOCK_N1"] == 32
        assert program_options(make(1, 2, 4096, 16).float()) == program_options(narrow.float())
        assert program_options(narrow.float())["kernel_options"] == {
            "fwd_num_warps": 8, "fwd_BLOCK_M": 64, "fwd_BLOCK_N": 32, "bwd_num_stages": 2
        }  # fmt: skip
        assert program_options(short, "products") == program_options(narrow) == program_options(widest) == {}
    assert program_options(torch.empty(1, 2, 4096, 64)) == {}


def test_a_kernel_that_is_too_large_loads_one_block_at_a_time(monkeypatch):
    """No kernel for processors is: what stands for FlexAttention says of one what Triton says, and its words are from
    an H200."""
    asked = []

    def too_large(*tensors, **options):
        asked.append(options.get("kernel_options"))
        if options.get("kernel_options") != {"num_stages": 1}:
            raise BackendCompilerFailed(
                too_large, RuntimeError("No valid triton configs. OutOfMemoryError: out of resource: triton_tem"), None
            )
        return tensors[0]

    monkeypatch.setattr(flex, "_kernel", lambda: too_large)
    monkeypatch.setattr(flex, "_unstaged", set())
    monkeypatch.setattr(flex, "_failed", set())
    query = torch.zeros(1)
    for _ in range(2):
        assert flex.run_compiled("relative", "a window", query, scale=1.0) is query
    assert asked == [None, {"num_stages": 1}, {"num_stages": 1}]
    assert flex.compiles("relative")


@pytest.mark.gpu
# PyTorch 2.11 says so of every compiled function of what is computed from leaves.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flex_equals_reference_on_a_gpu(pattern, dtype):
    generator = torch.Generator(device="cuda").manual_seed(0)
    inputs = [
        torch.randn(2, 3, 389, 32, device="cuda", dtype=dtype, generator=generator).requires_grad_() for _ in range(3)
    ]
    key_mask = torch.arange(389, device="cuda")[None] < torch.tensor([[389], [240]], device="cuda")
    is_global = torch.zeros(2, 389, dtype=torch.bool, device="cuda")
    is_global[0, [0, 77]] = True
    results = []
    for backend in ("reference", "flex", "blocked"):
        output = attend(
            *inputs, pattern=pattern, key_mask=key_mask, globals=slots_of_mask(is_global, 2), backend=backend
        )
        upstream = torch.randn(output.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).to(dtype)
        results.append((output, *torch.autograd.grad(output, inputs, upstream)))
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-4
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)
