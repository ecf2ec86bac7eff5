"""Tiny random models and batches."""

from tiny_models import POOLING, VOCABULARY, WINDOW, make_batch, make_config

__all__ = ["POOLING", "VOCABULARY", "WINDOW", "make_batch", "make_config"]
