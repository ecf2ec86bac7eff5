"""File formats in, rows and texts out: data sets, documents, sentences, chunks."""
