"""sentence-transformers: Longspan's encoders as its modules, and saved models as Longspan's folders.

The library's own `Transformer` reads Longspan's encoders once `longspan` has been imported. It would truncate texts
silently, which is turned off here: a text longer than the model's longest input raises an error.
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
from longspan_documents.inference.embed import PooledEncoder, check_words_known, load_encoder
from longspan_documents.inference.encoders import BUNDLED, Encoder, padded

LIBRARY, PURPOSE = "sentence_transformers", "longspan_documents.integrations.sentence_transformers"
library = require(LIBRARY, extra="sentence-transformers", purpose=PURPOSE)
modules = require(f"{LIBRARY}.sentence_transformer.modules", extra="sentence-transformers", purpose=PURPOSE)


class SentenceEmbedding(modules.InputModule):
    """A model trained for embeddings: texts in, normalised vectors out. The library loads saved models only with
    `SentenceTransformer(folder, trust_remote_code=True)`, like all modules that are not its own.

    Args:
        bundled: the bundled encoder, if the model is a copy of it; texts whose words it does not know are refused.
    """

    def __init__(self, model: Any, tokenizer: Any, bundled: Encoder | None = None) -> None:
        super().__init__()
        self.model, self.tokenizer, self._bundled = model, tokenizer, bundled

    def preprocess(self, inputs: list[str], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Tokenises a batch, without truncation, into ids and an attention mask.

        Raises:
            InputError: the bundled encoder does not know half of the words of a text.
        """
        if self._bundled is not None:
            for text in inputs:
                check_words_known(text, self._bundled)
        encoded = encode_sentences([mend((prompt or "") + text)[0] for text in inputs], self.tokenizer)
        ids, real = padded(encoded, self.tokenizer.pad_token_id)
        return {"input_ids": ids, "attention_mask": real}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """`(B, T)` ids → `sentence_embedding` `(B, D)`."""
        inputs = {name: features[name] for name in ("input_ids", "attention_mask")}
        sentence_ids = torch.where(inputs["attention_mask"], 0, -1)
        return features | {"sentence_embedding": self.model(**inputs, sentence_ids=sentence_ids).embeddings[:, 0]}

    def get_embedding_dimension(self) -> int:
        """Returns D, the width of the vectors."""
        return self.model.projection.out_features

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Saves the model and its tokenizer, always as safetensors."""
        self.model.save_pretrained(output_path)
        self.tokenizer.save_pretrained(output_path)

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> SentenceEmbedding:
        """Loads what `save` wrote."""
        return cls(*load_pair(model_name_or_path))


def sentence_transformer(source: str | Path | None = None, **options: Any) -> Any:
    """Returns a `SentenceTransformer` equivalent to `longspan.embed`.

    Args:
        source: `model` of `longspan.embed`; None uses the bundled encoder.
        **options: options of `SentenceTransformer`, such as `device` and `prompts`.
    """
    encoder = load_encoder(source)
    if isinstance(encoder, PooledEncoder):
        whole = {"text": {"truncation": False}}
        first = modules.Transformer(str(source), processing_kwargs=whole, do_lower_case=encoder.pooling.lower)
        pooling = modules.Pooling(encoder.dimensions, pooling_mode=encoder.pooling.mode)
        return library.SentenceTransformer(modules=[first, pooling, modules.Normalize()], **options)
    bundled = None
    if source is None:  # loaded without transformers
        bundled = encoder
        model = LongspanForSentenceEmbedding(LongspanConfig.from_pretrained(BUNDLED))
        model.load_state_dict(encoder.model.state_dict())
        encoder = Encoder(model.eval(), load_tokenizer(BUNDLED))
    return library.SentenceTransformer(
        modules=[SentenceEmbedding(encoder.model, encoder.tokenizer, bundled)], **options
    )
