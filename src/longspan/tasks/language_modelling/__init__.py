"""Learning from text alone."""
