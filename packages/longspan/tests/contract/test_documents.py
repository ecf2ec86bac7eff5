"""Several documents in one row: every mechanism reads each of them as if it stood alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from longspan.attention import Tokens
from longspan.attention.features.packed import begins
from longspan.errors import InputError

from .forms import WIDTH, in_case

PACKED = [[5, 1, 22, 19], [13, 21, 1, -5, 7]]
"""Lengths of the documents of two rows, padding negative."""


def packed() -> torch.Tensor:
    """`(2, 47)` numbers of documents, not in their order."""
    rows = []
    for lengths in PACKED:
        numbers = [-1 if length < 0 else 7 - index for index, length in enumerate(lengths)]
        rows.append(torch.tensor(numbers).repeat_interleave(torch.tensor(lengths).abs()))
    return torch.stack(rows)


def test_documents_in_one_row_are_those_alone(form):
    """Outputs and all gradients in float64, with global tokens and structure where the mechanism takes them."""
    documents, module = packed(), form.build()
    hidden = torch.randn(2, documents.shape[1], WIDTH, dtype=torch.float64, requires_grad=True)
    towards = torch.randn_like(hidden)
    for globals_ in form.globals if len(form.globals) < 2 else ("none", "some"):
        flags = None if globals_ == "none" else (torch.rand(documents.shape) < 0.2) | begins(documents)
        tokens = Tokens(documents=documents, is_global=flags)
        if flags is not None and form.supports("structure"):
            tokens = replace(tokens, belongs_to=torch.zeros_like(documents))
        inputs = [hidden, *(weight for weight in module.parameters())]
        together = module(hidden, tokens)
        gradients = torch.autograd.grad(together, inputs, towards, allow_unused=True)
        alone, expected = torch.zeros_like(hidden), [None] * len(inputs)
        for row, number in {(int(row), int(documents[row, place])) for row, place in (documents >= 0).nonzero()}:
            own = documents[row] == number
            belongs = None if tokens.belongs_to is None else torch.zeros(1, int(own.sum()), dtype=torch.int64)
            part = Tokens(is_global=None if flags is None else flags[row : row + 1, own], belongs_to=belongs)
            output = module(hidden[row : row + 1, own], part)
            alone[row, own] = output[0].detach()
            grads = torch.autograd.grad(output, inputs, towards[row : row + 1, own], allow_unused=True)
            expected = [
                old if new is None else new if old is None else old + new
                for old, new in zip(expected, grads, strict=True)
            ]
        close = {"rtol": 1e-10, "atol": 1e-10, "msg": in_case(globals_=globals_)}
        torch.testing.assert_close(together.detach(), alone, **close)
        for own, wanted in zip(gradients, expected, strict=True):
            if own is None:  # of a weight that these documents have no use for
                assert wanted is None or not wanted.any()
                continue
            torch.testing.assert_close(own, torch.zeros_like(own) if wanted is None else wanted, **close)


def test_what_reads_one_document_says_so(plain_form):
    documents, module = packed(), plain_form.build()
    hidden = torch.zeros(2, documents.shape[1], WIDTH, dtype=torch.float64)
    with pytest.raises(InputError, match="documents, several in a row"):
        module.weights(hidden, Tokens(documents=documents))
    with pytest.raises(InputError, match=r"documents has shape \(2, 47\), but the sequence needs \(2, 46\)"):
        module(hidden[:, :46], Tokens(documents=documents))
