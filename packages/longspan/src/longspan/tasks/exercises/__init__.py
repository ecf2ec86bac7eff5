"""Exercises with one right answer, which a decoder generates: algorithms over digits, and questions
about stories (bAbI).

The experiments of Universal Transformers (Dehghani et al. 2019, arXiv 1807.03819, sections 3.1 and 3.3). `rows`
generates and reads them, `task` trains and scores.
"""
