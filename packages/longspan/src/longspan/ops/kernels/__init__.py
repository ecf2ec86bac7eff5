"""Attention as sums over features: linear in the length without any tile of scores."""
