"""Which mechanisms are predicted to beat full FlashAttention on a GPU: `python docs/predicted_mechanisms.py [NAME]`.

One layer of a model with its projections, 12 heads of 64, bfloat16, forward, with default options and masks that an
earlier layer has made, counted on a simulated GPU. Writes
`benchmarks/results/predicted-h100.json` and the table on the front page of mechanisms; with a name, only its rows anew.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "shared"))

from longspan.attention import MECHANISMS, AttentionConfig
from longspan.hardware import DEVICES
from tracing import UnknownNumbers, layer_seconds

BEGIN, END = "<!-- predicted: begin -->", "<!-- predicted: end -->"
DEVICE = "h100"
FOLLOWED = (4096, 16_384, 32_768, 65_536)
"""Tokens at which launches are followed."""
MILLION = 1_048_576
JUMPING = ("fusion",)
"""Take another path for long texts, so that a million tokens are followed, where others are continued."""
FILE = ROOT / f"benchmarks/results/predicted-{DEVICE}.json"
PAGE = ROOT / "packages/longspan/docs/mechanisms/index.md"
Predictions = dict[str, dict[str, float]]
"""Mechanism, with ", causal" behind it for that form → tokens → milliseconds."""


def forms(only: str | None = None) -> list[tuple[str, bool]]:
    """Mechanisms both ways, and causal."""
    both = [(name, False) for name, kind in MECHANISMS.items() if kind.bidirectional]
    causal = [(name, True) for name, kind in MECHANISMS.items() if kind.causal]
    return [form for form in both + causal if only in (None, form[0])]


def predict(only: str | None = None) -> Predictions:
    """Milliseconds of every form at every length, and at a million tokens."""
    found: Predictions = {}
    for name, causal in forms(only):
        kind, row = MECHANISMS[name], {}
        try:
            for tokens in FOLLOWED:
                config = kind(**kind.defaults_for(tokens, {}))
                seconds = layer_seconds(config, DEVICES[DEVICE], tokens=tokens, causal=causal, in_model=True)
                row[str(tokens)] = round(1e3 * seconds, 3)
        except UnknownNumbers:
            continue
        row[str(MILLION)] = round(million(kind, causal) if name in JUMPING else continued(row), 1)
        found[name + ", causal" * causal] = row
    return found


def million(kind: type[AttentionConfig], causal: bool) -> float:
    """Milliseconds at a million tokens, followed like the others."""
    config = kind(**kind.defaults_for(MILLION, {}))
    return 1e3 * layer_seconds(config, DEVICES[DEVICE], tokens=MILLION, causal=causal, in_model=True)


def continued(row: dict[str, float]) -> float:
    """Milliseconds at a million tokens, by the parabola through the three longest lengths that were followed."""
    (one, first), (two, second), (three, third) = ((tokens, row[str(tokens)]) for tokens in FOLLOWED[-3:])
    slope, other = (second - first) / (two - one), (third - second) / (three - two)
    bend = max(0.0, (other - slope) / (three - one))
    return third + (other + bend * (three - two)) * (MILLION - three) + bend * (MILLION - three) ** 2


def crossing(row: dict[str, float], full: dict[str, float]) -> int | None:
    """The shortest of the lengths from which on a form is faster than full attention."""
    slower = [int(tokens) for tokens in row if row[tokens] >= full[tokens]]
    longer = [int(tokens) for tokens in row if int(tokens) > max(slower, default=0)]
    return min(longer, default=None)


def predicted_table(found: Predictions) -> str:
    """Markdown: milliseconds, bold where full attention takes longer."""
    lengths = [str(tokens) for tokens in (4096, 16_384, 65_536, MILLION)]
    lines = [["mechanism", *(f"{int(tokens):,}" for tokens in lengths), "faster from"], ["---"] * (len(lengths) + 2)]
    for name, row in found.items():
        full = found["full, causal" if name.endswith("causal") else "full"]
        cells = [shown(row[tokens], bold=row[tokens] < full[tokens]) for tokens in lengths]
        mechanism, _, causal = name.partition(", ")
        first = crossing(row, full)
        last = "" if mechanism == "full" else "–" if first is None else f"{first:,}"
        lines.append([f"[`{mechanism}`]({mechanism}.md){', ' * bool(causal)}{causal}", *cells, last])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(milliseconds: float, *, bold: bool) -> str:
    """ "**1.45**" """
    text = f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"
    return f"**{text}**" if bold else text


def with_table(page: str, table: str) -> str:
    """A page with the table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    only = sys.argv[1] if len(sys.argv) > 1 else None
    before = json.loads(FILE.read_text(encoding="utf-8")) if only else {}
    found = before | predict(only)
    order = [name + ", causal" * causal for name, causal in forms()]
    found = {name: found[name] for name in order if name in found}
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), predicted_table(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
