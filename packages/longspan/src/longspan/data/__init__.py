"""Data sets, documents and sentences: readers of file formats that return rows and texts."""
