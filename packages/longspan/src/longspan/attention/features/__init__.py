"""Features that cross mechanisms, one per file, each a set of functions over any mechanism."""
