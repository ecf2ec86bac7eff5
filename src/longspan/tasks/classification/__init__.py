"""A label for a whole document."""
