"""Which sentences of a document make its summary."""
