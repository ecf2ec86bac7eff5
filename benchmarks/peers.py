"""Our mechanisms against those who have them too: `python benchmarks/peers.py [--lengths 4096 16384] [--only NAME]`.

Peers: transformers' BigBird, Reformer and Nyströmformer, and the packages linformer, performer-pytorch,
reformer-pytorch, sinkhorn-transformer, routing-transformer and x-transformers, which the extra `peers` installs; what
is not installed is left out, and the page says so. Both sides run in this process in turns: one layer of width 512
with eight heads and its projections, one row, float32. Where both compute the same function the weights are equal and
the outputs are compared first; where a peer's definition is another (other buckets, another sorting network), the
page says so, and a query sees as many keys. Writes `results/peers.md`.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention import MECHANISMS
from measure import check_close, machine, paired_seconds, peak_bytes, table, write_page

WIDTH, HEADS = 512, 8
HEAD = WIDTH // HEADS
Layer = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Pair:
    """A mechanism of ours and a peer's.

    Attributes:
        mechanism: ours.
        package: what must be installed.
        build: length → our layer and theirs, with equal weights where `tolerance` says that the outputs agree.
        tolerance: how far the outputs may be from each other; `None` where the definitions differ.
        note: how they differ, or what is compared.
        longest: the longest input that the peer's memory allows here.
    """

    mechanism: str
    package: str
    build: Callable[[int], tuple[nn.Module, Layer]]
    tolerance: float | None
    note: str = ""
    longest: int | None = None


def ours(mechanism: str, **options: Any) -> Any:
    """A layer of ours."""
    torch.manual_seed(0)
    return MECHANISMS[mechanism](**options).build(width=WIDTH, heads=HEADS).eval()


def copy_projections(layer: Any, query: nn.Linear, key: nn.Linear | None, value: nn.Linear, output: nn.Linear) -> None:
    """Take over a peer's projections; biases that it does not have are 0."""
    for name, theirs in (("query", query), ("key", key), ("value", value), ("output", output)):
        if theirs is None:
            continue
        mine = getattr(layer, name)
        mine.weight.data.copy_(theirs.weight)
        mine.bias.data.zero_() if theirs.bias is None else mine.bias.data.copy_(theirs.bias)


def linformer(length: int) -> tuple[nn.Module, Layer]:
    from linformer import LinformerSelfAttention

    theirs = LinformerSelfAttention(WIDTH, length, k=256, heads=HEADS).eval()
    layer = ours("linformer", slots=256, max_tokens=length)
    copy_projections(layer, theirs.to_q, theirs.to_k, theirs.to_v, theirs.to_out)
    layer.tables.key.data.copy_(theirs.proj_k.T[None])
    layer.tables.value.data.copy_(theirs.proj_v.T[None])
    return layer, theirs


def performer(length: int) -> tuple[nn.Module, Layer]:
    import performer_pytorch.performer_pytorch as package
    from performer_pytorch import SelfAttention

    if not isinstance(package.softmax_kernel, partial):  # without what it adds to features, both compute one function
        package.softmax_kernel = partial(package.softmax_kernel, eps=0.0)
    theirs = SelfAttention(WIDTH, heads=HEADS, dim_head=HEAD, nb_features=256).eval()
    layer = ours("performer", features=256)
    copy_projections(layer, theirs.to_q, theirs.to_k, theirs.to_v, theirs.to_out)
    layer.directions.copy_(theirs.fast_attention.projection_matrix)
    return layer, theirs


def reformer(length: int) -> tuple[nn.Module, Layer]:
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    buckets = 2 * -(-length // 64)
    # Theirs wants a number of buckets of two factors where there are many.
    factors = buckets if buckets <= 128 else [buckets // 64, 64]
    config = ReformerConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, attention_head_size=HEAD, lsh_attn_chunk_length=64, num_hashes=2,
        lsh_num_chunks_before=1, lsh_num_chunks_after=1, num_buckets=factors, is_decoder=False, hash_seed=0,
        lsh_attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs = LSHSelfAttention(config, 0).eval()
    layer = ours("reformer", chunk_tokens=64, rounds=2, bucket_tokens=64)
    return layer, lambda hidden: layer.output(theirs(hidden).hidden_states)


def reformer_pytorch(length: int) -> tuple[nn.Module, Layer]:
    from reformer_pytorch import LSHSelfAttention

    theirs = LSHSelfAttention(WIDTH, heads=HEADS, bucket_size=64, n_hashes=2).eval()
    return ours("reformer", chunk_tokens=64, rounds=2, bucket_tokens=64, chunks_after=0), theirs


def sinkhorn(length: int) -> tuple[nn.Module, Layer]:
    from sinkhorn_transformer.sinkhorn_transformer import SinkhornSelfAttention

    theirs = SinkhornSelfAttention(WIDTH, 128, length, heads=HEADS).eval()
    return ours("sinkhorn", block_tokens=128), theirs


def routing(length: int) -> tuple[nn.Module, Layer]:
    from routing_transformer.routing_transformer import SelfAttention

    theirs = SelfAttention(WIDTH, 1, length, HEADS, HEADS // 2, 256, rel_pos_emb=False, shared_qk=True).eval()
    theirs(torch.randn(1, length, WIDTH))  # its first call starts the centroids
    clusters = length // 256
    return ours("routing", left_tokens=256, right_tokens=256, clusters=clusters, cluster_tokens=128), (
        lambda hidden: theirs(hidden)[0]
    )


def top_k(length: int) -> tuple[nn.Module, Layer]:
    from x_transformers.x_transformers import Attention

    theirs = Attention(WIDTH, dim_head=HEAD, heads=HEADS, sparse_topk=8).eval()
    layer = ours("explicit_sparse", top_k=8)
    copy_projections(layer, theirs.to_q, theirs.to_k, theirs.to_v, theirs.to_out)
    return layer, theirs


def big_bird(length: int) -> tuple[nn.Module, Layer]:
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdAttention, BigBirdModel

    config = BigBirdConfig(hidden_size=WIDTH, num_attention_heads=HEADS, max_position_embeddings=length)
    theirs = BigBirdAttention(config, seed=0).eval()
    layer = ours("bigbird", block_tokens=64, random="transformers", drawn_tokens=length)
    inner = theirs.self
    copy_projections(layer, inner.query, inner.key, inner.value, theirs.output.dense)
    masks = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, length), 64)
    blocked, band, start, end = masks

    def run(hidden: Tensor) -> Tensor:
        context = inner(hidden, band, start, end, blocked, blocked)[0]
        return theirs.output.dense(context)

    return layer, run


def nystromformer(length: int) -> tuple[nn.Module, Layer]:
    from transformers import NystromformerConfig
    from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

    config = NystromformerConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_landmarks=256, segment_means_seq_len=length,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs, layer = NystromformerSelfAttention(config).eval(), ours("linformer", slots=256, max_tokens=length)
    return layer, lambda hidden: layer.output(theirs(hidden)[0])


PAIRS = [
    Pair("linformer", "linformer", linformer, 1e-4, "k = 256, a projection for keys and one for values"),
    Pair(
        "performer",
        "performer_pytorch",
        performer,
        1e-4,
        "256 features, the same; without the 10⁻⁴ that theirs adds to each",
    ),
    Pair(
        "reformer", "transformers", reformer, None, "chunks of 64, two rounds, a chunk before and after; other buckets"
    ),
    Pair("reformer", "reformer_pytorch", reformer_pytorch, None, "chunks of 64, two rounds, a chunk before"),
    Pair("sinkhorn", "sinkhorn_transformer", sinkhorn, None, "blocks of 128; another sorting network"),
    Pair(
        "routing", "routing_transformer", routing, None, "half the heads local; theirs clusters of 256, ours 128 + 128"
    ),
    Pair("explicit_sparse", "x_transformers", top_k, 1e-4, "k = 8", longest=4096),
    Pair("bigbird", "transformers", big_bird, 1e-4, "blocks of 64, three random, in evaluation"),
    Pair("linformer", "transformers", nystromformer, None, "256 slots against Nyströmformer's 256 landmarks"),
]


def step(layer: Layer, hidden: Tensor, gradient: bool) -> None:
    """One pass, with gradients of the input (and of weights) where they are asked for."""
    with torch.set_grad_enabled(gradient):
        output = layer(hidden)
    if gradient:
        output.sum().backward()


def peak(pair: Pair, side: int, length: int, gradient: bool) -> Iterator[None]:
    """For `peak_bytes`: one pass of one side."""
    layer = pair.build(length)[side]
    hidden = torch.randn(1, length, WIDTH, requires_grad=gradient)
    if length >= 1024:
        step(pair.build(1024)[side], torch.randn(1, 1024, WIDTH, requires_grad=gradient), gradient)
    yield
    step(layer, hidden, gradient)
    yield


def measure(pair: Pair, length: int, rounds: int) -> list[list[str]]:
    """Rows of the table: forward, and forward with backward."""
    mine, theirs = pair.build(length)
    hidden = torch.randn(1, length, WIDTH, generator=torch.Generator().manual_seed(1))
    agreed = "another function"
    if pair.tolerance is not None:
        with torch.no_grad():
            agreed = f"{check_close(pair.mechanism, mine(hidden), theirs(hidden), pair.tolerance):.1e}"
    rows = []
    for gradient, words in ((False, "forward"), (True, "both")):
        given = hidden.clone().requires_grad_(gradient)
        sides = {
            "ours": lambda g=gradient, x=given: step(mine, x, g),
            "theirs": lambda g=gradient, x=given: step(theirs, x, g),
        }
        seconds = paired_seconds(sides, rounds=rounds)
        memory = [peak_bytes(peak, pair, side, length, gradient) / 2**20 for side in (0, 1)]
        rows.append(
            [
                f"`{pair.mechanism}`", pair.package, f"{length:,}", words, agreed,
                f"{seconds['ours']:.3f}", f"{seconds['theirs']:.3f}", f"{seconds['theirs'] / seconds['ours']:.2f}",
                f"{memory[0]:.0f}", f"{memory[1]:.0f}",
            ]
        )  # fmt: skip
        print(*rows[-1], sep="  ", flush=True)
    return rows


def main() -> None:
    """Measure every pair that can be, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--only", nargs="+", default=[pair.mechanism for pair in PAIRS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--page", default="peers")
    options = parser.parse_args()
    rows, missing = [], []
    for pair in PAIRS:
        if pair.mechanism not in options.only:
            continue
        if importlib.util.find_spec(pair.package) is None:
            missing.append(pair.package)
            continue
        for length in options.lengths:
            if pair.longest is not None and length > pair.longest:
                continue
            rows += measure(pair, length, options.rounds)
    header = [
        "ours",
        "peer",
        "tokens",
        "pass",
        "largest difference",
        "ours s",
        "theirs s",
        "ratio",
        "ours MiB",
        "theirs MiB",
    ]
    notes = [f"- `{pair.mechanism}` and {pair.package}: {pair.note}" for pair in PAIRS]
    parts = [machine(), __doc__.split("\n\n")[1], table(header, rows), "\n".join(notes)]
    if missing:
        parts.append(f"Not installed, and so not measured: {', '.join(missing)}.")
    write_page(options.page, "Mechanisms against their peers", parts)


if __name__ == "__main__":
    main()
