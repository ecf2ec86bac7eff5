"""Abstractive summaries: loading of generative models, a common interface to them, and documents longer than their
input."""
