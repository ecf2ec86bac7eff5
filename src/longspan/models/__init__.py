"""Hugging Face model classes with a long attention mechanism per layer."""
