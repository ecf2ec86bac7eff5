"""Summaries: written, or made of a document's own sentences."""
