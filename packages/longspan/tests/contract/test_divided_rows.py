"""Rows divided between processes: what a mechanism reads of its neighbours, or why it reads whole rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forked import forked
from longspan.stacks import STACKS

from .divided_rows import LENGTHS, STARS, STRUCTURED, cases, refusal
from .forms import FORMS

GUIDE = Path(__file__).parents[2] / "docs/guides/sequence-parallel.md"


@pytest.mark.slow
def test_parts_of_rows_are_those_of_whole_rows() -> None:
    """Outputs and all gradients in float64, with parts shorter than a window or without tokens, padding, rows without
    real tokens, global tokens anywhere, and of causal forms behind a memory, too."""
    done = forked(max(map(len, LENGTHS)), Path(__file__).with_name("divided_rows.py"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    served = 0
    for form in (*FORMS, *STRUCTURED, *STARS):
        words = refusal(form)
        for name, *_ in cases(form, served=words is None):
            result = found.pop(name)
            if words is None:
                assert result < (1e-12 if form.name.startswith("full") else 1e-10), name
                served += 1
            else:
                assert words in result, name
    assert not found
    assert served > 550


@pytest.mark.variant
def test_what_is_unbounded_reads_whole_rows() -> None:
    """Windows, pools, kernels and full attention read parts; what sorts, hashes or sums up everything does not."""
    reads = {form.config.mechanism for form in FORMS if refusal(form) is None}
    assert reads == {"longformer", "poolingformer", "fusion", "adaptive_span", "linear", "performer", "full", "etc"}
    assert all(refusal(form) is None for form in FORMS if form.config.mechanism == "full")
    drawn = {form.name: refusal(form) for form in FORMS if form.config.mechanism == "etc"}
    assert [name for name, words in drawn.items() if words is None] == ["etc"]
    assert drawn["etc-drawn"] == "random blocks are drawn from whole rows unless random_blocks=0"
    whole = [form for form in FORMS if form.config.mechanism in ("reformer", "sinkhorn", "sparse")]
    assert all("nothing bounds how far a token sees" in str(refusal(form)) for form in whole)


def test_the_guide_says_which_stacks_can_be_divided() -> None:
    said: dict[str, list[str]] = {}
    for line in GUIDE.read_text(encoding="utf-8").splitlines():
        names, *answers = [cell.strip() for cell in line.strip("| ").split("|")]
        if names.startswith("`") and answers and answers[0] in ("yes", "no", "–"):
            said |= dict.fromkeys(names.replace("`", "").split(", "), answers[:2])
    for name in STACKS:
        assert said.pop(name)[0] == ("yes" if "sharded" in STACKS[name].supports else "no"), name
    assert not said
