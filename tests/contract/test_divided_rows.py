"""Rows divided between processes: what a mechanism reads of its neighbours, or why it reads whole rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forked import forked
from longspan.errors import InputError

from .divided_rows import LENGTHS, PADDINGS, STARS, Stars
from .forms import FORMS, Form


def refusal(form: Form | Stars) -> str | None:
    """Why a mechanism reads whole rows, if it does."""
    if isinstance(form, Stars):
        return None
    try:
        form.build().check_reads_shards()
    except InputError as error:
        return str(error)
    return None


@pytest.mark.slow
def test_parts_of_rows_are_those_of_whole_rows() -> None:
    """Outputs and all gradients in float64, with parts shorter than a window, padding, and global tokens anywhere."""
    done = forked(max(LENGTHS), Path(__file__).with_name("divided_rows.py"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    served = 0
    for form in (*FORMS, *STARS):
        for count in LENGTHS:
            for padding in PADDINGS:
                for globals_ in form.globals if len(form.globals) < 2 else ("none", "some"):
                    name = f"{form.name}, {count} processes, padding {padding}, globals {globals_}"
                    words, result = refusal(form), found.pop(name)
                    if words is None:
                        assert result < 1e-10, name
                        served += 1
                    else:
                        assert words in result, name
    assert not found
    assert served > 700


def test_what_is_unbounded_reads_whole_rows() -> None:
    """Windows, pools and kernels read parts; what sees, sorts, hashes or sums up everything does not."""
    reads = {form.config.mechanism for form in FORMS if refusal(form) is None}
    assert reads == {"longformer", "poolingformer", "fusion", "adaptive_span", "linear", "performer"}
    whole = [form for form in FORMS if form.config.mechanism == "full"]
    assert all("nothing bounds how far a token sees" in str(refusal(form)) for form in whole)
