"""Probes that are pictures, read pixel by pixel in rows, in the shapes of the Long Range Arena (32 × 32 and up)."""

from __future__ import annotations

import numpy as np

from longspan.compare.probes.base import Form, Probe, Row, asked_at_end

LEVELS = 16
"""Shades of grey."""


class Drawing(Probe):
    """A square picture of `side × side` pixels, and a last token that asks for its class."""

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
        """`(side, side)` of shades from 0 to 1."""
        raise NotImplementedError


class Images(Drawing):
    """Pictures read pixel by pixel (the Arena's image task has photographs; these are drawn): which shape is it?

    A disc, a square, a cross or a ring at any place and size in noise. Neighbours in the picture lie a whole row apart
    in the sequence: can attention put two dimensions together again?
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
    """Pathfinder (Linsley et al. 2018) in the Arena's shape: does a line join the two dots?

    Two winding lines; the dots are the ends of one of them, or one end of each. Nothing that is near decides it: can
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
        """`(length, 2)` pixels of a line that turns slowly and turns back at the border."""
        place, angle, found = random.uniform(2, self.side - 3, size=2), random.uniform(0, 2 * np.pi), []
        for _ in range(int(1.2 * self.side)):
            found.append(place.round().astype(int))
            angle += random.normal(0, 0.3)
            ahead = place + _step(angle)
            if (ahead < 1).any() or (ahead > self.side - 2).any():
                angle += np.pi / 2
                ahead = (place + _step(angle)).clip(1, self.side - 2)
            place = ahead
        return np.array(found)


def _step(angle: float) -> np.ndarray:
    """One pixel in a direction: down and right."""
    return np.array([np.sin(angle), np.cos(angle)])
