"""How much noise of which kind: the paper's settings, and those of the script that its authors published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from longspan.errors import InputError
from longspan.settings import Count, Form, Range, Share, check, show

Mark = Annotated[str, Form(r"\S+", "a token without white space", 100)]
Mean = Annotated[float, Range(0, 100)]
LEAST_MEAN = 0.1
"""Of the length of spans that are drawn until a share of the words is hidden."""


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """What happens to the window; the defaults are the paper's (Zhong et al. 2022, arXiv 2109.02492, §3.1).

    A length is counted in words, or in whatever `noise` is told to count.
    """

    window_share: Annotated[float, Range(above=0, maximum=1)] = 0.1
    """Length of the window, as a share of the dialogue's."""
    window_most: Count = 512
    """Longest window; a single turn may be longer."""
    speaker_share: Share = 0.5
    """Share of the window's turns whose speaker is masked."""
    split: Share = 0.5
    """Probability that a turn is split into its sentences, all but the first under a masked speaker."""
    merge: Share = 0.5
    """Probability that turns are merged instead; a window of one turn is split."""
    split_by: Literal["sentences", "words"] = "sentences"
    """What the turn that is split has most of."""
    merge_mean: Mean = 3.0
    """Mean of the Poisson distribution of how many turns are merged; at least 2 are."""
    infill_share: Share = 0.15
    """Of "budget", the share of the window's words that is hidden; of "starts", the probability that a span begins."""
    infill_by: Literal["budget", "starts"] = "budget"
    """Spans until a budget is spent, or one beginning at any word with some probability."""
    span_mean: Mean = 3.0
    """Mean of the Poisson distribution of a span's length; a span of no words only puts in a mask."""
    permute: Share = 1.0
    """Probability that the turns of the window are shuffled."""
    markers: bool = True
    """Whether the window stands between marks."""
    mask: Mark = "[MASK]"
    """Stands for a span of words."""
    speaker_mask: Mark = "[MASK_SPEAKER]"
    """Stands for a speaker."""
    start: Mark = "[start]"
    """Stands before the window."""
    end: Mark = "[end]"
    """Stands behind it."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check(self)
        if self.split + self.merge > 1 + 1e-9:
            raise InputError(
                f"split={self.split} and merge={self.merge} are more than 1 together, though only one of them happens; "
                "lower one"
            )
        if self.infill_by == "budget" and self.infill_share and self.span_mean < LEAST_MEAN:
            raise InputError(
                f"span_mean={self.span_mean} is below {LEAST_MEAN}: nearly all spans would hide no word, and infill_by="
                "'budget' would hardly ever reach its share; raise it, or choose infill_by='starts'"
            )

    @classmethod
    def published(cls, name: str = "paper", **changes: Any) -> Self:
        """The settings called "paper" or "script", with changes.

        The script's length is in words, its speaker mask the ordinary one, and its spans hide a quarter of the words.
        """
        if name not in SETTINGS:
            raise InputError(f"setting={show(name)} is unknown; choose one of {', '.join(SETTINGS)}")
        return cls(**{**SETTINGS[name], **changes})

    def without(self, *noises: str) -> dict[str, float]:
        """The changes that leave noises out, of `NOISES`."""
        for name in noises:
            if name not in NOISES:
                raise InputError(f"noise {show(name)} is unknown; choose of {', '.join(NOISES)}")
        changes = {NOISES[name]: 0.0 for name in noises}
        # Exactly one of these two happens; without one it is always the other.
        if len({"split", "merge"} & changes.keys()) == 1:
            changes["merge" if "split" in changes else "split"] = self.split + self.merge
        return changes


NOISES = {
    "speakers": "speaker_share",
    "split": "split",
    "merge": "merge",
    "infill": "infill_share",
    "permute": "permute",
}
"""Noise → the field that turns it off at 0."""

SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {},
    "script": {
        "window_share": 0.2,
        "window_most": 450,
        "split_by": "words",
        "infill_by": "starts",
        "infill_share": 0.1,
        "speaker_mask": "[MASK]",
    },
}
"""Name → what differs from the defaults."""
