"""The edges of BP-Transformer, walked from level to level as the authors do, without a formula."""

from __future__ import annotations


def nodes_around(count, token, k, clip, causal):
    """Nodes of each level of the tree over `count` tokens, and what a token reads: node `(level, index)` → label."""
    counts = [count]
    while counts[-1] > 1:
        counts.append((counts[-1] + 1) // 2)
    edges, left, right, left_child, right_child = {(0, token): 0}, token - 1, token + 1, None, None
    for level in range(len(counts)):
        first = (2 * k + 1) * min(level, clip)
        for slot in range(k):
            before = left_child if slot == 0 and left_child else (level, left)
            after = right_child if slot == 0 and right_child else (level, right)
            if before[1] >= 0:
                edges[before] = first + 2 * slot + 1
            if not causal and after[1] < counts[after[0]]:
                edges[after] = first + 2 * slot + 2
            left, right = left - 1, right + 1
        left_child = (level, left) if left % 2 == 0 else None
        right_child = (level, right) if right % 2 == 1 else None
        left, right = left // 2, right // 2
    return counts, edges
