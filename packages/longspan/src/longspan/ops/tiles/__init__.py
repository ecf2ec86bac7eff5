"""Attention over the tiles of a pattern, and pooling: any device, linear memory, with their own backward."""
