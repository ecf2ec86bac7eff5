"""Indexes on disk of document collections: words and vectors of passages, or states of a decomposed model's lower
layers."""
