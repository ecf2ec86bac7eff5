"""Verbs over whole corpora: every row of tables or every document of folders, with results in Parquet parts."""
