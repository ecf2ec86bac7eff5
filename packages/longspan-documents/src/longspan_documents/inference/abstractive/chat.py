"""Summaries by instruction-tuned causal language models, which are prompted through their chat template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from longspan.errors import InputError, one_sentence
from longspan_documents.inference.abstractive.options import context_of, sensible
from longspan_documents.inference.abstractive.writers import Asked, Writer
from longspan_documents.inference.results import Extent

CONTEXT = 4_096
"""Context length in tokens, prompt and output together, of a model whose files do not specify one."""
WHAT = {
    "document": "Summarize the document below",
    "part": "Summarize the part of a longer document below",
    "summaries": "Below are summaries of the consecutive parts of one document. Write one summary of that document",
}
"""Beginning of the instruction, by the kind of text."""
RULES = "Write in the language of the text. State only what the text says. Reply with the summary alone."
LENGTHS = {"short": "in one or two sentences", "medium": "in one paragraph", "long": "in several paragraphs"}
_THOUGHTS = re.compile(r"\s*<think>.*?(</think>|\Z)\s*", re.DOTALL)
"""Reasoning that some models generate before their reply."""


def instruction(text: str, asked: Asked) -> str:
    """Returns the prompt: the kind of text, the length and query of the summary, and the text."""
    lines = [" ".join(filter(None, (WHAT[asked.what], _length(asked.extent)))) + "."]
    if asked.query is not None:
        lines.append(f"The summary is to be about this: {asked.query.strip()}")
    return "\n".join([*lines, RULES, "", text])


def _length(extent: Extent) -> str:
    if extent.sentences is not None:
        return f"in {extent.sentences} sentences" if extent.sentences > 1 else "in one sentence"
    if extent.words is not None:
        return f"in about {extent.words} words"
    return "" if extent.length is None else LENGTHS[extent.length]


def check_template(tokenizer: Any, source: str, name: str) -> None:
    """Check that a tokenizer has a chat template, as a model that follows instructions needs.

    Raises:
        InputError: the tokenizer has no chat template.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            f"model {source!r} is a {name}, a language model whose tokenizer has no chat template; give its "
            "instruction-tuned form, or put the chat_template.jinja that it was trained with next to its tokenizer"
        )


class ChatWriter(Writer):
    """A causal language model of transformers that follows instructions.

    Special tokens in a text are broken up, so that a text cannot imitate a turn of the user or the model.
    """

    follows: ClassVar[bool] = True

    def _limit(self) -> tuple[int, bool]:
        context = context_of(self.model) or sensible(self.tokenizer.model_max_length) or CONTEXT
        if context <= self.new_tokens:
            raise InputError(
                f"max_tokens={self.new_tokens} is as much as model {self.source!r} reads and writes together "
                f"({context}); lower it"
            )
        return context - self.new_tokens, True

    def encode(self, text: str, asked: Asked) -> dict[str, Any]:
        """Encode a chat with one user turn (instruction and text) and the beginning of the model's turn."""
        turns = [{"role": "user", "content": self._without_marks(instruction(text, asked))}]
        with one_sentence(f"the chat template of model {self.source!r} cannot be used"):
            prompt = self.tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        return {"input_ids": list(self.tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"])}

    def _without_marks(self, text: str) -> str:
        special = (token for token in self.tokenizer.added_tokens_decoder.values() if token.special)
        for mark in sorted({token.content for token in special if len(token.content) > 1}, key=len, reverse=True):
            text = text.replace(mark, f"{mark[0]} {mark[1:]}")
        return text

    def _inputs(self, batch: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Left padding, so that generation continues every row at its end."""
        import torch

        longest = max(len(features["input_ids"]) for features in batch)
        padding = self.tokenizer.pad_token_id or 0
        rows = [[padding] * (longest - len(features["input_ids"])) + features["input_ids"] for features in batch]
        lengths = torch.tensor([[len(features["input_ids"])] for features in batch])
        return {
            "input_ids": torch.tensor(rows),
            "attention_mask": (torch.arange(longest) >= longest - lengths).long(),
        }

    def _new(self, row: Any, inputs: dict[str, Any]) -> list[int]:
        return row[inputs["input_ids"].shape[1] :].tolist()

    def _text(self, row: Any, inputs: dict[str, Any]) -> str:
        written = self.tokenizer.decode(self._new(row, inputs), skip_special_tokens=True)
        return _THOUGHTS.sub("", written).strip()
