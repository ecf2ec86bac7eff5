"""Terms added to the scores: the reference against a loop over pairs, the tiles against the reference."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longspan.errors import InputError
from longspan.ops import attend
from longspan.ops.attend.terms import Bias, ContentToPosition, GlobalKeyBias, PositionBias, PositionToContent, Term
from longspan.ops.tiles.layout import best_layout
from longspan.patterns import (
    Blocks,
    Causal,
    DrawnBlocks,
    First,
    Fixed,
    Full,
    PerHead,
    PooledWindow,
    RandomBlocks,
    Strided,
    Window,
)

SCALE = 0.3
PATTERNS = [
    Full(),
    Causal(),
    Window(3, 5),
    Window(70, 0),
    Window(20, 2, 3),
    Window(20, 2, 3) & Causal(),
    First(2),
    Blocks(40),
    Strided(5) & Causal(),
    Fixed(6, 2),
    RandomBlocks(3, 2, 1),
    DrawnBlocks(3, 2, 1, blocks=30),
    PooledWindow(9, 8, 5, 4),
    (Window(4, 4) | Blocks(5)) & Causal(),
    PerHead([Window(1, 1), Window(2, 2, 2), Window(1, 1)]),
]


class Made:
    """Random inputs that learn; B = 2, H = 3."""

    def __init__(
        self, queries: int, keys: int, *, dtype=torch.float64, seed: int = 0, width: int = 5, device="cpu"
    ) -> None:
        self.generator, self.dtype, self.device = torch.Generator().manual_seed(seed), dtype, device
        self.queries, self.keys, self.width = queries, keys, width
        self.heads = [self.normal(2, 3, queries, width), self.normal(2, 3, keys, width), self.normal(2, 3, keys, 7)]

    def normal(self, *shape: int) -> Tensor:
        made = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return made.to(self.device, self.dtype).requires_grad_()

    def terms(self, reach: bool = True, slots: int = 0) -> dict[str, Term]:
        """One of each kind, or with different tables."""
        made = {
            "content to position": ContentToPosition(self.normal(3, 11, self.width), globals=reach),
            "query bias": ContentToPosition(
                self.normal(3, 4, self.width), first=-9, query_bias=self.normal(3, self.width), globals=reach
            ),
            "position to content": PositionToContent(self.normal(3, 8, self.width), first=-2, globals=reach),
            "position bias": PositionBias(self.normal(3, 9), globals=reach),
            "dense": Bias(self.normal(2, 3, self.queries, self.keys), globals=reach),
            "line": Bias(self.normal(3, 1, self.keys), globals=reach),
        }
        return made | ({"global keys": GlobalKeyBias(self.normal(2, 3, self.queries, slots))} if slots else {})


def run(backend: str, made: Made, terms: list[Term], **options) -> list[Tensor]:
    """Output and all gradients, for a fixed random upstream gradient."""
    inputs = [*made.heads, *(tensor for term in terms for tensor in term.tensors)]
    output = attend(*made.heads, terms=terms, scale=SCALE, backend=backend, **options)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [output.detach(), *torch.autograd.grad(output, inputs, upstream.to(output))]


def assert_same(made: Made, terms: list[Term], tolerance: float, **options) -> None:
    for one, two in zip(run("blocked", made, terms, **options), run("reference", made, terms, **options), strict=True):
        torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


def row_of(term, j: int, i: int) -> int:
    """The row of a table for an offset, its end where it has none."""
    rows = term.table.shape[1]
    first = -(rows // 2) if term.first is None else term.first
    return min(max(j - i - first, 0), rows - 1)


def score(made: Made, terms: list[Term], b: int, h: int, i: int, j: int, offset: int, slots, near: bool) -> Tensor:
    """One score, straight from the definition; `near` says that no global has a part in it."""
    query, key = made.heads[0][b, h, i], made.heads[1][b, h, j]
    content, bias = query @ key, torch.zeros((), dtype=query.dtype)
    for term in terms:
        if isinstance(term, GlobalKeyBias):
            places = slots[b].tolist()
            bias = bias + (term.values[b, h, i, places.index(j)] if j in places else 0)
        elif not near and not term.globals:
            continue
        elif isinstance(term, Bias):
            bias = bias + term.values.expand(2, 3, made.queries, made.keys)[b, h, i, j]
        elif isinstance(term, PositionBias):
            bias = bias + term.table[h, row_of(term, j, i + offset)]
        elif isinstance(term, PositionToContent):
            content = content + key @ term.table[h, row_of(term, j, i + offset)]
        else:
            added = query if term.query_bias is None else query + term.query_bias[h]
            content = content + added @ term.table[h, row_of(term, j, i + offset)]
    return content * SCALE + bias


def by_hand(made: Made, terms: list[Term], pattern, *, slots=None, rows=True, key_mask=None, offset=0) -> Tensor:
    """One query at a time."""
    output = torch.zeros(2, 3, made.queries, 7, dtype=torch.float64)
    for b, h, i in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(made.queries)).tolist():
        places = set() if slots is None else set(slots[b].tolist()) - {-1}
        seen = [
            j
            for j in range(made.keys)
            if (key_mask is None or key_mask[b, j])
            and (
                bool(pattern.head(h).visible(torch.tensor(i + offset), torch.tensor(j)))
                or j in places
                or (rows and i in places)
            )
        ]
        if seen:
            near = [j not in places and not (rows and i in places) for j in seen]
            scores = [score(made, terms, b, h, i, j, offset, slots, alone) for j, alone in zip(seen, near, strict=True)]
            output[b, h, i] = torch.softmax(torch.stack(scores), 0) @ made.heads[2][b, h, seen]
    return output


@pytest.mark.parametrize("reach", [True, False])
@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("pattern", [Window(2, 3), PerHead([Window(1, 0), Full(), Window(1, 1, 2)])], ids=str)
def test_reference_is_the_definition(pattern, rows, reach):
    made = Made(7, 7)
    slots = torch.tensor([[0, 5, -1], [-1, 2, -1]])
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, :2] = False
    terms = list(made.terms(reach, 3).values())
    with torch.no_grad():
        options = {"pattern": pattern, "terms": terms, "scale": SCALE, "key_mask": mask}
        found = attend(*made.heads, **options, globals=slots, global_rows=rows, backend="reference")
        expected = by_hand(made, terms, pattern, slots=slots, rows=rows, key_mask=mask)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_offsets_count_from_the_position_of_the_first_query():
    made = Made(3, 11)
    terms = list(made.terms().values())
    with torch.no_grad():
        for backend in ("reference", "blocked"):
            options = {"pattern": Window(4, 1), "terms": terms, "scale": SCALE, "query_offset": 7}
            found = attend(*made.heads, **options, backend=backend)
            expected = by_hand(made, terms, Window(4, 1), offset=7)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("which", ["content to position", "position to content", "position bias", "dense", "all"])
@pytest.mark.parametrize(("queries", "keys", "offset"), [(0, 0, 0), (1, 1, 0), (149, 149, 0), (67, 37, 0), (3, 89, 86)])
def test_blocked_equals_reference(pattern, which, queries, keys, offset):
    made = Made(queries, keys)
    terms = made.terms()
    chosen = list(terms.values()) if which == "all" else [terms[which]]
    assert_same(made, chosen, 1e-11, pattern=pattern, query_offset=offset)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("reach", [True, False])
def test_blocked_equals_reference_with_globals_and_padding(pattern, rows, reach):
    made = Made(83, 83)
    mask = torch.rand(2, 83, generator=made.generator) < 0.8
    mask[1, :70] = False
    slots = torch.tensor([[3, 70, -1], [5, -1, 72]])
    terms = made.terms(reach, 3)
    options = {"pattern": pattern, "globals": slots, "global_rows": rows, "key_mask": mask}
    assert_same(made, list(terms.values()), 1e-11, **options)
    assert_same(made, [terms["query bias"], terms["position to content"], terms["global keys"]], 1e-11, **options)


# One tile, tiles of 32, 64 and 128, filled up or not, windows wider than the input, no window at all.
TILES = [(2, 3, 5), (13, 2, 40), (149, 20, 20), (256, 16, 31), (1031, 0, 0), (1100, 65, 0), (1200, 128, 127)]


def disentangled(length, left, right, slots=0, padded=False, *, device="cpu", dtype=torch.float64):
    """DeBERTa's scores in a window beside global keys: inputs, terms and the other options."""
    made = Made(length, length, device=device, dtype=dtype)
    kinds = (ContentToPosition, PositionToContent)
    terms = [kind(made.normal(3, left + 1 + right, made.width), first=-left, globals=False) for kind in kinds]
    options = {"pattern": Window(left, right), "global_rows": False}
    if padded:
        options["key_mask"] = (torch.rand(2, length, generator=made.generator) < 0.7).to(device)
    if slots:
        options["globals"] = torch.tensor([[length // 2, 0], [1, -1]], device=device)
        terms.append(GlobalKeyBias(made.normal(2, 3, length, slots)))
    return made, terms, options


@pytest.mark.slow
@pytest.mark.parametrize(("length", "left", "right"), TILES)
def test_tiles_of_every_size_equal_reference(length, left, right):
    for slots, padded in itertools.product((0, 2), (False, True)) if length < 1000 else ((0, False), (2, True)):
        made, terms, options = disentangled(length, left, right, slots, padded)
        assert_same(made, terms, 1e-12, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("slots", [0, 2])
def test_tiles_on_cuda_equal_reference(slots):
    made, terms, options = disentangled(1200, 64, 33, slots, True, device="cuda")
    assert_same(made, terms, 1e-10, **options)


def test_what_cannot_be_seen_changes_nothing():
    """Keys that are masked, and what stands beside the window in memory, even if it is beyond all numbers."""
    made, terms, options = disentangled(331, 9, 5)
    options["key_mask"] = torch.ones(2, 331, dtype=torch.bool)
    options["key_mask"][0, 100:140] = False
    with torch.no_grad():
        before = attend(*made.heads, terms=terms, **options)
        made.heads[1][0, :, 100:140] = 1e30
        made.heads[0][0, :, 200] = 1e30
        after = attend(*made.heads, terms=terms, **options)
    other = torch.arange(331) != 200
    assert torch.equal(before[:, :, other], after[:, :, other])


@pytest.mark.slow
def test_the_largest_tensor_grows_no_faster_than_the_length(watched):
    # A law of the design: exponent at most 1.1 over 16 times the length, in forward and backward.
    most = []
    for length in (2048, 32768):
        made, terms, options = disentangled(length, 64, 64, 2, dtype=torch.float32)
        run("blocked", made, terms, **options)
        assert len(watched) == 2
        most.append(max(watched))
        watched.clear()
    assert most[1] <= most[0] * 16**1.1


def test_the_cases_cover_every_size_of_tile():
    def size(length, left, right):
        return best_layout(Window(left, right), length, length, 0, torch.device("cpu"), one_tile=True).size

    assert {2, 13, 32, 64} <= {size(*case) for case in TILES}
    assert size(4096, 512, 512) == 128


@settings(max_examples=40)
@given(data=st.data())
def test_blocked_equals_reference_for_any_window_terms_and_dtype(data):
    length = data.draw(st.integers(1, 300))
    pattern = Window(data.draw(st.integers(0, 90)), data.draw(st.integers(0, 90)), data.draw(st.integers(1, 3)))
    dtype, tolerance = data.draw(st.sampled_from([(torch.float64, 1e-11), (torch.float32, 5e-5)]))
    made = Made(length, length, dtype=dtype, seed=data.draw(st.integers(0, 99)))
    terms = made.terms(data.draw(st.booleans()))
    names = data.draw(st.lists(st.sampled_from(sorted(terms)), max_size=4))
    is_global = torch.rand(2, length, generator=made.generator) < data.draw(st.sampled_from([0.0, 0.03]))
    mask = torch.rand(2, length, generator=made.generator) < data.draw(st.sampled_from([0.0, 0.5, 1.1]))
    options = {"pattern": pattern, "globals": is_global, "key_mask": mask, "global_rows": data.draw(st.booleans())}
    # Each term once: the same tensor twice would have one gradient.
    assert_same(made, [terms[name] for name in dict.fromkeys(names)], tolerance, **options)


def test_transformer_xl_and_t5_in_their_own_words():
    """Scores `(q + u)·k + (q + v)·r` of Transformer-XL, and T5's bias without a scale, in plain PyTorch."""
    made = Made(31, 31)
    query, key, value = (each.detach() for each in made.heads)
    u, v = torch.randn(2, 3, 5, dtype=torch.float64)
    table, place = torch.randn(3, 61, 5, dtype=torch.float64), torch.arange(31)
    by_pair = table[:, place[None, :] - place[:, None] + 30]
    seen = Causal().dense(31)
    scores = (query + u[:, None]) @ key.transpose(-1, -2)
    scores = scores + torch.einsum("bhid,hijd->bhij", query + v[:, None], by_pair)
    expected = torch.softmax((scores / math.sqrt(5)).masked_fill(~seen, -math.inf), -1) @ value
    found = attend(
        query + u[:, None], key, value, pattern=Causal(), terms=[ContentToPosition(table, query_bias=v - u)]
    )  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    scores = query @ key.transpose(-1, -2) + by_pair[..., 0]
    expected = torch.softmax(scores, -1) @ value
    found = attend(query, key, value, pattern=Full(), terms=[PositionBias(table[..., 0])], scale=1.0)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "reach", "prob"),
    [(Window(2, 1), False, 0.3), (Window(2, 1, 2), True, 0.0), (Fixed(4, 1), True, 0.0)],
    ids=str,
)
def test_gradcheck(pattern, reach, prob):
    made = Made(7, 7, width=2)
    made.heads = [each.detach()[:1, :, :, :2].requires_grad_() for each in made.heads]
    terms = [term for name, term in made.terms(reach).items() if name != "dense"]
    terms.append(GlobalKeyBias(made.normal(1, 3, 7, 1)))
    tensors = [tensor for term in terms for tensor in term.tensors]
    options = {"globals": torch.tensor([[4]]), "key_mask": torch.arange(7)[None] != 2, "dropout_prob": prob}

    def function(query, key, value, *_):
        torch.manual_seed(0)
        return attend(query, key, value, pattern=pattern, terms=terms, scale=SCALE, backend="blocked", **options)

    assert torch.autograd.gradcheck(function, [*made.heads, *tensors])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # PyTorch's own, in its forward mode
def test_forward_mode_and_torch_func_go_through_the_reference():
    made = Made(11, 11)
    query, key, value = (each.detach() for each in made.heads)
    table = torch.randn(3, 5, 5, dtype=torch.float64)

    def function(table, backend="auto"):
        terms = [ContentToPosition(table)]
        return attend(query, key, value, pattern=Window(2, 2), terms=terms, backend=backend).square().sum()

    tangent = torch.randn_like(table)
    _, found = torch.func.jvp(function, (table,), (tangent,))
    gradient = torch.func.grad(function)(table)
    torch.testing.assert_close(found, (gradient * tangent).sum())
    learned = table.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(function(learned, "blocked"), learned)[0], gradient)
    with pytest.raises(InputError, match=r"torch\.func"):
        torch.func.grad(lambda each: function(each, "blocked"))(table)


def test_steps_after_each_other_equal_the_whole():
    made = Made(41, 41)
    query, key, value = (each.detach() for each in made.heads)
    terms = [term for name, term in made.terms().items() if name not in ("dense", "line")]
    pattern = Window(9, 0) | (First(2) & Causal())
    whole = attend(query, key, value, pattern=pattern, terms=terms)
    for step in range(41):
        seen = slice(0, step + 1)
        options = {"pattern": pattern, "terms": terms, "query_offset": step}
        for backend in ("auto", "blocked"):
            part = attend(query[:, :, step : step + 1], key[:, :, seen], value[:, :, seen], **options, backend=backend)
            torch.testing.assert_close(part[:, :, 0], whole[:, :, step], rtol=1e-11, atol=1e-11)


@pytest.mark.variant
@pytest.mark.parametrize("pattern", [Window(64, 64), Window(30, 30, 4), RandomBlocks(64, 2, 0), Causal()], ids=str)
def test_no_tensor_of_size_length_squared(pattern, watched, memory):
    """Even where a table has a row for every offset there is."""
    length = 4096
    heads = [torch.randn(1, 1, length, 4, requires_grad=True) for _ in range(3)]
    tables = [torch.randn(1, 2 * length - 1, 4, requires_grad=True) for _ in range(2)]
    terms = [ContentToPosition(tables[0]), PositionToContent(tables[1])]
    with memory() as made:
        output = attend(*heads, pattern=pattern, terms=terms, globals=torch.tensor([[7]]), backend="blocked")
    output.sum().backward()
    assert len(watched) == 4
    assert max(made.largest, *watched) < length * length / 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiles_and_exports_with_any_length():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.keys, self.queries = (torch.nn.Parameter(torch.randn(3, 9, 5)) for _ in range(2))
            self.bias, self.added = torch.nn.Parameter(torch.randn(3, 9)), torch.nn.Parameter(torch.randn(3, 5))

        def forward(self, query, key, value, slots):
            aside = query[..., :1].expand(-1, -1, -1, slots.shape[1])
            terms = [
                ContentToPosition(self.keys, query_bias=self.added),
                PositionToContent(self.queries, first=-3, globals=False),
                PositionBias(self.bias),
                Bias(query.sum(-1, keepdim=True)),
                GlobalKeyBias(aside),
            ]
            return attend(query, key, value, pattern=Window(9, 9), terms=terms, globals=slots)

    slots, layer = torch.tensor([[0, -1]]), Layer()
    lengths = [[torch.randn(1, 3, length, 5) for _ in range(3)] for length in (33, 150)]
    dim = torch.export.Dim("length", min=2, max=4096)
    shapes = {"query": {2: dim}, "key": {2: dim}, "value": {2: dim}, "slots": None}
    exported = torch.export.export(layer, (*lengths[0], slots), dynamic_shapes=shapes).module()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    parameters = list(layer.parameters())
    for inputs, stance in zip(lengths, ("default", "fail_on_recompile"), strict=True):
        expected = layer(*inputs, slots)
        torch.testing.assert_close(exported(*inputs, slots), expected, rtol=1e-5, atol=1e-5)
        for tensor in inputs:
            torch._dynamo.mark_dynamic(tensor, 2)
        with torch.compiler.set_stance(stance):
            found = compiled(*inputs, slots)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        gradients = [torch.autograd.grad(each.square().sum(), parameters) for each in (found, expected)]
        for one, two in zip(*gradients, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("term", "options", "names"),
    [
        (ContentToPosition(torch.zeros(3, 5, 6)), {}, ["table of ContentToPosition", "(3, 5, 4)"]),
        (ContentToPosition(torch.zeros(3, 0, 4)), {}, ["ContentToPosition", "no rows"]),
        (ContentToPosition(torch.zeros(3, 5, 4), query_bias=torch.zeros(4)), {}, ["query_bias", "(3, 4)"]),
        (PositionToContent(torch.zeros(3, 5, 4, dtype=torch.int64)), {}, ["PositionToContent", "int64"]),
        (PositionBias(torch.zeros(5)), {}, ["PositionBias", "(3, 1)"]),
        (PositionBias(torch.zeros(2, 5)), {}, ["PositionBias", "(3, 5)"]),
        (GlobalKeyBias(torch.zeros(2, 3, 8, 2)), {}, ["GlobalKeyBias", "globals", "both or neither"]),
        (
            GlobalKeyBias(torch.zeros(2, 3, 8, 2)),
            {"globals": torch.zeros(2, 1, dtype=torch.int64)},
            ["GlobalKeyBias", "(2, 3, 8, 1)"],
        ),
        (torch.zeros(8, 8), {}, ["terms holds Tensor", "longspan.ops.attend.terms"]),
    ],
)
def test_what_does_not_fit_is_one_sentence(term, options, names):
    inputs = [torch.zeros(2, 3, 8, 4) for _ in range(3)]
    with pytest.raises(InputError) as caught:
        attend(*inputs, pattern=Full(), terms=[term], **options)
    message = str(caught.value)
    assert "\n" not in message
    for name in names:
        assert name in message
