"""Centroids that follow the vectors of training batches, without gradients: online k-means on the unit sphere.

A forward pass only reads them, so it is independent of earlier passes, and recomputation by gradient checkpointing uses
the same centroids. In training it stores its vectors; `learn`, called once after each step of the optimiser
(`Attention.after_step`), moves the centroids towards them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import ProjectedAttention
from longspan.ops.attend.reference import full_precision
from longspan.ops.runtime import is_distributed
from longspan.ops.sorted.clusters import nearest


class Centroids(nn.Module):
    """C unit vectors for each of H sets of heads, as buffers that are saved with the weights.

    Args:
        sets: number of sets H of centroids, one for each head or one for all.
        count: centroids C of a set.
        width: size D of a vector.
        decay: weight λ of the old centroid, `μ ← unit(λ μ + (1 − λ) m)`, with m the unit mean of its vectors.
        iterations: rounds of k-means on the first batch.
        seed: random seed of the centroids before the first batch, and of the vectors from which k-means starts.
    """

    centres: Tensor
    batches: Tensor

    def __init__(self, sets: int, count: int, width: int, *, decay: float, iterations: int, seed: int) -> None:
        super().__init__()
        self.decay, self.iterations, self.seed = decay, iterations, seed
        self.register_buffer("centres", torch.empty(sets, count, width))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self._noted: tuple[Tensor, Tensor | None] | None = None
        self.restart()

    @torch.no_grad()
    def restart(self) -> None:
        """Resets the centroids to those drawn from the seed, unless they were loaded."""
        if not getattr(self.centres, "_is_hf_initialized", False):
            generator = torch.Generator().manual_seed(self.seed)
            drawn = torch.randn(self.centres.shape, generator=generator, dtype=torch.float64)
            self.centres.copy_(F.normalize(drawn, dim=-1))
        if not getattr(self.batches, "_is_hf_initialized", False):
            self.batches.zero_()

    def nearest(self, vectors: Tensor) -> Tensor:
        """Returns the nearest centroid of each vector, `(B, H, T, D)` → `(B, H, T)` int64."""
        return nearest(vectors, self.centres)

    def note(self, vectors: Tensor, real: Tensor | None = None) -> None:
        """Stores the unit vectors of a batch, `(B, H, T, D)`, for `learn`; only in training.

        The last batch before a step counts: a pass that is recomputed for its gradients stores the same again.
        """
        if self.training:
            self._noted = vectors.detach(), real

    @torch.no_grad()
    def learn(self) -> None:
        """Moves the centroids towards the last stored batch; the first one initialises them by k-means.

        A centroid that is nearest to no vector does not change. Processes that train together use all of their batches.
        """
        if self._noted is None:
            return
        vectors, real = self._noted
        self._noted = None
        if real is None:
            real = torch.ones(vectors.shape[0], vectors.shape[2], dtype=torch.bool, device=vectors.device)
        wide = torch.promote_types(self.centres.dtype, torch.float32)
        pool = vectors.to(wide).transpose(0, 1)[:, real]
        with full_precision(pool):
            if self.iterations and int(self.batches) == 0:
                self._begin(pool)
                for _ in range(self.iterations):
                    self._move(pool, 0.0)
            else:
                self._move(pool, self.decay)
        self.batches += 1

    def _begin(self, pool: Tensor) -> None:
        """Initialises the centroids from random vectors of the batch `(H, n, D)` without repetition; if these are too
        few, some centroids do not change.
        """
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randperm(pool.shape[1], generator=generator)[: self.centres.shape[1]].to(pool.device)
        self.centres[:, : len(drawn)] = pool[:, drawn].to(self.centres.dtype)
        if is_distributed():
            torch.distributed.broadcast(self.centres, 0)

    def _move(self, pool: Tensor, decay: float) -> None:
        """Moves each centroid towards the unit mean of its nearest vectors among `(H, n, D)`."""
        assigned = nearest(pool, self.centres)
        sums = pool.new_zeros(self.centres.shape).scatter_add(1, assigned[..., None].expand_as(pool), pool)
        counts = pool.new_zeros(self.centres.shape[:2]).scatter_add(
            1, assigned, torch.ones_like(assigned, dtype=pool.dtype)
        )
        if is_distributed():
            for tensor in (sums, counts):
                torch.distributed.all_reduce(tensor)
        moved = decay * self.centres + (1 - decay) * F.normalize(sums, dim=-1)
        self.centres.copy_(torch.where(counts[..., None] > 0, F.normalize(moved, dim=-1), self.centres))


class CentroidAttention(ProjectedAttention):
    """Attention that sorts its tokens by centroids, which are updated after each step of training."""

    config: Any
    centroids: Centroids

    def new_centroids(self, sets: int, width: int) -> Centroids:
        """Returns `(sets, C, width)` centroids, C = `clusters`, with the configuration's seed and decay."""
        options = {"decay": self.config.decay, "iterations": self.config.first_iterations, "seed": self.config.seed}
        return Centroids(sets, self.config.clusters, width, **options)

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        self.centroids.restart()

    def after_step(self, step: int) -> None:
        self.centroids.learn()


def normal(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Applies `LayerNorm` without weights over the last dimension. Returns the result for attention, of length √D in
    the dtype of the input, and for the centroids, of length 1 in float32 at least, without gradients.
    """
    wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    with full_precision(vectors):
        normal = F.layer_norm(wide, wide.shape[-1:])
        return normal.to(vectors.dtype), F.normalize(normal.detach(), dim=-1)
