"""How a language model's text is cut up when it is scored: the mode stands beside every number, as modes differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from longspan.errors import InputError
from longspan.settings import LARGEST, Count, Range, check


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Windows of a text, in each of which the last tokens are scored, so that every token of the text counts once.

    `sliding` moves a window of `tokens` by `step` and scores its last `step` tokens from what stands before them in it;
    the beginning of the text is scored from as much as there is. `disjoint` sets windows side by side, which share one
    token: the last of one, which the next one reads without scoring it. A memory that is carried along is the task
    `language_stream`.
    """

    mode: Literal["sliding", "disjoint"] = "sliding"
    """How windows follow each other."""
    tokens: Annotated[int, Range(3, LARGEST)] | None = None
    """Length of a window; None takes `task.max_tokens`."""
    step: Count | None = None
    """By how many tokens a sliding window moves, all of which it scores; None takes half of its length."""

    def __post_init__(self) -> None:
        """Refuse a step where nothing slides."""
        check(self)
        if self.mode == "disjoint" and self.step is not None:
            raise InputError(
                f"task.evaluation.step is {self.step}, but the mode 'disjoint' moves by whole windows; leave it out, "
                "or set the mode to 'sliding'"
            )

    def window(self, max_tokens: int) -> int:
        """Length of a window, for a model trained on chunks of `max_tokens`."""
        return self.tokens or max_tokens

    def context(self, max_tokens: int) -> int:
        """How many tokens before those that are scored a window reads, the last of them not counted.

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
        """The mode with its lengths, as it stands beside a score."""
        window = self.window(max_tokens)
        if self.mode == "disjoint":
            return f"disjoint, {window} tokens"
        return f"sliding, {window} tokens, step {window - 1 - self.context(max_tokens)}"
