"""sentence-transformers: Longspan's encoders as its modules, and what it saves of them as Longspan's folders.

The library's own `Transformer` reads Longspan's encoders once `longspan` has been imported. It would cut texts in
silence, which is turned off here: one that is longer than the model reads is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from longspan.characters import mend
from longspan.checkpoints.loading import load_pair, load_tokenizer
from longspan.imports import require
from longspan.models import LongspanConfig, LongspanForSentenceEmbedding
from longspan.tasks.tokenizers import encode_sentences
from longspan_documents.inference.embed import PooledEncoder, load_encoder
from longspan_documents.inference.encoders import BUNDLED, Encoder, padded

LIBRARY, PURPOSE = "sentence_transformers", "longspan_documents.integrations.sentence_transformers"
library = require(LIBRARY, extra="sentence-transformers", purpose=PURPOSE)
modules = require(f"{LIBRARY}.sentence_transformer.modules", extra="sentence-transformers", purpose=PURPOSE)


class SentenceEmbedding(modules.InputModule):
    """A model that was trained to embed: texts in, vectors of length 1 out. The library itself loads what is saved only
    by `SentenceTransformer(folder, trust_remote_code=True)`, as all that is not its own."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer

    def preprocess(self, inputs: list[str], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Token ids and mask of a batch; a text of any length is read whole."""
        encoded = encode_sentences([mend((prompt or "") + text)[0] for text in inputs], self.tokenizer)
        ids, real = padded(encoded, self.tokenizer.pad_token_id)
        return {"input_ids": ids, "attention_mask": real}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """`(B, T)` ids → `sentence_embedding` `(B, D)`."""
        inputs = {name: features[name] for name in ("input_ids", "attention_mask")}
        one = torch.where(inputs["attention_mask"], 0, -1)
        return features | {"sentence_embedding": self.model(**inputs, sentence_ids=one).embeddings[:, 0]}

    def get_embedding_dimension(self) -> int:
        """D, of the vectors."""
        return self.model.projection.out_features

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write the model and its tokenizer, as safetensors in any case."""
        self.model.save_pretrained(output_path)
        self.tokenizer.save_pretrained(output_path)

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> SentenceEmbedding:
        """Read what `save` wrote."""
        return cls(*load_pair(model_name_or_path))


def sentence_transformer(source: str | Path | None = None, **options: Any) -> Any:
    """A `SentenceTransformer` that encodes what `longspan.embed` does.

    Args:
        source: as `model` of `longspan.embed`; None takes the bundled encoder.
        **options: of `SentenceTransformer`, such as `device` and `prompts`.
    """
    encoder = load_encoder(source)
    if isinstance(encoder, PooledEncoder):
        whole = {"text": {"truncation": False}}
        first = modules.Transformer(str(source), processing_kwargs=whole, do_lower_case=encoder.pooling.lower)
        pooling = modules.Pooling(encoder.dimensions, pooling_mode=encoder.pooling.mode)
        return library.SentenceTransformer(modules=[first, pooling, modules.Normalize()], **options)
    if source is None:  # opened without transformers
        model = LongspanForSentenceEmbedding(LongspanConfig.from_pretrained(BUNDLED))
        model.load_state_dict(encoder.model.state_dict())
        encoder = Encoder(model.eval(), load_tokenizer(BUNDLED))
    return library.SentenceTransformer(modules=[SentenceEmbedding(encoder.model, encoder.tokenizer)], **options)
