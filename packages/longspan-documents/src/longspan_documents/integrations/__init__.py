"""Longspan inside other libraries: modules of sentence-transformers, retrievers and runnables of LangChain.

Each module needs the extra of its own name, and is imported by its own name; importing this package imports none.
"""
