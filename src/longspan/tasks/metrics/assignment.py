"""The best way to pair rows with columns: the assignment problem, by shortest augmenting paths (Hungarian method)."""

from __future__ import annotations

import numpy as np


def best_assignment(values: np.ndarray) -> list[tuple[int, int]]:
    """Pairs `(row, column)`, each row and column in one at most, whose values add up to the most.

    Rows enter one after another. A new one takes the path of least cost that ends in a free column, where costs are
    reduced by prices of rows and columns that keep all of them ≥ 0 (Kuhn 1955; Jonker and Volgenant 1987). O(R² C).

    Args:
        values: `(R, C)`, finite.

    Returns:
        min(R, C) pairs, by rows.
    """
    rows, columns = values.shape
    if rows > columns:
        return sorted((row, column) for column, row in best_assignment(values.T))
    costs = -values.astype(np.float64)
    row_prices, prices = np.zeros(rows), np.zeros(columns)
    taken = np.full(columns, -1)  # the row of each column
    for row in range(rows):
        distance, before = np.full(columns, np.inf), np.full(columns, -1)
        done = np.zeros(columns, bool)
        current, reached, column = row, 0.0, -1
        visited = [(row, 0.0)]
        while True:
            reduced = reached + costs[current] - row_prices[current] - prices
            better = ~done & (reduced < distance)
            distance[better], before[better] = reduced[better], column
            column = int(np.where(done, np.inf, distance).argmin())
            reached = float(distance[column])
            done[column] = True
            if taken[column] < 0:
                break
            current = int(taken[column])
            visited.append((current, reached))
        for one, at in visited:
            row_prices[one] += reached - at
        prices[done] += distance[done] - reached
        while column >= 0:
            previous = int(before[column])
            taken[column] = row if previous < 0 else taken[previous]
            column = previous
    return sorted((int(row), column) for column, row in enumerate(taken) if row >= 0)
