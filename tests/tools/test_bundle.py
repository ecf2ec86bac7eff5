"""The encoder of the package taken out, as a checkpoint to train on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from bundle import take_out

from longspan_documents.inference.embed import load_encoder


def test_what_is_taken_out_embeds_as_what_is_in_the_package(tmp_path: Path) -> None:
    take_out(tmp_path)
    texts = ["Marmots sleep in burrows.", "The council met in June, and paid for the bridge."]
    out, inside = load_encoder(tmp_path), load_encoder()
    assert np.allclose(out.embed(texts), inside.embed(texts), atol=1e-6)
    assert np.allclose(out.embed_document(texts, [0]), inside.embed_document(texts, [0]), atol=1e-6)
