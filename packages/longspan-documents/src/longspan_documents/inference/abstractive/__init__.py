"""Summaries that a model writes: its opening, one door to every kind of such models, and documents longer than it."""
