"""Probes made of symbols: recall, duplication and nested lists."""

from __future__ import annotations

import numpy as np

from longspan.compare.probes.base import Form, Probe, Row, asked, asked_at_end


class Recall(Probe):
    """Key–value recall at distance d: can a token find the one other token that it needs, and from how far?

    Sixteen facts "key = value", each one token, stand among fillers; the last sixteen tokens ask for each key, and are
    to name its value, one of eight. Distances are spread evenly on a logarithmic scale from the end to the beginning,
    and the score is also told by distance: a window fails beyond its reach, a fixed state where it is too small.
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
        places = self.tokens - keys - 1 - self._far(random, self.tokens - keys)
        ids[places] = values + self.fillers + keys + order * values + answers
        return asked(ids, asking, answers, asking - places)

    def _far(self, random: np.random.Generator, room: int) -> np.ndarray:
        """Different places for the facts, counted back from the first question, in random order."""
        drawn = np.exp(random.uniform(0, np.log(room), size=8 * self.keys)).astype(np.int64) - 1
        others = random.permutation(room)  # for rows so short that too few of those drawn differ
        found = list(dict.fromkeys([*drawn.tolist(), *others.tolist()]))[: self.keys]
        return random.permutation(np.array(found))


class Duplication(Probe):
    """Duplication (Kitaev et al. 2020, section 5): `0w0w`, a word of random symbols that is to be written once more.

    Every symbol of the second half is asked for, half a row after it was read: can attention reach an exact place far
    back, for every token at once? The causal form writes it on, symbol by symbol; where a mechanism has none, the
    second word is hidden and named at once.
    """

    name = "duplication"
    forms = ("causal", "both ways")
    least = 8
    symbols = 32

    @property
    def vocabulary(self) -> int:
        return self.symbols + 3  # the sign between the words, the hidden symbol, padding

    @property
    def chance(self) -> float:
        return 1 / self.symbols

    def make(self, random: np.random.Generator, form: Form) -> Row:
        word = random.integers(self.symbols, size=self.tokens // 2 - 1)
        sign, hidden = [self.symbols], np.full(len(word), self.symbols + 1)
        ids = np.concatenate([sign, word, sign, word if form == "causal" else hidden])
        places = np.arange(len(word) + 2, len(ids)) - (form == "causal")
        row = asked(ids, places, word, len(word) + 1)
        # Half of all tokens ask: making them global would be full attention under another name.
        return Row(ids=row.ids, labels=row.labels, is_global=np.zeros(len(ids), bool), distances=row.distances)


class ListOps(Probe):
    """ListOps (Nangia and Bowman 2018), in the length and depth of the Long Range Arena: the value of a nested list.

    `[MAX 2 9 [MIN 4 7] 0]`: operators MIN, MAX, MED (median) and SM (sum modulo 10) over digits and lists, to a depth
    of ten. The last token asks for the value, a digit. Can attention follow brackets that belong together, level by
    level?
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
        room = int(random.integers(max(8, self.tokens // 4), self.tokens))  # rows of unequal length, as published
        ids: list[int] = []
        value = self._list(random, room - 1, self.depth, ids)
        return asked_at_end(np.array([*ids, self.ask]), value)

    def _list(self, random: np.random.Generator, room: int, depth: int, ids: list[int]) -> int:
        """Append a list of at most `room` tokens; its value."""
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
    """The value of a list; the median of an even number of digits is the lower of the two in the middle."""
    if operator == "SM":
        return sum(values) % 10
    ranked = sorted(values)
    return ranked[{"MIN": 0, "MAX": -1, "MED": (len(ranked) - 1) // 2}[operator]]
