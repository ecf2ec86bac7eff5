"""Summaries that a sequence-to-sequence model writes: LED, BART, mBART, or a model trained here."""

from __future__ import annotations

import time
from typing import Any

from longspan.errors import InputError, one_sentence
from longspan.inference.results import Decoding, ScoredSentence, Summary


class Abstractive:
    """Summarises by writing with a `LongspanForConditionalGeneration` model."""

    def __init__(self, model: Any, tokenizer: Any, *, source: str, decoding: Decoding | None = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.source = source
        self.options = (decoding or Decoding()).options()
        if "max_new_tokens" in self.options:
            # transformers warns where both a total and a new length are set.
            self.options["max_length"] = None

    def summarize(self, text: str, sentences: int | None = None) -> Summary:
        """See `longspan.summarize`."""
        import torch

        from longspan.data.text.sentences import split_sentences

        if sentences is not None:
            raise InputError(
                f"sentences={sentences} is given, but model {self.source!r} writes its summary; "
                "give the longest length in tokens instead (max_tokens)"
            )
        begin = time.perf_counter()
        input_ids = torch.tensor([self.tokenizer(text, verbose=False)["input_ids"]], dtype=torch.long)
        self._check_length(input_ids.shape[1])
        with torch.inference_mode(), one_sentence(f"model {self.source!r} cannot write a summary as it is configured"):
            output = self.model.generate(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), **self.options)
        written = self.tokenizer.decode(output[0], skip_special_tokens=True).strip()
        return Summary(
            sentences=tuple(ScoredSentence(sentence.text) for sentence in split_sentences(written)),
            tokens=input_ids.shape[1],
            seconds=time.perf_counter() - begin,
            note=None if written else "the model wrote an empty summary",
        )

    def _check_length(self, tokens: int) -> None:
        longest = self.model.config.max_position_embeddings
        if tokens > longest:
            raise InputError(
                f"the document has {tokens} tokens but model {self.source!r} reads at most {longest}; leave the model "
                f"out, or make it longer with `longspan lengthen {self.source} --max-tokens {tokens} --output DIR`"
            )
