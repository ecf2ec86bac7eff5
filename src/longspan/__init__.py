"""Longspan: a long attention span for Transformers."""

__version__ = "0.1.0"
