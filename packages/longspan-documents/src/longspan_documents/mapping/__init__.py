"""Whole corpora: a verb over every row of tables or every document of folders, in parts that are written whole."""
