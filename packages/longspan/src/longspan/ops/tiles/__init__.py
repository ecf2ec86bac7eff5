"""Attention over the tiles of a pattern, and pooling: on any device, in linear memory, with hand-written backward
passes."""
