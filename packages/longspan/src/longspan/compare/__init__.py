"""Comparison of mechanisms under equal conditions: the same skeleton, number of weights, rows, steps and seeds.

`longspan.compare.run.compare` runs a comparison, every cell in a separate process, and
`longspan.compare.report.write_report` writes the results.
"""

from longspan.workers import Worker, command_of


def worker_of_cells() -> Worker:
    """Returns a worker that runs each cell in a process forked from one that has imported everything and computed
    nothing."""
    return Worker(command_of("longspan.compare.process:ready", forks=True))
