"""Tasks for abstractive and extractive summaries."""
