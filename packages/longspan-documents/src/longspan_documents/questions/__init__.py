"""Question-answering data sets as rows."""
