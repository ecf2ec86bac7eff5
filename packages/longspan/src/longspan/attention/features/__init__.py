"""Features that many mechanisms support, one per file, as functions over any mechanism."""
