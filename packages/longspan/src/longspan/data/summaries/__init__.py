"""Summarisation data sets as rows."""
