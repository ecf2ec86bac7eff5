"""Texts without labels: where they come from, and their tokens on disk."""
