"""`longspan train`."""


def train() -> None:
    """Placeholder."""
