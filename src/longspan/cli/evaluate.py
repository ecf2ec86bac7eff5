"""`longspan evaluate`."""


def evaluate() -> None:
    """Placeholder."""
