"""Texts with labels: data formats → rows."""
