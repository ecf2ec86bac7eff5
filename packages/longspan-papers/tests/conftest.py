"""Tiny random models and batches."""

from tiny_models import make_batch, make_config

__all__ = ["make_batch", "make_config"]
