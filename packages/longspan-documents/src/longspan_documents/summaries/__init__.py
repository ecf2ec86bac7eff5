"""Extractive summarisation: features, scores and selection of sentences."""
