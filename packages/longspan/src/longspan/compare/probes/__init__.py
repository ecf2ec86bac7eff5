"""Probes: small tasks, synthetic or from local documents, each of which tests one ability of attention.

`PROBES` lists them; their docstrings describe what they test.
"""

from __future__ import annotations

from longspan.compare.probes.base import Probe, Row
from longspan.compare.probes.documents import Bytes, Matching, Novels
from longspan.compare.probes.made_up import Duplication, Images, ListOps, Paths, Recall

__all__ = ["PROBES", "Probe", "Row"]

PROBES: dict[str, type[Probe]] = {
    probe.name: probe for probe in (Recall, Duplication, ListOps, Bytes, Matching, Novels, Images, Paths)
}
"""Name → probe."""
