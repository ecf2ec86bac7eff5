"""Texts with labels, and pairs of texts: rows, the files and folders they come from, cleaning, and made-up ones."""
