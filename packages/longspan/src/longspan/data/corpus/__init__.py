"""Unlabelled texts: their sources, and their tokens on disk."""
