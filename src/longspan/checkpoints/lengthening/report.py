"""What `lengthen` did, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

from longspan.attention import AttentionConfig

KINDS = {
    "copied": "copied",
    "tiled": "tiled positions",
    "drawn": "positions of which the new are random",
    "from_local": "copies of local projections",
    "bucketed": "bucketed relative positions",
    "new": "new",
    "dropped": "left out",
}
"""What became of a parameter → how the report calls it."""
GLOBALS = {"none": "none", "first": "the first token", "question": "the question"}


@dataclass
class LengthenReport:
    """What became of every parameter, and how far the lengthened model is from its source on short inputs.

    Attributes:
        source: class of the source.
        target: class of the lengthened model.
        tokens_before: longest input of the source.
        tokens_after: longest input now.
        reserved_rows: rows of the position table that stand for no position and were kept.
        table: whether there is a table of absolute positions at all.
        new_positions: how its new rows started, "copied" or "random".
        attention: mechanism of each encoder layer.
        global_tokens: which tokens are global when nobody says so.
        parameters: number of parameters that were "copied", "tiled", "drawn" (a position table with random new rows),
            "from_local" (global projections copied from the local ones), "bucketed" (relative positions of global
            pairs, from others), "new" (initialised by the mechanism) or "dropped" (of the source, without a place now).
        parity_tokens: length of the random input on which both models were compared, under windows that cover it.
        parity_hidden: largest difference of the encoder's last states.
        parity_logits: largest difference of the logits; `None` for a model without a head.
        parity_tolerance: difference beyond which `lengthen` raises: float32 rounding at the size of the values.
        approximation: where layers now approximate what they computed before, how far the states on that input are from
            the source's, as a share of their size; the other numbers are then those of the exact computation, with the
            same weights. `None` where nothing is approximated.
        parity_first_level: the comparison left out second levels that start active (`init` other than "zero_value").
    """

    source: str
    target: str
    tokens_before: int
    tokens_after: int
    reserved_rows: int
    table: bool
    new_positions: str
    attention: tuple[AttentionConfig, ...]
    global_tokens: str
    parameters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    parity_tokens: int = 0
    parity_hidden: float | None = None
    parity_logits: float | None = None
    parity_tolerance: float = 0.0
    parity_first_level: bool = False
    approximation: float | None = None

    def __str__(self) -> str:
        lines = {
            "model": f"{self.source} → {self.target}",
            "longest input": self._positions(),
            "attention": self._attention(),
            "global tokens": GLOBALS[self.global_tokens],
            "parameters": " · ".join(f"{n:,} {KINDS[kind]}" for kind, n in self.parameters.items() if n),
            "parity": self._parity(),
        }
        return "\n".join(f"{name:<14} {text}" for name, text in lines.items())

    def _positions(self) -> str:
        if self.tokens_after == self.tokens_before:
            return f"{self.tokens_after:,} tokens, as before"
        if not self.table:
            return f"{self.tokens_before:,} → {self.tokens_after:,} tokens (there is no table of absolute positions)"
        kept = f"; {self.reserved_rows} reserved rows kept" if self.reserved_rows else ""
        how = f"position rows repeated {self.tokens_after / self.tokens_before:.4g} times"
        how = "new position rows drawn at random" if self.new_positions == "random" else how
        return f"{self.tokens_before:,} → {self.tokens_after:,} tokens ({how}{kept})"

    def _attention(self) -> str:
        groups, first = [], 0
        for config, members in groupby(self.attention):
            last = first + len(list(members)) - 1
            span = f"layer {first}" if first == last else f"layers {first}–{last}"
            groups.append(f"{span}: {config.describe()}")
            first = last + 1
        return ("\n" + " " * 15).join(groups)

    def _parity(self) -> str:
        if self.parity_hidden is None:
            return "not compared"
        parts = [f"states {self.parity_hidden:.1e}"]
        if self.parity_logits is not None:
            parts.append(f"logits {self.parity_logits:.1e}")
        level = ", first level only" if self.parity_first_level else ""
        if self.approximation is not None:
            level += f", computed exactly; as approximated, states differ by {self.approximation:.0%} of their size"
        return (
            f"equal on {self.parity_tokens} random tokens{level}: largest difference of {', '.join(parts)} "
            f"(allowed {self.parity_tolerance:.1e})"
        )
