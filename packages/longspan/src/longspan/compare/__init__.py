"""Mechanisms under equal conditions: the same skeleton, as many weights, the same rows, steps and seeds.

`longspan.compare.run.compare` runs a comparison, every cell of it in a process of its own, and
`longspan.compare.report.write_report` writes what came of it.
"""
