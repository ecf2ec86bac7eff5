"""Vectors of sentences and documents: what a small model learns from a larger one."""
