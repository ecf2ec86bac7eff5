"""How good an output is, as the official scripts count it."""
