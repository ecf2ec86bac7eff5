"""Published systems, one folder each, from rows and features to head, task and metric.

Each is registered by entry points (`pyproject.toml`), like the plugins of third parties: `import longspan` loads every
saved head and runs every task; none is imported before it is used, and no lower package imports one of these.
"""
