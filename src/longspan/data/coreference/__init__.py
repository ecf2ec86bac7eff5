"""Coreference data: documents of words with clusters of mentions; CoNLL files in and out, and made-up documents."""
