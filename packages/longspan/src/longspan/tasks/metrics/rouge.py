"""ROUGE-1, -2, -L and -Lsum, with their flavour named, for any script, and with bootstrap intervals.

The numbers are those of the `rouge_score` package (F, P and R of Lin 2004, with its tokenizer), and n-gram overlap is
computed by it. Three things are added:

- *Speed*: longest common subsequences by bit vectors (Hyyrö 2004) instead of tables in Python; same results, tie for
  tie, several times faster.
- *Scripts*: `rouge_score` keeps only `[a-z0-9]`, so that Chinese or Arabic texts have no token at all. The "unicode"
  tokens are runs of letters and digits of any script with their marks; characters of scripts that are written without
  spaces (Chinese, Japanese, Thai, …) are single tokens. On ASCII text both kinds of tokens are the same.
- *Flavour*: several references by maximum or mean, stemmer on or off; `Rouge.flavour` describes it.

rougeL treats the whole text as one sequence; rougeLsum is the union over sentences, one per line. Published "R-L"
values are of either kind and differ by several points: never compare across flavours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple

from longspan.data.text.sentences import split_words
from longspan.errors import InputError
from longspan.imports import require
from longspan.settings import check

MEASURES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class Score(NamedTuple):
    """Shares between 0 and 1: precision, recall, and their harmonic mean."""

    precision: float
    recall: float
    fmeasure: float


@dataclass(frozen=True, kw_only=True)
class Rouge:
    """A flavour of ROUGE.

    Attributes:
        stemmer: Porter's stemmer on words of more than three ASCII letters (BigBird's script: on; LED's: off).
        references: with several references, "max" takes the best F of each measure, "mean" the mean over them.
        tokens: "rouge_score" keeps `[a-z0-9]+` as the published tool, "unicode" every script; "auto" selects "unicode"
            if most letters of the references are outside `[a-z0-9]`, else "rouge_score".
    """

    stemmer: bool = False
    references: Literal["max", "mean"] = "max"
    tokens: Literal["auto", "rouge_score", "unicode"] = "auto"

    def __post_init__(self) -> None:
        """Raises `InputError` for unknown choices."""
        check(self)

    @property
    def flavour(self) -> str:
        """Describes the flavour, for reports."""
        stemmer = "Porter stemmer" if self.stemmer else "no stemmer"
        return (
            f"F1 in percent by rouge_score, {stemmer}, {self.tokens} tokens, {self.references} over references, "
            "mean over rows; rougeL: whole text, rougeLsum: union over sentences (one per line)"
        )

    def score(self, prediction: str, references: str | Sequence[str]) -> dict[str, Score]:
        """Scores one prediction against its references; sentences are separated by newlines (for rougeLsum).

        Raises:
            InputError: there is no reference, or the 'train' extra is not installed.
        """
        references = [references] if isinstance(references, str) else list(references)
        if not references:
            raise InputError("references is empty; every prediction needs at least one reference")
        tokenizer = self._tokenizer(references)
        scored = _score_lines(prediction, references, tokenizer)
        best: dict[str, Score] = {}
        for measure in MEASURES:
            each = [scores[measure] for scores in scored]
            if self.references == "max":
                best[measure] = max(each, key=lambda score: score.fmeasure)
            else:
                best[measure] = Score(*(sum(part) / len(each) for part in zip(*each, strict=True)))
        return best

    def rows(self, predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> dict[str, list[float]]:
        """Returns F of every row in percent, by measure, as `bootstrap` expects."""
        if len(predictions) != len(references):
            raise InputError(f"there are {len(predictions)} predictions for {len(references)} rows; give one for each")
        scored = [self.score(prediction, row) for prediction, row in zip(predictions, references, strict=True)]
        return {measure: [100 * scores[measure].fmeasure for scores in scored] for measure in MEASURES}

    def mean(self, predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> dict[str, float]:
        """Returns the mean F over rows in percent, by measure; without rows every mean is 0."""
        values = self.rows(predictions, references)
        return {measure: sum(each) / max(len(each), 1) for measure, each in values.items()}

    def _tokenizer(self, references: Sequence[str]) -> Any:
        unicode = self.tokens == "unicode" or (self.tokens == "auto" and _mostly_other_script(references))
        return self._unicode if unicode else self._default

    @cached_property
    def _default(self) -> Any:
        return _library("rouge_score.tokenizers").DefaultTokenizer(use_stemmer=self.stemmer)

    @cached_property
    def _unicode(self) -> Any:
        return UnicodeTokenizer(self._default if self.stemmer else None)


class UnicodeTokenizer:
    """Lower-case words of every script, as described above; accepted by `RougeScorer(tokenizer=…)`.

    Args:
        stemming: a tokenizer of `rouge_score` with a stemmer, for ASCII tokens.
    """

    def __init__(self, stemming: Any = None) -> None:
        self.stems = None if stemming is None else cache(stemming.tokenize)

    def tokenize(self, text: str) -> list[str]:
        """Returns the tokens of a text, in order."""
        words = split_words(text)
        if self.stems is None:
            return words
        return [stem for word in words for stem in (self.stems(word) if word.isascii() else [word])]


def _mostly_other_script(texts: Iterable[str]) -> bool:
    """Whether more letters and digits are outside ASCII than inside."""
    ascii_count = other_count = 0
    for text in texts:
        inside = sum(map(str.isalnum, text.encode("ascii", "ignore").decode()))
        ascii_count += inside
        other_count += 0 if text.isascii() else sum(map(str.isalnum, text)) - inside
    return other_count > ascii_count


def _score_lines(prediction: str, references: Sequence[str], tokenizer: Any) -> list[dict[str, Score]]:
    """Returns all measures against each reference."""
    known = _Known(tokenizer, (prediction, *references))
    scorer = _library("rouge_score.rouge_scorer").RougeScorer(["rouge1", "rouge2"], tokenizer=known)
    lines, words = known.lines[prediction], known.tokenize(prediction)
    scored = []
    for reference in references:
        scores = {name: Score(*score) for name, score in scorer.score(reference, prediction).items()}
        wanted = known.tokenize(reference)
        scores["rougeL"] = _shares(_rows(wanted, words)[1][-1].bit_count(), len(wanted), len(words))
        scores["rougeLsum"] = _union_score(known.lines[reference], lines)
        scored.append(scores)
    return scored


class _Known:
    """A caching tokenizer: each text is tokenized once, line by line, as no token crosses a line's end."""

    def __init__(self, tokenizer: Any, texts: Iterable[str]) -> None:
        self.lines = {text: [tokenizer.tokenize(line) for line in text.split("\n")] for text in texts}

    def tokenize(self, text: str) -> list[str]:
        """Returns all tokens of one of the texts."""
        return [word for line in self.lines[text] for word in line]


def _shares(hits: int, reference_length: int, prediction_length: int) -> Score:
    if not hits:
        return Score(0.0, 0.0, 0.0)
    precision, recall = hits / prediction_length, hits / reference_length
    return Score(precision, recall, 2 * precision * recall / (precision + recall))


def _union_score(reference: list[list[str]], prediction: list[list[str]]) -> Score:
    """Returns the summary-level score: the union of each reference line's subsequences, each word counted at most as
    often as it occurs.
    """
    left = Counter(word for line in reference for word in line) & Counter(word for line in prediction for word in line)
    hits = 0
    for line in reference:
        union: set[int] = set()
        for other in prediction:
            union.update(_subsequence(line, other))
        for word in (line[place] for place in sorted(union)):
            if left[word] > 0:
                left[word] -= 1
                hits += 1
    return _shares(hits, sum(map(len, reference)), sum(map(len, prediction)))


def _rows(reference: list[str], prediction: list[str]) -> tuple[dict[str, int], list[int]]:
    """Returns the table of common-subsequence lengths, one row per reference prefix, each as a bit vector.

    With L the table, bit j of row i is L[i][j + 1] − L[i][j]; so the length of the longest is the last row's count of
    ones (Hyyrö 2004, with ones and zeros exchanged). Also returns each word's positions in the prediction as bits.
    """
    places: dict[str, int] = {}
    for place, word in enumerate(prediction):
        places[word] = places.get(word, 0) | 1 << place
    full = (1 << len(prediction)) - 1
    rows, vector = [0], full
    for word in reference:
        matches = vector & places.get(word, 0)
        vector = ((vector + matches) | (vector - matches)) & full
        rows.append(vector ^ full)
    return places, rows


def _subsequence(reference: list[str], prediction: list[str]) -> list[int]:
    """Returns the positions in the reference of one longest common subsequence: the one that `rouge_score` selects.

    From the table's end it takes equal words, moves to the earlier prediction word if that keeps more than the earlier
    reference word would, and to the earlier reference word otherwise.
    """
    places, rows = _rows(reference, prediction)
    common: list[int] = []
    if not rows[-1]:
        return common
    i, j = len(reference), len(prediction)
    length = rows[i].bit_count()
    while length:
        bit = 1 << (j - 1)
        if places.get(reference[i - 1], 0) & bit:
            common.append(i - 1)
            i, j, length = i - 1, j - 1, length - 1
        elif not rows[i] & bit and (rows[i - 1] & (bit * 2 - 1)).bit_count() < length:
            j -= 1
        else:
            i -= 1
    return common


def _library(module: str) -> Any:
    return require(module, extra="train", purpose="scoring with ROUGE")
