"""Sentence segmentation, with scripts and abbreviations."""
