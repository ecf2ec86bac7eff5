"""Longer models from short ones: which layer gets what, the check that short inputs stay, the report."""
