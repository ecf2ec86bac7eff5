"""Exercises with one right answer, which a decoder writes: algorithms over digits, and questions about stories."""
