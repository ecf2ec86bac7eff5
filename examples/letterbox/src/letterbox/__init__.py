"""Letters for Longspan: an example of a package that adds to it."""
