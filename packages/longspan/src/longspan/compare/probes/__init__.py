"""Probes: small tasks, made up here or from documents that lie here, each of which asks attention for one thing.

`PROBES` names each one; its docstring says what it asks for.
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
