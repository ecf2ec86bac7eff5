"""How many files and functions one has to read to know what a call does: bounds, so that they do not grow unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import longspan
from longspan.cli import main
from reading import functions_crossed

PDF = Path(__file__).parents[1] / "packages/longspan-documents/tests/text/pdf/pages/two_columns.pdf"
TOKENS = 4096  # above the length up to which full attention is cheaper


def told(crossed: dict[str, set[str]]) -> str:
    return "\n".join(f"{file}: {', '.join(sorted(names))}" for file, names in sorted(crossed.items()))


def crossed_by(attention: dict[str, Any], *, padded: bool) -> dict[str, set[str]]:
    """What the second call of a forward pass crosses, since the first one also chooses tiles."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = longspan.LongspanConfig(vocab_size=100, max_position_embeddings=TOKENS, attention=attention, **sizes)
    model = longspan.LongspanModel(config).eval()
    inputs = {"input_ids": torch.randint(5, 100, (2, TOKENS))}
    if padded:
        inputs["attention_mask"] = (torch.arange(TOKENS) < torch.tensor([[TOKENS], [TOKENS // 2]])).long()
        inputs["global_attention_mask"] = torch.isin(torch.arange(TOKENS), torch.tensor([0, 5])).expand(2, -1).long()
    with torch.no_grad():
        model(**inputs)
        return functions_crossed(lambda: model(**inputs))


@pytest.mark.parametrize(("padded", "files", "functions"), [(False, 15, 53), (True, 16, 70)], ids=["plain", "padded"])
def test_a_forward_pass_of_longformer(padded: bool, files: int, functions: int) -> None:
    crossed = crossed_by({"mechanism": "longformer", "left_tokens": 64, "right_tokens": 64}, padded=padded)
    assert len(crossed) <= files, told(crossed)
    assert sum(map(len, crossed.values())) <= functions, told(crossed)


@pytest.mark.parametrize(
    ("attention", "files"),
    [
        ({"mechanism": "sparse"}, 21),
        ({"mechanism": "bigbird"}, 22),
        ({"mechanism": "fusion", "left_tokens": 64, "right_tokens": 64, "relative_span": 64}, 30),
    ],
    ids=["sparse", "bigbird", "fusion"],
)
def test_a_padded_forward_pass_with_globals(attention: dict[str, Any], files: int) -> None:
    crossed = crossed_by(attention, padded=True)
    assert len(crossed) <= files, told(crossed)


def run(*arguments: str) -> dict[str, set[str]]:
    codes: list[int] = []
    crossed = functions_crossed(lambda: codes.append(main(arguments)))
    assert codes == [0]
    return crossed


def test_a_summary_of_a_pdf() -> None:
    crossed = run("summarize", str(PDF))
    assert len(crossed) <= 76, told(crossed)


def test_a_run_of_transformer_xl(tmp_path: Path) -> None:
    crossed = run("train", "transformer-xl-enwik8", "--smoke", "--output", str(tmp_path / "run"))
    assert len(crossed) <= 92, told(crossed)
