"""Tasks with a label for each row: of a document, or of a pair of texts."""
