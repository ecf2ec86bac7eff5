"""Longspan for documents: reading every common kind of file, summaries, answers, vectors, indexes, a page and an API.

Its functions are those of `longspan` (`longspan.summarize`, `longspan.answer`, …) and its commands those of the command
line; both find them by the entry points of this package.
"""
