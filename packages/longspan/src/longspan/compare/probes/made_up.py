"""Synthetic probes: recall, duplication and nested lists of symbols, and pictures, read pixel by pixel in rows, in the
format of the Long Range Arena (32 × 32 and up)."""

from __future__ import annotations

import numpy as np

from longspan.compare.probes.base import Form, Probe, Row, asked, asked_at_end


class Recall(Probe):
    """Key–value recall at distance d: can a token find the one other token that it needs, and from what distance?

    Sixteen facts "key = value", one token each, are placed among fillers; the last sixteen tokens query the keys, and
    their labels are the values, one of eight. Distances are uniform on a logarithmic scale from the end to the
    beginning, and the score is also reported by distance: a window fails beyond its length, a fixed-size state if it is
    too small.
    """

    name = "recall"
    keys, values, fillers = 16, 8, 16

    @property
    def vocabulary(self) -> int:
        return self.values + self.fillers + self.keys + self.keys * self.values + 1

    @property
    def chance(self) -> float:
        return 1 / self.values

    def make(self, random: np.random.Generator, form: Form) -> Row:
        keys, values = self.keys, self.values
        ids = values + random.integers(self.fillers, size=self.tokens)
        order, answers = random.permutation(keys), random.integers(values, size=keys)
        asking = np.arange(self.tokens - keys, self.tokens)
        ids[asking] = values + self.fillers + order
        # Different positions of the facts, relative to the first question, in random order.
        room = self.tokens - keys
        drawn = np.exp(random.uniform(0, np.log(room), size=8 * keys)).astype(np.int64) - 1
        spare = random.permutation(room)  # for rows so short that there are too few different ones among those drawn
        distances = list(dict.fromkeys([*drawn.tolist(), *spare.tolist()]))[:keys]
        positions = room - 1 - random.permutation(np.array(distances))
        ids[positions] = values + self.fillers + keys + order * values + answers
        return asked(ids, asking, answers, asking - positions)


class Duplication(Probe):
    """Duplication (Kitaev et al. 2020, section 5): `0w0w`, a word of random symbols that must be repeated.

    Every symbol of the second half is predicted, half a row after it was read: can attention reach an exact distant
    position, for every token at once? The causal form predicts the next symbol; for a bidirectional mechanism, the
    second word is masked and predicted at once.
    """

    name = "duplication"
    forms = ("causal", "bidirectional")
    least = 8
    symbols = 32

    @property
    def vocabulary(self) -> int:
        return self.symbols + 3  # the separator between the words, the mask, padding

    @property
    def chance(self) -> float:
        return 1 / self.symbols

    def make(self, random: np.random.Generator, form: Form) -> Row:
        word = random.integers(self.symbols, size=self.tokens // 2 - 1)
        sign, hidden = [self.symbols], np.full(len(word), self.symbols + 1)
        ids = np.concatenate([sign, word, sign, word if form == "causal" else hidden])
        positions = np.arange(len(word) + 2, len(ids)) - (form == "causal")
        row = asked(ids, positions, word, len(word) + 1)
        # Half of all tokens are questions: making them global would be full attention.
        return Row(ids=row.ids, labels=row.labels, is_global=np.zeros(len(ids), bool), distances=row.distances)


class ListOps(Probe):
    """ListOps (Nangia and Bowman 2018), in the length and depth of the Long Range Arena: the value of a nested list.

    `[MAX 2 9 [MIN 4 7] 0]`: operators MIN, MAX, MED (median) and SM (sum modulo 10) over digits and lists, to a depth
    of ten. The question is the last token, its label the value, a digit. Can attention follow matching brackets, level
    by level?
    """

    name = "listops"
    operators = ("MIN", "MAX", "MED", "SM")
    close, ask = 14, 15
    depth, most = 10, 10

    @property
    def vocabulary(self) -> int:
        return 17

    @property
    def chance(self) -> float:
        return 0.1

    def make(self, random: np.random.Generator, form: Form) -> Row:
        room = int(random.integers(max(8, self.tokens // 4), self.tokens))  # rows of different lengths, as published
        ids: list[int] = []
        value = self._list(random, room - 1, self.depth, ids)
        return asked_at_end(np.array([*ids, self.ask]), value)

    def _list(self, random: np.random.Generator, room: int, depth: int, ids: list[int]) -> int:
        """Append a list of at most `room` tokens to `ids`; returns its value."""
        kind = int(random.integers(len(self.operators)))
        ids.append(10 + kind)
        inner, values = room - 2, []
        count = min(int(random.integers(2, self.most + 1)), inner)
        while count > 0 and inner >= count:
            share = inner // count
            if depth > 1 and share >= 4:
                before = len(ids)
                values.append(self._list(random, share, depth - 1, ids))
                inner -= len(ids) - before
            else:
                values.append(int(random.integers(10)))
                ids.append(values[-1])
                inner -= 1
            count -= 1
        ids.append(self.close)
        return list_value(self.operators[kind], values)


def list_value(operator: str, values: list[int]) -> int:
    """Returns the value of a list; the median of an even number of digits is the lower of the two in the middle."""
    if operator == "SM":
        return sum(values) % 10
    ranked = sorted(values)
    return ranked[{"MIN": 0, "MAX": -1, "MED": (len(ranked) - 1) // 2}[operator]]


LEVELS = 16
"""Shades of grey."""


class Drawing(Probe):
    """A square picture of `side × side` pixels, followed by a question token whose label is its class."""

    least = 101
    classes: int

    @property
    def side(self) -> int:
        """Pixels in a row of the picture."""
        return int((self.tokens - 1) ** 0.5)

    @property
    def vocabulary(self) -> int:
        return LEVELS + self.classes + 2

    @property
    def chance(self) -> float:
        return 1 / self.classes

    def make(self, random: np.random.Generator, form: Form) -> Row:
        label = int(random.integers(self.classes))
        picture = self.draw(random, label) + random.normal(0, 0.08, size=(self.side, self.side))
        pixels = (picture.clip(0, 1) * (LEVELS - 1)).round().astype(np.int64).ravel()
        return asked_at_end(np.append(pixels, LEVELS + self.classes), LEVELS + label)

    def draw(self, random: np.random.Generator, label: int) -> np.ndarray:
        """Draw the picture of class `label`: `(side, side)` floats from 0 (black) to 1, before noise is added."""
        raise NotImplementedError


class Images(Drawing):
    """Pictures read pixel by pixel (the Arena's image task has photographs; these are drawn): which shape is it?

    A disc, a square, a cross or a ring at any position and size in noise. Vertical neighbours in the picture are a
    whole row apart in the sequence: can attention recover two dimensions?
    """

    name = "images"
    classes = 4

    def draw(self, random: np.random.Generator, label: int) -> np.ndarray:
        side = self.side
        radius = random.uniform(0.18, 0.35) * side
        x, y = random.uniform(radius, side - 1 - radius, size=2)
        down, right = np.abs(np.mgrid[:side, :side] - np.array([y, x])[:, None, None])
        far, widest = np.hypot(down, right), np.maximum(down, right)
        thin = max(1.0, radius / 3)
        inside = (
            far <= radius,
            widest <= 0.85 * radius,
            (widest <= radius) & (np.minimum(down, right) <= thin / 2),
            (far <= radius) & (far >= radius - thin),
        )[label]
        return inside * random.uniform(0.5, 1.0)


class Paths(Drawing):
    """Pathfinder (Linsley et al. 2018) in the Arena's format: does a line join the two dots?

    Two winding lines; the dots are the ends of one of them, or one end of each. No local evidence suffices: can
    attention follow a chain of neighbours from one end to the other?
    """

    name = "paths"
    classes = 2

    def draw(self, random: np.random.Generator, label: int) -> np.ndarray:
        side = self.side
        picture = np.zeros((side, side))
        lines = [self._line(random) for _ in range(2)]
        for line in lines:
            picture[tuple(line.T)] = 0.5
        first, second = lines[0][0], lines[0][-1] if label else lines[1][-1]
        for row, column in (first, second):
            picture[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2] = 1.0
        return picture

    def _line(self, random: np.random.Generator) -> np.ndarray:
        """Returns `(length, 2)` pixels of a line that turns slowly and turns back at the border."""
        place, angle, points = random.uniform(2, self.side - 3, size=2), random.uniform(0, 2 * np.pi), []
        for _ in range(int(1.2 * self.side)):
            points.append(place.round().astype(int))
            angle += random.normal(0, 0.3)
            ahead = place + _step(angle)
            if (ahead < 1).any() or (ahead > self.side - 2).any():
                angle += np.pi / 2
                ahead = (place + _step(angle)).clip(1, self.side - 2)
            place = ahead
        return np.array(points)


def _step(angle: float) -> np.ndarray:
    """Returns one pixel step in a direction: down and right."""
    return np.array([np.sin(angle), np.cos(angle)])
