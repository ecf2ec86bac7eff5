"""Mechanisms under equal conditions: the same skeleton, as many weights, the same rows, steps and seeds.

`longspan.compare.run.compare` runs a comparison, every cell of it in a process of its own, and
`longspan.compare.report.write_report` writes what came of it.
"""

from longspan.workers import Worker, command_of


def worker_of_cells() -> Worker:
    """A worker that does each cell in a process forked from one that has imported everything and computed nothing."""
    return Worker(command_of("longspan.compare.process:ready", forks=True))
