"""How a text is split for scoring a language model; the mode is reported with every score, since modes differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from longspan.errors import InputError
from longspan.settings import LARGEST, Count, Range, check


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Windows of a text, in each of which the last tokens are scored, so that every token of the text counts once.

    `sliding` moves a window of `tokens` by `step` and scores its last `step` tokens with the window's earlier ones as
    context, at the beginning of the text with fewer. `disjoint` uses adjacent windows that share one token: the last of
    one, which is only context in the next. The task `language_stream` scores with a memory.
    """

    mode: Literal["sliding", "disjoint"] = "sliding"
    """Sequence of the windows."""
    tokens: Annotated[int, Range(3, LARGEST)] | None = None
    """Length of a window; by default `task.max_tokens`."""
    step: Count | None = None
    """Step of a sliding window, in tokens, all of which it scores; by default half of its length."""

    def __post_init__(self) -> None:
        """Raises `InputError` for a step without sliding windows."""
        check(self)
        if self.mode == "disjoint" and self.step is not None:
            raise InputError(
                f"task.evaluation.step is {self.step}, but the mode 'disjoint' moves by whole windows; leave it out, "
                "or set the mode to 'sliding'"
            )

    def window(self, max_tokens: int) -> int:
        """Returns the length of a window, for a model trained on chunks of `max_tokens`."""
        return self.tokens or max_tokens

    def context(self, max_tokens: int) -> int:
        """Returns the number of context tokens of a window, without the last of them.

        Raises:
            InputError: the step leaves none.
        """
        window = self.window(max_tokens)
        if self.mode == "disjoint":
            return 0
        step = self.step or window - window // 2
        if step >= window:
            raise InputError(
                f"task.evaluation.step is {step}, but a window of {window} tokens scores at most {window - 1}, as its "
                "first is only read; lower it"
            )
        return window - 1 - step

    def words(self, max_tokens: int) -> str:
        """Describes the mode with its lengths, for reports."""
        window = self.window(max_tokens)
        if self.mode == "disjoint":
            return f"disjoint, {window} tokens"
        return f"sliding, {window} tokens, step {window - 1 - self.context(max_tokens)}"
