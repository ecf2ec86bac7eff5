"""File formats in, rows and texts out."""
