"""Answers to questions about a document, or that it holds none."""
