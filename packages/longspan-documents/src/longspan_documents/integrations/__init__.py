"""Longspan in other libraries: modules for sentence-transformers, retrievers and runnables for LangChain.

Each module needs the extra of the same name and is imported explicitly; importing this package imports none.
"""
