"""Summaries that a model writes: an encoder–decoder, or a prefix language model; `longspan.summarize` opens them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from longspan.data.text.blocks import Document
from longspan.data.text.sentences import split_sentences
from longspan.errors import InputError, one_sentence
from longspan.inference.results import Decoding, Extent, ScoredSentence, Summary, extent_of
from longspan.settings import LARGEST


def tagging_task(source: str, model: Any) -> Any | None:
    """The task with whose tagger a model weighs tokens, by the recipe beside it; None for a model that does not.

    Raises:
        InputError: no recipe names a tagger, as where a model was trained for the upper bound alone.
    """
    from longspan.stacks import stack_config

    if not stack_config(model.config.stack).reads().importance:
        return None
    from longspan.tasks import task_beside

    task: Any = task_beside(Path(source))
    if getattr(task, "tagger", None) is None:
        raise InputError(
            f"model {source!r} weighs tokens by importance, and no recipe beside it names a tagger; train it with "
            "task.importance=tagger and task.tagger"
        )
    return replace(task, prefix="", max_source_tokens=model.config.max_position_embeddings)


class Abstractive:
    """Summarises by writing, token by token, with an encoder–decoder or a prefix language model.

    Args:
        model, tokenizer: loaded, on one device.
        source: folder or name of the model, for messages.
        decoding: beams and lengths; None keeps the model's own.
        task: the task whose tagger tells how important each token is, for a model that weighs them; else None.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, source: str, decoding: Decoding | None = None, task: Any | None = None
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.source = source
        self.task = task
        self.options = (decoding or Decoding()).options()
        if "max_new_tokens" in self.options:
            # transformers warns where both a total and a new length are set.
            self.options["max_length"] = None

    def summarize(self, document: Document, sentences: int | Extent | None = None, query: str | None = None) -> Summary:
        """What the model writes about a document, as sentences; arguments as in `longspan.summarize`.

        Raises:
            InputError: a number of sentences or words is given, the document has more tokens than the model reads, or
                the model cannot write as it is configured.
        """
        import torch

        if given := extent_of(sentences).given:
            raise InputError(
                f"{given} is given, but model {self.source!r} writes its summary; "
                "give the longest length in tokens instead (max_tokens)"
            )
        begin = time.perf_counter()
        ids, options = self._inputs(document, query)
        input_ids = torch.tensor([ids], dtype=torch.long)
        config, longest = self.model.config, self.model.config.max_position_embeddings
        if len(ids) > longest:
            wanted = f"--max-tokens {len(ids)} --output DIR"
            if not config.is_encoder_decoder:  # few mechanisms read a source both ways, so that it keeps its own
                wanted = f"--attention {config.layer_attention(0).mechanism} {wanted}"
            raise InputError(
                f"the document has {len(ids)} tokens but model {self.source!r} reads at most {longest}; leave the "
                f"model out, or make it longer with `longspan lengthen {self.source} {wanted}`"
            )
        with torch.inference_mode(), one_sentence(f"model {self.source!r} cannot write a summary as it is configured"):
            output = self.model.generate(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), **options)
        written = self.tokenizer.decode(output[0], skip_special_tokens=True).strip()
        return Summary(
            sentences=tuple(ScoredSentence(sentence.text) for sentence in split_sentences(written)),
            tokens=input_ids.shape[1],
            seconds=time.perf_counter() - begin,
            note=None if written else "the model wrote an empty summary",
        )

    def _inputs(self, document: Document, query: str | None) -> tuple[list[int], dict[str, Any]]:
        """Token ids, and options of `generate`: a query stands before the document, and its tokens are global; a model
        that weighs tokens is told how important its tagger holds each."""
        import torch

        from longspan.data.summaries.rows import SummaryRow

        task: Any = self.task
        if query is not None:
            from longspan.tasks import task_beside

            task = task_beside(Path(self.source))
            if task is None or getattr(task, "global_tokens", None) != "question":
                raise InputError(
                    f"model {self.source!r} reads no query, since it was not trained with task.global_tokens=question; "
                    f"leave the query {query!r} or the model out"
                )
        elif task is None:
            return list(self.tokenizer(document.words, verbose=False)["input_ids"]), self.options
        row = SummaryRow(id=document.name, pieces=(document.words,), question=query)
        features = replace(task, max_source_tokens=LARGEST).features(row, self.tokenizer)
        ids, options = features["input_ids"], dict(self.options)
        if query is not None:
            options["global_attention_mask"] = (torch.arange(len(ids)) < features["global_tokens"])[None]
        if "importance" in features:
            options["importance"] = torch.tensor([features["importance"]])
        return ids, options
