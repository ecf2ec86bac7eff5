"""The encoder of the package below a decoder, and out of it again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from denoise import start, take

from longspan.checkpoints.loading import load_model
from longspan_documents.inference.embed import load_encoder

TEXTS = ["Marmots sleep in burrows.", "The council met in June, and paid for the bridge."]


@pytest.mark.slow
def test_an_encoder_comes_out_as_it_went_in_and_without_the_tokens_of_the_noise(tmp_path: Path) -> None:
    start(tmp_path / "start")
    model = load_model(tmp_path / "start")
    # A new decoder's guesses: near those of chance, though the table of words is large.
    ids = torch.tensor([[5, 9, 11, 2]])
    with torch.no_grad():
        logits = model(input_ids=ids, labels=ids).logits
    assert 0.2 < logits.std().item() < 3
    model.resize_token_embeddings(model.config.vocab_size + 3, mean_resizing=False)
    model.save_pretrained(tmp_path / "denoiser")
    take(tmp_path / "denoiser", tmp_path / "out")
    out, inside = load_encoder(tmp_path / "out"), load_encoder()
    np.testing.assert_allclose(out.embed(TEXTS), inside.embed(TEXTS), atol=1e-6)
