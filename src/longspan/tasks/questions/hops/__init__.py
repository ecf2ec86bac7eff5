"""Questions that need two paragraphs: features, decoding, the paragraphs that a second stage reads, and the task."""
