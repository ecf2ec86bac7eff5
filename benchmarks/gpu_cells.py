"""A row of `gpu.py`, and where and how large everything is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

Run = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where and how large: what a dry run has smaller.

    Attributes:
        device: of all tensors.
        dtype: of a layer; models compute in it by autocast.
        width: of hidden states, E.
        heads: H.
        layers: of a model.
        vocabulary: of a model.
        written: tokens that a decoder writes behind its prompt.
        side: tokens that a window sees on each side, where windows are compared; also compared is twice as many.
        block: tokens of BigBird's blocks.
        lengths: tokens of the rows of every mechanism.
        long, middle: tokens of layers and of whole models, where one length is enough.
        square: rows and columns of the matrices whose product and copy are timed.
        seconds: for which a cell is measured, where one run takes less.
        runs: that a cell is measured in, at least.
        compiler: the backend of `torch.compile`.
        keep: folder for traces.
    """

    device: Any = "cuda"
    dtype: torch.dtype = torch.bfloat16
    width: int = 768
    heads: int = 12
    layers: int = 12
    vocabulary: int = 32_768
    written: int = 64
    side: int = 128
    block: int = 64
    lengths: tuple[int, ...] = (4096, 16_384, 65_536, 262_144, 1_048_576)
    long: int = 65_536
    middle: int = 16_384
    square: int = 8192
    seconds: float = 0.3
    runs: int = 3
    compiler: str = "inductor"
    keep: Path = Path("runs/gpu")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One row to measure.

    Attributes:
        side: a mechanism's name, or a key of `CORES`, `STEPS` or `RATES`, or `versions`.
        work: `forward`, or `training` with the backward pass; of models `step`, `prefill` or one of `DECODING`;
            `check`, which compares the device with the processor; `rate` of products and copies; or `device`.
        tokens: of the one row, T.
        causal: the causal form.
        padded: a quarter of the row is padding.
        dropout: of attention weights, in training.
        compiled: by `torch.compile`.
        global_tokens: number of tokens at the beginning that see and are seen by all.
        window: tokens that a window sees on each side; 0 for the default of a mechanism, and `Setting.side` elsewhere.
        form: of a layer: `bare` without its projections, `joined` with one product for queries, keys and values.
        options: of FlexAttention's kernel, as in "fwd_BLOCK_M=64 fwd_num_warps=4"; "" for ours.
        traced: whether one run is profiled too.
    """

    side: str
    work: str
    tokens: int
    causal: bool = False
    padded: bool = False
    dropout: float = 0.0
    compiled: bool = False
    global_tokens: int = 0
    window: int = 0
    form: Literal["", "bare", "joined"] = ""
    options: str = ""
    traced: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells rows apart."""
        return tuple(asdict(self).values())


def side_of(cell: Cell, setting: Setting) -> int:
    """Tokens that a window sees on each side."""
    return cell.window or setting.side


def words_of(cell: Cell) -> str:
    """ "longformer, training, 65,536 tokens, padded" """
    options = [word for word in ("causal", "padded", "compiled") if getattr(cell, word)]
    options += [f"dropout {cell.dropout}"] if cell.dropout else []
    options += [f"{cell.global_tokens} global tokens"] if cell.global_tokens else []
    options += [f"window {cell.window}"] if cell.window else []
    options += [each for each in (cell.form, cell.options) if each]
    return ", ".join([cell.side, cell.work, f"{cell.tokens:,} tokens", *options])
