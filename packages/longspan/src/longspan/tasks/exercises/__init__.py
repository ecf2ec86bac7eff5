"""Exercises with one right answer, which a decoder writes: algorithms over digits, and questions about stories (bAbI).

What Universal Transformers are tried on (Dehghani et al. 2019, arXiv 1807.03819, sections 3.1 and 3.3). `rows` makes
and reads them, `task` trains and scores.
"""
