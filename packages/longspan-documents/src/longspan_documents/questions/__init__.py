"""Question answering over texts: rows, task and scores."""
