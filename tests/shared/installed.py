"""Marks of single tests that need a package above their own; they are skipped where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

HAS_DOCUMENTS, HAS_PAPERS = (find_spec(name) is not None for name in ("longspan_documents", "longspan_papers"))

needs_documents = pytest.mark.skipif(not HAS_DOCUMENTS, reason="needs the package longspan-documents")
needs_papers = pytest.mark.skipif(not HAS_PAPERS, reason="needs the package longspan-papers")
