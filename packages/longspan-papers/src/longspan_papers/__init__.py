"""Published systems that are closed in themselves: a folder each, from rows and features to head, task and metric.

Each enters by entry points (`pyproject.toml`), as what others bring does: a plain `import longspan` loads every saved
head and runs every task, none is imported before it is asked for, and no room below imports one of these.
"""
