"""Continuing a text with a language model, and which command a model is for."""
